// RUN: opt-tool %s --pass-pipeline='scale-loss{growth_interval=10},clip-gradients{norm=1.0}' --mlir-print-debuginfo=false | filecheck %s
// RUN: not opt-tool %s --pass-pipeline='scale-loss{backoff_factor=2.0}' 2>&1 | filecheck %s --check-prefix=BACKOFF

// Gradients are scaled back before they are clipped; one sum tells whether all of them are finite; the ops of an update
// that is not a fused op always run, and their results are not assigned if a step is skipped.
// CHECK: %one.scaled = aten.mul.Tensor %one, %loss_scale
// CHECK: %g = aten.mul.Tensor %x, %one.scaled
// CHECK: %finite.count = aten.add.Tensor %h.finite.count, %g.finite.count : (tensor<i64>, tensor<i64>) -> tensor<i64>
// CHECK: %skips = aten.ne.Scalar %finite.count {other = 12 : i64}
// CHECK: %g.unscaled = aten.mul.Tensor %g, %loss_scale.inverse
// CHECK: aten.eq.Scalar %growth_tracker.counted {other = 10 : i64}
// CHECK: %g.unscaled.squared = aten.mul.Tensor %g.unscaled, %g.unscaled
// CHECK: %v.new = train.sgd %v, %h.unscaled.clipped, %n, %lr, %found_inf
// CHECK: %step = aten.mul.Tensor %g.unscaled.clipped, %w {train.update = "w"}
// CHECK: %w.new = train.assign %w, %step, %found_inf {train.update = "w"}
// CHECK: func.return %w.new, %v.new, %g.unscaled.clipped, %loss_scale.new, %growth_tracker.new, %loss_scale.new, %grad_norm

// BACKOFF: scale-loss: backoff_factor=2.0, expected a number between 0 and 1

func.func @step(
  %w: tensor<8xf32> {train.param = "w"}, %v: tensor<4xf32> {train.param = "v"}, %x: tensor<8xf32> {train.batch = "0"},
  %h: tensor<4xf32> {train.batch = "1"}, %n: tensor<f32> {train.step_count}, %lr: tensor<f32> {train.learning_rate}
) -> (tensor<8xf32> {train.updates = 0 : i64}, tensor<4xf32> {train.updates = 1 : i64}, tensor<8xf32> {train.grad = "w"}) {
  %one = aten.full {size = [], fill_value = 1.0 : f64, dtype = f32, train.backward, train.loss_gradient} : () -> tensor<f32>
  %g = aten.mul.Tensor %x, %one {train.backward} : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
  %v.new = train.sgd %v, %h, %n, %lr {absent = ["momentum_buffer"]}
    : (tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>) -> tensor<4xf32>
  %step = aten.mul.Tensor %g, %w {train.update = "w"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %w.new = train.assign %w, %step {train.update = "w"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  func.return %w.new, %v.new, %g : tensor<8xf32>, tensor<4xf32>, tensor<8xf32>
}
