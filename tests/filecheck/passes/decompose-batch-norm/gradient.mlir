// RUN: opt-tool %s --pass-pipeline=decompose-batch-norm,canonicalize,cse --verify-numerics --mlir-print-debuginfo=false | filecheck %s

// Forward and backward together, with weight and bias: both gradients are sums over the batch, and so are the means
// that the input's gradient needs; the distance from the mean is computed once for both.

func.func @f(%x: tensor<4x3x2x2xf32>, %w: tensor<3xf32>, %b: tensor<3xf32>, %m: tensor<3xf32>, %v: tensor<3xf32>, %g: tensor<4x3x2x2xf32>)
    -> (tensor<4x3x2x2xf32>, tensor<4x3x2x2xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) {
  // CHECK: %y.sum = aten.sum.dim_IntList %x
  // CHECK: %y.centred = aten.sub.Tensor %x
  // CHECK: %y.squares.sum = aten.sum.dim_IntList
  // CHECK-NOT: aten.sub.Tensor %x
  // CHECK: %gx.weight_grad = aten.sum.dim_IntList %gx.products
  // CHECK: %gx.bias_grad = aten.sum.dim_IntList %g
  // CHECK: func.return
  %y, %mean, %invstd, %m.new, %v.new = aten._native_batch_norm_legit_functional %x, %w, %b, %m, %v
    {training = true, momentum = 0.25 : f64, eps = 0.5 : f64}
    : (tensor<4x3x2x2xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>)
    -> (tensor<4x3x2x2xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>)
  %gx, %gw, %gb = aten.native_batch_norm_backward %g, %x, %w, %m, %v, %mean, %invstd
    {train = true, eps = 0.5 : f64, output_mask = [true, true, true]}
    : (tensor<4x3x2x2xf32>, tensor<4x3x2x2xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>)
    -> (tensor<4x3x2x2xf32>, tensor<3xf32>, tensor<3xf32>)
  func.return %y, %gx, %gw, %gb, %v.new : tensor<4x3x2x2xf32>, tensor<4x3x2x2xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>
}
