// RUN: opt-tool %s --pass-pipeline=make-batch-major --verify-numerics --mlir-print-debuginfo=false | filecheck %s

// nn.MultiheadAttention, whose projections work on [time * batch, width].
func.func @forward(%x: tensor<8x3x4xf32> {train.batch = "0"}, %w: tensor<4x6xf32>, %b: tensor<6xf32>) -> tensor<6xf32> {
  %t = aten.transpose.int %x {dim0 = 1 : i64, dim1 = 0 : i64} : (tensor<8x3x4xf32>) -> tensor<3x8x4xf32>
  %c = aten.clone %t : (tensor<3x8x4xf32>) -> tensor<3x8x4xf32>
  %rows = aten.view %c {size = [24 : i64, 4 : i64]} : (tensor<3x8x4xf32>) -> tensor<24x4xf32>
  %h = aten.mm %rows, %w : (tensor<24x4xf32>, tensor<4x6xf32>) -> tensor<24x6xf32>
  %y = aten.view %h {size = [3 : i64, 8 : i64, 6 : i64]} : (tensor<24x6xf32>) -> tensor<3x8x6xf32>
  %z = aten.add.Tensor %y, %b : (tensor<3x8x6xf32>, tensor<6xf32>) -> tensor<3x8x6xf32>
  %s = aten.sum.dim_IntList %z {dim = [0 : i64, 1 : i64]} : (tensor<3x8x6xf32>) -> tensor<6xf32>
  func.return %s : tensor<6xf32>
}
// CHECK-LABEL: func.func @forward
// CHECK-NEXT: %rows = aten.view %x {size = [24 : i64, 4 : i64]} : (tensor<8x3x4xf32>) -> tensor<24x4xf32>
// CHECK-NEXT: %h = aten.mm %rows, %w
// CHECK-NEXT: %y.apart = aten.view %h {size = [8 : i64, 3 : i64, 6 : i64]}
// CHECK-NEXT: %y = aten.permute %y.apart {dims = [1 : i64, 0 : i64, 2 : i64]} : (tensor<8x3x6xf32>) -> tensor<3x8x6xf32>
// CHECK-NEXT: %z = aten.add.Tensor %y, %b

// The gradient of the weight: both factors have the rows in the same order, and the sum over them is the same.
func.func @gradient(%x: tensor<3x8x4xf32>, %g: tensor<8x3x6xf32> {train.batch = "0"}) -> tensor<6x4xf32> {
  %t = aten.transpose.int %g {dim0 = 1 : i64, dim1 = 0 : i64} : (tensor<8x3x6xf32>) -> tensor<3x8x6xf32>
  %grad = aten.view %t {size = [24 : i64, 6 : i64]} : (tensor<3x8x6xf32>) -> tensor<24x6xf32>
  %rows = aten.view %x {size = [24 : i64, 4 : i64]} : (tensor<3x8x4xf32>) -> tensor<24x4xf32>
  %grad.t = aten.t %grad : (tensor<24x6xf32>) -> tensor<6x24xf32>
  %w = aten.mm %grad.t, %rows : (tensor<6x24xf32>, tensor<24x4xf32>) -> tensor<6x4xf32>
  func.return %w : tensor<6x4xf32>
}
// CHECK-LABEL: func.func @gradient
// CHECK-NEXT: %grad = aten.view %g {size = [24 : i64, 6 : i64]}
// CHECK: %grad.t = aten.t %grad
// CHECK: %rows.batch_major.rows = aten.permute %{{.*}} {dims = [1 : i64, 0 : i64, 2 : i64]} : (tensor<3x8x4xf32>) -> tensor<8x3x4xf32>
// CHECK-NEXT: %rows.batch_major = aten.view %rows.batch_major.rows
// CHECK-NEXT: %w = aten.mm %grad.t, %rows.batch_major
