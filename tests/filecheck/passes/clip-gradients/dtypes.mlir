// RUN: opt-tool %s --pass-pipeline='clip-gradients{norm=2.0},join-updates' --mlir-print-debuginfo=false | filecheck %s

// The norm has the widest dtype; a gradient keeps its dtype, although its product with the scale would be wider.
// CHECK: %ga.squares = aten.sum %ga.squared {dtype = f32, train.each_gradient} : (tensor<bf16>) -> tensor<f32>
// CHECK-DAG: train.sum_of_squares %gb, %gd : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
// CHECK-DAG: %gc.squares = aten.sum %gc.squared {train.each_gradient} : (tensor<2xf64>) -> tensor<f64>
// CHECK: %grad_norm = aten.sqrt {{.*}} : (tensor<f64>) -> tensor<f64>
// CHECK: %ga.clipped = aten.mul.Tensor %ga, %grad_scale {train.each_gradient} : (tensor<bf16>, tensor<f64>) -> tensor<f64>
// CHECK: %ga.clipped_1 = aten._to_copy %ga.clipped {dtype = bf16, train.each_gradient} : (tensor<f64>) -> tensor<bf16>

func.func @step(
  %a: tensor<bf16> {train.param = "a"}, %b: tensor<4xf32> {train.param = "b"}, %c: tensor<2xf64> {train.param = "c"},
  %d: tensor<4xf32> {train.param = "d"}, %ga: tensor<bf16> {train.batch = "0"}, %gb: tensor<4xf32> {train.batch = "1"},
  %gc: tensor<2xf64> {train.batch = "2"}, %gd: tensor<4xf32> {train.batch = "3"}, %n: tensor<f32> {train.step_count},
  %lr: tensor<f32> {train.learning_rate}
) -> (tensor<bf16> {train.updates = 0 : i64}, tensor<4xf32> {train.updates = 1 : i64}, tensor<2xf64> {train.updates = 2 : i64}, tensor<4xf32> {train.updates = 3 : i64}) {
  %a.new = train.sgd %a, %ga, %n, %lr {absent = ["momentum_buffer"]}
    : (tensor<bf16>, tensor<bf16>, tensor<f32>, tensor<f32>) -> tensor<bf16>
  %b.new = train.sgd %b, %gb, %n, %lr {absent = ["momentum_buffer"]}
    : (tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>) -> tensor<4xf32>
  %c.new = train.sgd %c, %gc, %n, %lr {absent = ["momentum_buffer"]}
    : (tensor<2xf64>, tensor<2xf64>, tensor<f32>, tensor<f32>) -> tensor<2xf64>
  %d.new = train.sgd %d, %gd, %n, %lr {absent = ["momentum_buffer"]}
    : (tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>) -> tensor<4xf32>
  func.return %a.new, %b.new, %c.new, %d.new : tensor<bf16>, tensor<4xf32>, tensor<2xf64>, tensor<4xf32>
}
