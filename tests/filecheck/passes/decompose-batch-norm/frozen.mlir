// RUN: opt-tool %s --pass-pipeline=decompose-batch-norm,canonicalize,cse --verify-numerics --mlir-print-debuginfo=false | filecheck %s

// A batch norm without trained weights has empty gradients of weight and bias, which are not computed.

// CHECK-LABEL: func.func @without_weight
func.func @without_weight(%x: tensor<4x3xf32>, %m: tensor<3xf32>, %v: tensor<3xf32>, %g: tensor<4x3xf32>)
    -> (tensor<4x3xf32>, tensor<4x3xf32>) {
  // CHECK: %gx.weight_grad = aten.sum.dim_IntList %gx.products {dim = [0 : i64]} : (tensor<4x3xf32>) -> tensor<3xf32>
  // CHECK-NOT: native_batch_norm
  %y, %mean, %invstd, %m.new, %v.new = aten._native_batch_norm_legit_functional %x, %m, %v
    {training = true, momentum = 0.25 : f64, eps = 0.5 : f64, absent = ["weight", "bias"]}
    : (tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>)
    -> (tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>)
  %gx, %gw, %gb = aten.native_batch_norm_backward %g, %x, %m, %v, %mean, %invstd
    {train = true, eps = 0.5 : f64, output_mask = [true, false, false], absent = ["weight"]}
    : (tensor<4x3xf32>, tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>)
    -> (tensor<4x3xf32>, tensor<f32>, tensor<f32>)
  func.return %y, %gx : tensor<4x3xf32>, tensor<4x3xf32>
}

// -----

// Statistics of narrow values are in float32; results keep their dtype.
// CHECK-LABEL: func.func @narrow
func.func @narrow(%x: tensor<4x3xbf16>, %w: tensor<3xf32>, %b: tensor<3xf32>, %m: tensor<3xf32>, %v: tensor<3xf32>, %g: tensor<4x3xbf16>)
    -> (tensor<4x3xbf16>, tensor<4x3xbf16>, tensor<3xf32>, tensor<3xf32>) {
  // CHECK: %y.sum = aten.sum.dim_IntList %x {dim = [0 : i64], dtype = f32} : (tensor<4x3xbf16>) -> tensor<3xf32>
  // CHECK: %y.centred = aten.sub.Tensor %x, {{.*}} : (tensor<4x3xbf16>, tensor<1x3xf32>) -> tensor<4x3xf32>
  // CHECK: %y = aten._to_copy {{.*}} {dtype = bf16} : (tensor<4x3xf32>) -> tensor<4x3xbf16>
  // CHECK: aten._to_copy %gx.grad {dtype = bf16} : (tensor<4x3xf32>) -> tensor<4x3xbf16>
  // CHECK: func.return
  %y, %mean, %invstd, %m.new, %v.new = aten._native_batch_norm_legit_functional %x, %w, %b, %m, %v
    {training = true, momentum = 0.25 : f64, eps = 0.5 : f64}
    : (tensor<4x3xbf16>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>)
    -> (tensor<4x3xbf16>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>)
  %gx, %gw, %gb = aten.native_batch_norm_backward %g, %x, %w, %m, %v, %mean, %invstd
    {train = true, eps = 0.5 : f64, output_mask = [true, true, true]}
    : (tensor<4x3xbf16>, tensor<4x3xbf16>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>)
    -> (tensor<4x3xbf16>, tensor<3xf32>, tensor<3xf32>)
  func.return %y, %gx, %gw, %v.new : tensor<4x3xbf16>, tensor<4x3xbf16>, tensor<3xf32>, tensor<3xf32>
}
