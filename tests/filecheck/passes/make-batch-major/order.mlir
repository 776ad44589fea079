// RUN: opt-tool %s --pass-pipeline=make-batch-major --verify-numerics --mlir-print-debuginfo=false | filecheck %s

// An op that depends on the order of rows gets them in their original order.
func.func @running(%y: tensor<8x3xf32> {train.batch = "0"}) -> tensor<24xf32> {
  %t = aten.t %y : (tensor<8x3xf32>) -> tensor<3x8xf32>
  %rows = aten.view %t {size = [24 : i64]} : (tensor<3x8xf32>) -> tensor<24xf32>
  %e = aten.exp %rows : (tensor<24xf32>) -> tensor<24xf32>
  %sums = aten.cumsum %e {dim = 0 : i64} : (tensor<24xf32>) -> tensor<24xf32>
  func.return %sums : tensor<24xf32>
}
// CHECK-LABEL: func.func @running
// CHECK: %e = aten.exp
// CHECK-NEXT: %e.in_order.apart = aten.view %e {size = [8 : i64, 3 : i64]}
// CHECK-NEXT: %e.in_order.rows = aten.permute
// CHECK-NEXT: %e.in_order = aten.view
// CHECK-NEXT: %sums = aten.cumsum %e.in_order

// Random numbers follow the rows in their original order, drawn with the batch in a separate dim.
func.func @random(%x: tensor<8x3x4xf32> {train.batch = "0"}, %seed: tensor<i64> {train.seed}) -> tensor<8x3x4xf32> {
  %t = aten.transpose.int %x {dim0 = 1 : i64, dim1 = 0 : i64} : (tensor<8x3x4xf32>) -> tensor<3x8x4xf32>
  %rows = aten.view %t {size = [24 : i64, 4 : i64]} : (tensor<3x8x4xf32>) -> tensor<24x4xf32>
  %y, %kept = aten.random_dropout %rows, %seed {p = 0.5 : f64, stream = 0 : i64}
    : (tensor<24x4xf32>, tensor<i64>) -> (tensor<24x4xf32>, tensor<24x4xi1>)
  %z = aten.view %y {size = [3 : i64, 8 : i64, 4 : i64]} : (tensor<24x4xf32>) -> tensor<3x8x4xf32>
  %z.t = aten.transpose.int %z {dim0 = 1 : i64, dim1 = 0 : i64} : (tensor<3x8x4xf32>) -> tensor<8x3x4xf32>
  func.return %z.t : tensor<8x3x4xf32>
}
// CHECK-LABEL: func.func @random
// CHECK: aten.random_dropout %{{.*}}, %seed {p = 5.000000e-01 : f64, stream = 0 : i64} : (tensor<3x8x4xf32>, tensor<i64>) -> (tensor<3x8x4xf32>, tensor<3x8x4xi1>)

// A value that is equal for all rows needs no reordering, for example the gradient of a sum.
func.func @alike(%x: tensor<8x3x4xf32> {train.batch = "0"}, %g: tensor<4xf32>) -> tensor<4x4xf32> {
  %t = aten.transpose.int %x {dim0 = 1 : i64, dim1 = 0 : i64} : (tensor<8x3x4xf32>) -> tensor<3x8x4xf32>
  %rows = aten.view %t {size = [24 : i64, 4 : i64]} : (tensor<3x8x4xf32>) -> tensor<24x4xf32>
  %all = aten.expand %g {size = [24 : i64, 4 : i64]} : (tensor<4xf32>) -> tensor<24x4xf32>
  %all.t = aten.t %all : (tensor<24x4xf32>) -> tensor<4x24xf32>
  %w = aten.mm %all.t, %rows : (tensor<4x24xf32>, tensor<24x4xf32>) -> tensor<4x4xf32>
  func.return %w : tensor<4x4xf32>
}
// CHECK-LABEL: func.func @alike
// CHECK-NEXT: %rows = aten.view %x
// CHECK-NEXT: %all = aten.expand %g
// CHECK-NEXT: %all.t = aten.t %all
// CHECK-NEXT: %w = aten.mm %all.t, %rows

// If the batch leads already, nothing changes.
func.func @leading(%x: tensor<8x3x4xf32> {train.batch = "0"}, %w: tensor<4x6xf32>) -> tensor<8x3x6xf32> {
  %rows = aten.view %x {size = [24 : i64, 4 : i64]} : (tensor<8x3x4xf32>) -> tensor<24x4xf32>
  %h = aten.mm %rows, %w : (tensor<24x4xf32>, tensor<4x6xf32>) -> tensor<24x6xf32>
  %y = aten.view %h {size = [8 : i64, 3 : i64, 6 : i64]} : (tensor<24x6xf32>) -> tensor<8x3x6xf32>
  func.return %y : tensor<8x3x6xf32>
}
// CHECK-LABEL: func.func @leading
// CHECK-NEXT: %rows = aten.view %x
// CHECK-NEXT: %h = aten.mm %rows, %w
// CHECK-NEXT: %y = aten.view %h
// CHECK-NEXT: func.return %y

// Statistics of the batch do not depend on the order of rows.
func.func @norm(%x: tensor<8x3x4xf32> {train.batch = "0"}) -> tensor<8x3x4xf32> {
  %t = aten.transpose.int %x {dim0 = 1 : i64, dim1 = 0 : i64} : (tensor<8x3x4xf32>) -> tensor<3x8x4xf32>
  %rows = aten.view %t {size = [24 : i64, 4 : i64]} : (tensor<3x8x4xf32>) -> tensor<24x4xf32>
  %y, %m, %i = aten._native_batch_norm_legit.no_stats %rows
    {training = true, momentum = 1.0 : f64, eps = 1.0 : f64, absent = ["weight", "bias"]}
    : (tensor<24x4xf32>) -> (tensor<24x4xf32>, tensor<4xf32>, tensor<4xf32>)
  %z = aten.view %y {size = [3 : i64, 8 : i64, 4 : i64]} : (tensor<24x4xf32>) -> tensor<3x8x4xf32>
  %z.t = aten.transpose.int %z {dim0 = 1 : i64, dim1 = 0 : i64} : (tensor<3x8x4xf32>) -> tensor<8x3x4xf32>
  func.return %z.t : tensor<8x3x4xf32>
}
// CHECK-LABEL: func.func @norm
// CHECK-NEXT: %rows = aten.view %x
// CHECK-NEXT: %y, %m, %i = aten._native_batch_norm_legit.no_stats %rows
// CHECK-NEXT: aten.view %y {size = [8 : i64, 3 : i64, 4 : i64]}
// CHECK-NEXT: func.return
