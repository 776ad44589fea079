// RUN: opt-tool %s --pass-pipeline=make-batch-major --verify-numerics --mlir-print-debuginfo=false | filecheck %s

// The gradient of permute(2, 0, 3, 1, 4): three concatenated batches become three adjacent slices of each row.
func.func @qkv(%q: tensor<8x2x5x4xf32> {train.batch = "0"}, %k: tensor<8x2x5x4xf32> {train.batch = "1"},
    %v: tensor<8x2x5x4xf32> {train.batch = "2"}, %w: tensor<24x6xf32>) -> tensor<6xf32> {
  %cat = aten.cat %q, %k, %v
    : (tensor<8x2x5x4xf32>, tensor<8x2x5x4xf32>, tensor<8x2x5x4xf32>) -> tensor<24x2x5x4xf32>
  %apart = aten.view %cat {size = [3 : i64, 8 : i64, 2 : i64, 5 : i64, 4 : i64]}
    : (tensor<24x2x5x4xf32>) -> tensor<3x8x2x5x4xf32>
  %p = aten.permute %apart {dims = [1 : i64, 3 : i64, 0 : i64, 2 : i64, 4 : i64]}
    : (tensor<3x8x2x5x4xf32>) -> tensor<8x5x3x2x4xf32>
  %rows = aten.view %p {size = [40 : i64, 24 : i64]} : (tensor<8x5x3x2x4xf32>) -> tensor<40x24xf32>
  %g = aten.mm %rows, %w : (tensor<40x24xf32>, tensor<24x6xf32>) -> tensor<40x6xf32>
  %s = aten.sum.dim_IntList %g {dim = [0 : i64]} : (tensor<40x6xf32>) -> tensor<6xf32>
  func.return %s : tensor<6xf32>
}
// CHECK-LABEL: func.func @qkv
// CHECK: %cat.stack = aten.stack %q, %k, %v {dim = 1 : i64}
// CHECK-SAME: -> tensor<8x3x2x5x4xf32>
// CHECK-NEXT: %p = aten.permute %cat.stack {dims = [0 : i64, 3 : i64, 1 : i64, 2 : i64, 4 : i64]}
// CHECK-SAME: -> tensor<8x5x3x2x4xf32>
// CHECK-NEXT: %rows = aten.view %p
