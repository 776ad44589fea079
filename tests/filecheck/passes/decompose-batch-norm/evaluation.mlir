// RUN: opt-tool %s --pass-pipeline=decompose-batch-norm --mlir-print-debuginfo=false | filecheck %s

// With running statistics nothing is summed over the batch: the op stays.

func.func @f(%x: tensor<4x3x2x2xf32>, %m: tensor<3xf32>, %v: tensor<3xf32>) -> tensor<4x3x2x2xf32> {
  // CHECK: aten._native_batch_norm_legit_functional %x, %m, %v
  %y, %mean, %invstd, %m.new, %v.new = aten._native_batch_norm_legit_functional %x, %m, %v
    {training = false, momentum = 0.25 : f64, eps = 0.5 : f64, absent = ["weight", "bias"]}
    : (tensor<4x3x2x2xf32>, tensor<3xf32>, tensor<3xf32>)
    -> (tensor<4x3x2x2xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>)
  func.return %y : tensor<4x3x2x2xf32>
}
