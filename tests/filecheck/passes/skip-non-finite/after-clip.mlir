// RUN: opt-tool %s --pass-pipeline='clip-gradients{norm=1.0 value=0.5},skip-non-finite' --mlir-print-debuginfo=false | filecheck %s
// RUN: not opt-tool %s --pass-pipeline='clip-gradients{norm=1.0},scale-loss' 2>&1 | filecheck %s --check-prefix=SCALED
// RUN: not opt-tool %s --pass-pipeline='clip-gradients{value=1.0},scale-loss' 2>&1 | filecheck %s --check-prefix=SCALED

// The count of steps precedes the clip, and moves after the check, which follows the clip.
// CHECK: %g.clipped = aten.clamp %g
// CHECK: %g.clipped.clipped = aten.mul.Tensor %g.clipped
// CHECK: %found_inf = aten._to_copy %skips
// CHECK: %n.new = train.increment %n, %found_inf
// CHECK: train.sgd %w, %g.clipped.clipped, %n.new, %lr, %found_inf

// SCALED: would clip a gradient of the scaled loss; run scale-loss before clip-gradients

func.func @step(
  %w: tensor<8xf32> {train.param = "w"}, %x: tensor<8xf32> {train.batch = "0"}, %n: tensor<f32> {train.step_count},
  %lr: tensor<f32> {train.learning_rate}
) -> (tensor<8xf32> {train.updates = 0 : i64}, tensor<f32> {train.updates = 2 : i64}) {
  %one = aten.full {size = [], fill_value = 1.0 : f64, dtype = f32, train.backward, train.loss_gradient} : () -> tensor<f32>
  %g = aten.mul.Tensor %x, %one {train.backward} : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
  %n.new = train.increment %n : (tensor<f32>) -> tensor<f32>
  %w.new = train.sgd %w, %g, %n.new, %lr {absent = ["momentum_buffer"]}
    : (tensor<8xf32>, tensor<8xf32>, tensor<f32>, tensor<f32>) -> tensor<8xf32>
  func.return %w.new, %n.new : tensor<8xf32>, tensor<f32>
}
