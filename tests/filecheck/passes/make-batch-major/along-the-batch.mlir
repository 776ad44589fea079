// RUN: opt-tool %s --pass-pipeline=make-batch-major --verify-numerics --mlir-print-debuginfo=false | filecheck %s

// Two batches are concatenated, run through one network, and split again.
func.func @chunks(%x: tensor<8x4xf32> {train.batch = "0"}, %y: tensor<8x4xf32> {train.batch = "1"}, %w: tensor<4x6xf32>)
    -> (tensor<6xf32>, tensor<6xf32>) {
  %both = aten.cat %x, %y : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
  %h = aten.mm %both, %w : (tensor<16x4xf32>, tensor<4x6xf32>) -> tensor<16x6xf32>
  %a, %b = aten.split.Tensor %h {split_size = 8 : i64} : (tensor<16x6xf32>) -> (tensor<8x6xf32>, tensor<8x6xf32>)
  %s = aten.sum.dim_IntList %a {dim = [0 : i64]} : (tensor<8x6xf32>) -> tensor<6xf32>
  %t = aten.sum.dim_IntList %b {dim = [0 : i64]} : (tensor<8x6xf32>) -> tensor<6xf32>
  func.return %s, %t : tensor<6xf32>, tensor<6xf32>
}
// CHECK-LABEL: func.func @chunks
// CHECK: %both.stack = aten.stack %x, %y {dim = 1 : i64} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x2x4xf32>
// CHECK-NEXT: %both = aten.view %both.stack
// CHECK-NEXT: %h = aten.mm %both, %w
// CHECK-NEXT: %h.opened = aten.view %h {size = [8 : i64, 2 : i64, 6 : i64]}
// CHECK-NEXT: %a.beside = aten.slice.Tensor %h.opened {dim = 1 : i64, start = 0 : i64, end = 1 : i64}
// CHECK-NEXT: %b.beside = aten.slice.Tensor %h.opened {dim = 1 : i64, start = 1 : i64, end = 2 : i64}
// CHECK-NEXT: %a = aten.view %a.beside
// CHECK-NEXT: %b = aten.view %b.beside

// A batch is concatenated with itself and the second half is taken; and its gradient.
func.func @slices(%x: tensor<8x4xf32> {train.batch = "0"}) -> tensor<16x4xf32> {
  %two = aten.repeat %x {repeats = [2 : i64, 1 : i64]} : (tensor<8x4xf32>) -> tensor<16x4xf32>
  %last = aten.slice.Tensor %two {dim = 0 : i64, start = -8 : i64} : (tensor<16x4xf32>) -> tensor<8x4xf32>
  %grad = aten.slice_backward %last
    {input_sizes = [16 : i64, 4 : i64], dim = 0 : i64, start = 8 : i64, end = 9223372036854775807 : i64, step = 1 : i64}
    : (tensor<8x4xf32>) -> tensor<16x4xf32>
  func.return %grad : tensor<16x4xf32>
}
// CHECK-LABEL: func.func @slices
// CHECK-NEXT: %x.opened = aten.view %x {size = [8 : i64, 1 : i64, 4 : i64]}
// CHECK-NEXT: %two.beside = aten.repeat %x.opened {repeats = [1 : i64, 2 : i64, 1 : i64]}
// CHECK-NEXT: %last.beside = aten.slice.Tensor %two.beside {dim = 1 : i64, start = 1 : i64, end = 2 : i64}
// CHECK-NEXT: %grad.beside = aten.slice_backward %last.beside
// CHECK-SAME: {input_sizes = [8 : i64, 2 : i64, 4 : i64], dim = 1 : i64, start = 1 : i64, end = 2 : i64, step = 1 : i64}
// CHECK: aten.permute %grad.beside {dims = [1 : i64, 0 : i64, 2 : i64]}
// CHECK-NEXT: aten.view
// CHECK-NEXT: func.return

// A slice of a part of the rows stays, on the rows in their original order.
func.func @some(%x: tensor<8x4xf32> {train.batch = "0"}, %y: tensor<8x4xf32> {train.batch = "1"}) -> tensor<4xf32> {
  %both = aten.cat %x, %y : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
  %h = aten.exp %both : (tensor<16x4xf32>) -> tensor<16x4xf32>
  %a = aten.slice.Tensor %h {dim = 0 : i64, start = 0 : i64, end = 12 : i64} : (tensor<16x4xf32>) -> tensor<12x4xf32>
  %s = aten.sum.dim_IntList %a {dim = [0 : i64]} : (tensor<12x4xf32>) -> tensor<4xf32>
  func.return %s : tensor<4xf32>
}
// CHECK-LABEL: func.func @some
// CHECK: %h.in_order{{.*}} = aten.permute
// CHECK-NEXT: %h.in_order{{.*}} = aten.view
// CHECK-NEXT: %a = aten.slice.Tensor %h.in_order
