// RUN: opt-tool %s --pass-pipeline=decompose-mean --mlir-print-debuginfo=false | filecheck %s

// CHECK-LABEL: func.func @all_dims
func.func @all_dims(%x: tensor<4x6xf32>) -> tensor<f32> {
  // CHECK-NEXT: %m.sum = aten.sum %x : (tensor<4x6xf32>) -> tensor<f32>
  // CHECK-NEXT: %m = aten.div.Scalar %m.sum {other = 2.400000e+01 : f64} : (tensor<f32>) -> tensor<f32>
  // CHECK-NEXT: func.return %m
  %m = aten.mean %x : (tensor<4x6xf32>) -> tensor<f32>
  func.return %m : tensor<f32>
}

// CHECK-LABEL: func.func @some_dims
func.func @some_dims(%x: tensor<4x6x5xf32>) -> tensor<4x1x5xf32> {
  // CHECK-NEXT: %m.sum = aten.sum.dim_IntList %x {dim = [1 : i64], keepdim = true} : (tensor<4x6x5xf32>) -> tensor<4x1x5xf32>
  // CHECK-NEXT: %m = aten.div.Scalar %m.sum {other = 6.000000e+00 : f64}
  %m = aten.mean.dim %x {dim = [1 : i64], keepdim = true} : (tensor<4x6x5xf32>) -> tensor<4x1x5xf32>
  func.return %m : tensor<4x1x5xf32>
}

// A mean over nothing divides by zero only when it runs.
// CHECK-LABEL: func.func @empty
func.func @empty(%x: tensor<0x6xf32>) -> tensor<0xf32> {
  // CHECK: aten.div.Scalar %m.sum {other = 6.000000e+00 : f64}
  %m = aten.mean.dim %x {dim = [1 : i64]} : (tensor<0x6xf32>) -> tensor<0xf32>
  func.return %m : tensor<0xf32>
}
