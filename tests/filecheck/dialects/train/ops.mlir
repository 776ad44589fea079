// RUN: opt-tool %s --mlir-print-debuginfo=false | filecheck %s

// A step takes parameters, states, the batch and the learning rate, and returns their new values.
// CHECK-LABEL: func.func @step
// CHECK-SAME:    %w: tensor<4x6xf32> {train.param = "fc.weight"}
// CHECK-SAME:    %m: tensor<4x6xf32> {train.state = ["fc.weight", "exp_avg"]}
// CHECK-SAME:    -> (tensor<4x6xf32> {train.updates = 0 : i64}
func.func @step(
  %w: tensor<4x6xf32> {train.param = "fc.weight"},
  %m: tensor<4x6xf32> {train.state = ["fc.weight", "exp_avg"]},
  %v: tensor<4x6xf32> {train.state = ["fc.weight", "exp_avg_sq"]},
  %g: tensor<4x6xf32>,
  %count: tensor<f32> {train.step_count},
  %lr: tensor<f32> {train.learning_rate}
) -> (
  tensor<4x6xf32> {train.updates = 0 : i64},
  tensor<4x6xf32> {train.updates = 1 : i64},
  tensor<4x6xf32> {train.updates = 2 : i64},
  tensor<f32> {train.updates = 4 : i64}
) {
  // CHECK: %next = train.increment %count : (tensor<f32>) -> tensor<f32>
  %next = train.increment %count : (tensor<f32>) -> tensor<f32>
  // CHECK: %w.new, %m.new, %v.new = train.adamw %w, %g, %m, %v, %next, %lr {beta1 = 9.000000e-01 : f64, beta2 = 9.990000e-01 : f64}
  %w.new, %m.new, %v.new = train.adamw %w, %g, %m, %v, %next, %lr {beta1 = 0.9 : f64, beta2 = 0.999 : f64}
    : (tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<f32>, tensor<f32>)
    -> (tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>)
  func.return %w.new, %m.new, %v.new, %next : tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<f32>
}

// With amsgrad there is a third state.
// CHECK-LABEL: func.func @amsgrad
func.func @amsgrad(
  %w: tensor<4xf32>, %g: tensor<4xf32>, %m: tensor<4xf32>, %v: tensor<4xf32>, %x: tensor<4xf32>, %count: tensor<f32>,
  %lr: tensor<f32>
) -> tensor<4xf32> {
  // CHECK: %w.new, %m.new, %v.new, %x.new = train.adam %w, %g, %m, %v, %x, %count, %lr {amsgrad = true}
  %w.new, %m.new, %v.new, %x.new = train.adam %w, %g, %m, %v, %x, %count, %lr {amsgrad = true}
    : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>)
    -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)
  func.return %w.new : tensor<4xf32>
}

// Without momentum there is no buffer.
// CHECK-LABEL: func.func @plain_sgd
func.func @plain_sgd(%w: tensor<4xf32>, %g: tensor<4xf32>, %count: tensor<f32>, %lr: tensor<f32>) -> tensor<4xf32> {
  // CHECK: train.sgd %w, %g, %count, %lr {absent = ["momentum_buffer"]}
  %w.new = train.sgd %w, %g, %count, %lr {absent = ["momentum_buffer"]}
    : (tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>) -> tensor<4xf32>
  func.return %w.new : tensor<4xf32>
}

// Updates of several parameters at once have lists of tensors, and tensors shared by all parameters.
// CHECK-LABEL: func.func @together
func.func @together(
  %a: tensor<4xf32>, %b: tensor<2x3xf32>, %g: tensor<4xf32>, %h: tensor<2x3xf32>, %count: tensor<f32>, %lr: tensor<f64>
) -> (tensor<4xf32>, tensor<2x3xf32>) {
  // CHECK-NEXT: %x, %y = train.foreach "aten.mul.Tensor" lists = ["self"] shared = ["other"] %g, %h, %lr
  %x, %y = train.foreach "aten.mul.Tensor" lists = ["self"] shared = ["other"] %g, %h, %lr
    : (tensor<4xf32>, tensor<2x3xf32>, tensor<f64>) -> (tensor<4xf32>, tensor<2x3xf32>)
  // CHECK-NEXT: %a.new, %b.new = train.foreach "train.sgd" lists = ["param", "grad"] shared = ["step", "lr"]
  %a.new, %b.new = train.foreach "train.sgd" lists = ["param", "grad"] shared = ["step", "lr"] %a, %b, %x, %y, %count,
    %lr {absent = ["momentum_buffer"]}
    : (tensor<4xf32>, tensor<2x3xf32>, tensor<4xf32>, tensor<2x3xf32>, tensor<f32>, tensor<f64>)
    -> (tensor<4xf32>, tensor<2x3xf32>)
  func.return %a.new, %b.new : tensor<4xf32>, tensor<2x3xf32>
}

// An update of several ops: an op of one parameter names it, an op of several parameters names none.
// CHECK-LABEL: func.func @captured
func.func @captured(
  %w: tensor<4xf32> {train.param = "w"},
  // CHECK: %m: tensor<4xf32> {train.state = ["w", "sum"], train.initial = 1.000000e-01 : f64}
  %m: tensor<4xf32> {train.state = ["w", "sum"], train.initial = 0.1 : f64},
  %g: tensor<4xf32>,
  %lr: tensor<f64> {train.learning_rate}
) -> (tensor<4xf32> {train.updates = 0 : i64}, tensor<4xf32> {train.updates = 1 : i64}) {
  // CHECK: aten.neg %lr {train.update}
  %rate = aten.neg %lr {train.update} : (tensor<f64>) -> tensor<f64>
  %sum = aten.add.Tensor %m, %g {train.update = "w"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %next = aten.mul.Tensor %w, %rate {train.update = "w"} : (tensor<4xf32>, tensor<f64>) -> tensor<4xf32>
  // CHECK: train.assign %w, %next {train.update = "w"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %w.new = train.assign %w, %next {train.update = "w"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %m.new = train.assign %m, %sum {train.update = "w"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %w.new, %m.new : tensor<4xf32>, tensor<4xf32>
}
