// RUN: opt-tool %s --pass-pipeline='clip-gradients{norm=2.0 value=0.5}' --mlir-print-debuginfo=false | filecheck %s
// RUN: not opt-tool %s --pass-pipeline='clip-gradients{norm=0}' 2>&1 | filecheck %s --check-prefix=ZERO

// Elements are clipped first; the norm is over all gradients together, squared in float32; returned gradients are
// the clipped ones.
// CHECK: ({{.*}}{train.grad = "a"}, tensor<f32> {train.metric = "grad_norm"})
// CHECK: %ga.clipped = aten.clamp %ga {min = -5.{{.*}}e-01 : f64, max = 5.{{.*}}e-01 : f64}
// CHECK: %gb.clipped = aten.clamp %gb
// CHECK: %ga.clipped.squared = aten.mul.Tensor %ga.clipped, %ga.clipped
// CHECK: %ga.clipped.squares = aten.sum %ga.clipped.squared {dtype = f32, train.each_gradient} : (tensor<8xbf16>) -> tensor<f32>
// CHECK: %gb.clipped.squares = aten.sum
// CHECK: %grad_norm.squares = aten.add.Tensor %ga.clipped.squares, %gb.clipped.squares
// CHECK: %grad_norm = aten.sqrt %grad_norm.squares
// CHECK: aten.mul.Scalar %grad_norm.inverse {other = 2.000000e+00 : f64}
// CHECK: %grad_scale = aten.clamp_max
// CHECK: %ga.clipped.clipped = aten.mul.Tensor %ga.clipped, %grad_scale {train.each_gradient} : (tensor<8xbf16>, tensor<f32>) -> tensor<8xbf16>
// CHECK: train.sgd %a, %ga.clipped.clipped
// CHECK: func.return %a.new, %b.new, %ga.clipped.clipped, %grad_norm

// ZERO: clip-gradients: norm=0, expected a number above 0

func.func @step(
  %a: tensor<8xbf16> {train.param = "a"}, %b: tensor<4x2xf32> {train.param = "b"},
  %ga: tensor<8xbf16> {train.batch = "0"}, %gb: tensor<4x2xf32> {train.batch = "1"},
  %n: tensor<f32> {train.step_count}, %lr: tensor<f32> {train.learning_rate}
) -> (tensor<8xbf16> {train.updates = 0 : i64}, tensor<4x2xf32> {train.updates = 1 : i64},
      tensor<8xbf16> {train.grad = "a"}) {
  %a.new = train.sgd %a, %ga, %n, %lr {absent = ["momentum_buffer"]}
    : (tensor<8xbf16>, tensor<8xbf16>, tensor<f32>, tensor<f32>) -> tensor<8xbf16>
  %b.new = train.sgd %b, %gb, %n, %lr {absent = ["momentum_buffer"]}
    : (tensor<4x2xf32>, tensor<4x2xf32>, tensor<f32>, tensor<f32>) -> tensor<4x2xf32>
  func.return %a.new, %b.new, %ga : tensor<8xbf16>, tensor<4x2xf32>, tensor<8xbf16>
}
