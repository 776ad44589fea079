// RUN: opt-tool %s --mlir-print-debuginfo=false | filecheck %s

// A number may stand for a tensor, and one value for a list; whole numbers are numbers.
// CHECK-LABEL: func.func @as_torch_takes_them
func.func @as_torch_takes_them(%x: tensor<4x6xf32>, %i: tensor<4xi64>) -> tensor<4x6xf32> {
  // CHECK: aten.add.Tensor %x {other = 2.000000e+00 : f64, alpha = 3 : i64}
  %a = aten.add.Tensor %x {other = 2.0, alpha = 3 : i64} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  // CHECK: aten.sum.dim_IntList %a {dim = 1 : i64, keepdim = true, dtype = f64}
  %s = aten.sum.dim_IntList %a {dim = 1 : i64, keepdim = true, dtype = f64} : (tensor<4x6xf32>) -> tensor<4x1xf64>
  // CHECK: aten.flip %a {dims = array<i64: 0, 1>}
  %f = aten.flip %a {dims = array<i64: 0, 1>} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  // CHECK: aten.leaky_relu %f {negative_slope = 0 : i64}
  %l = aten.leaky_relu %f {negative_slope = 0 : i64} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  // CHECK: aten.gelu %l {approximate = "tanh"}
  %g = aten.gelu %l {approximate = "tanh"} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return %g : tensor<4x6xf32>
}
