// RUN: opt-tool %s --pass-pipeline='skip-non-finite,clip-gradients{norm=1.0}' --mlir-print-debuginfo=false | filecheck %s
// RUN: not opt-tool %s --pass-pipeline='scale-loss,skip-non-finite' 2>&1 | filecheck %s --check-prefix=SCALED

// Gradients are checked before they are clipped; the count of steps and the assignment of an update that is not a fused
// op are skipped too.
// CHECK: %finite.count = aten.add.Tensor %h.finite.count, %g.finite.count : (tensor<i64>, tensor<i64>) -> tensor<i64>
// CHECK: %skips = aten.ne.Scalar %finite.count {other = 12 : i64}
// CHECK: %found_inf = aten._to_copy %skips
// CHECK: %n.new = train.increment %n, %found_inf
// CHECK: %v.new = train.sgd %v, %h.clipped, %n.new, %lr, %found_inf
// CHECK: %step = aten.mul.Tensor %g.clipped, %w {train.update = "w"}
// CHECK: %w.new = train.assign %w, %step, %found_inf {train.update = "w"}
// CHECK: func.return %w.new, %v.new, %n.new, %found_inf, %grad_norm

// SCALED: 'train.increment' op %n.new: may be skipped already (scale-loss or skip-non-finite has run); skip-non-finite requires a step that always updates

func.func @step(
  %w: tensor<8xf32> {train.param = "w"}, %v: tensor<4xf32> {train.param = "v"}, %x: tensor<8xf32> {train.batch = "0"},
  %h: tensor<4xf32> {train.batch = "1"}, %n: tensor<f32> {train.step_count}, %lr: tensor<f32> {train.learning_rate}
) -> (tensor<8xf32> {train.updates = 0 : i64}, tensor<4xf32> {train.updates = 1 : i64}, tensor<f32> {train.updates = 4 : i64}) {
  %one = aten.full {size = [], fill_value = 1.0 : f64, dtype = f32, train.backward, train.loss_gradient} : () -> tensor<f32>
  %g = aten.mul.Tensor %x, %one {train.backward} : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
  %n.new = train.increment %n : (tensor<f32>) -> tensor<f32>
  %v.new = train.sgd %v, %h, %n.new, %lr {absent = ["momentum_buffer"]}
    : (tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>) -> tensor<4xf32>
  %step = aten.mul.Tensor %g, %w {train.update = "w"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %w.new = train.assign %w, %step {train.update = "w"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  func.return %w.new, %v.new, %n.new : tensor<8xf32>, tensor<4xf32>, tensor<f32>
}
