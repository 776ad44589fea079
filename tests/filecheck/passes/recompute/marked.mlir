// RUN: opt-tool %s --pass-pipeline='recompute' | filecheck %s
// RUN: opt-tool %s --pass-pipeline='recompute' --verify-numerics | filecheck %s
// RUN: not opt-tool %s --pass-pipeline='recompute{keep=1.5}' 2>&1 | filecheck %s --check-prefix=PART
// RUN: not opt-tool %s --pass-pipeline='recompute{keep=0.5}' 2>&1 | filecheck %s --check-prefix=CLUSTER

// Only ops under a checkpoint are recomputed, right before they are needed: %c leaves its region and is kept; the
// view of an argument is recomputed, so that forward's gathered copy is not held; numbers are drawn by position.
// CHECK-LABEL: func.func @step
// CHECK:         %loss = aten.sum
// CHECK-NEXT:    %g = aten.mul.Tensor %c, %d {train.backward}
// CHECK-NEXT:    %t.again = aten.t %w {train.backward, train.recomputed}
// CHECK-NEXT:    %a.again = aten.mm %x, %t.again {train.backward, train.recomputed}
// CHECK-NEXT:    %b.again, %kept.again = aten.random_dropout %a.again, %seed {{.*}}stream = 0
// CHECK-NEXT:    %h = aten.mul.Tensor %g, %b.again {train.backward}
// CHECK-NEXT:    func.return
func.func @step(
  %x: tensor<8x4xf32> {train.batch = "0"}, %w: tensor<4x4xf32> {train.param = "w"}, %seed: tensor<i64> {train.seed}
) -> (tensor<f32> {train.loss}, tensor<8x4xf32>) {
  %t = aten.t %w {train.checkpoint = 1 : i64} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %a = aten.mm %x, %t {train.checkpoint = 1 : i64} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %b, %kept = aten.random_dropout %a, %seed {p = 0.5 : f64, stream = 0 : i64, train.checkpoint = 1 : i64}
    : (tensor<8x4xf32>, tensor<i64>) -> (tensor<8x4xf32>, tensor<8x4xi1>)
  %c = aten.tanh %b {train.checkpoint = 1 : i64} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %d = aten.relu %c : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %loss = aten.sum %d : (tensor<8x4xf32>) -> tensor<f32>
  %g = aten.mul.Tensor %c, %d {train.backward} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %h = aten.mul.Tensor %g, %b {train.backward} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  func.return %loss, %h : tensor<f32>, tensor<8x4xf32>
}

// PART: recompute: keep=1.5, expected a fraction between 0 and 1
// CLUSTER: the module has no mesh; add one
