// RUN: opt-tool %s --pass-pipeline=join-updates --mlir-print-debuginfo=false --verify-numerics | filecheck %s

// Squares between the same collectives are summed in one call, split and replicated gradients separately; other
// additions stay. A scaling that only one update reads is joined with it.

spmd.mesh @mesh = <["gpu"=2]>
// CHECK-LABEL: func.func @step
func.func @step(
  %a: tensor<8xf32> {train.param = "a", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>},
  %b: tensor<4x2xf32> {train.param = "b", spmd.sharding = #spmd.sharding<@mesh, [{}, {"gpu"}]>},
  %g: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>},
  %h: tensor<4x2xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"gpu"}]>}, %c: tensor<f32>, %d: tensor<8xf32>,
  %n: tensor<f32> {train.step_count}, %lr: tensor<f64> {train.learning_rate}
) -> (tensor<8xf32> {train.updates = 0 : i64}, tensor<4x2xf32> {train.updates = 1 : i64}) {
  // CHECK:      %total = train.sum_of_squares %g, %h
  // CHECK-SAME:   ([{"gpu"}], [{}, {"gpu"}]) -> ([], unreduced={"gpu"})
  // CHECK-NEXT: %total.whole = spmd.all_reduce [{"gpu"}] %total
  // CHECK-NEXT: %all = train.sum_of_squares %d, %d
  // CHECK-NEXT: %all_1 = aten.add.Tensor %total.whole, %c
  // CHECK-NEXT: %all_2 = aten.add.Tensor %all_1, %all
  // CHECK-NEXT: %scale = aten.rsqrt %all_2
  // CHECK-NEXT: %g.scaled, %h.scaled = train.foreach "aten.mul.Tensor" lists = ["self"] shared = ["other"] %g, %h, %scale
  // CHECK-NEXT: %a.new, %b.new = train.foreach "train.sgd"
  // CHECK-NEXT: func.return
  %g.squared = aten.mul.Tensor %g, %g {train.each_gradient, spmd.signature = #spmd.sig<@mesh, ([{"gpu"}], [{"gpu"}]) -> ([{"gpu"}])>} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %g.squares = aten.sum %g.squared {train.each_gradient, spmd.signature = #spmd.sig<@mesh, ([{"gpu"}]) -> ([], unreduced={"gpu"})>} : (tensor<8xf32>) -> tensor<f32>
  %h.squared = aten.mul.Tensor %h, %h {train.each_gradient, spmd.signature = #spmd.sig<@mesh, ([{}, {"gpu"}], [{}, {"gpu"}]) -> ([{}, {"gpu"}])>} : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
  %h.squares = aten.sum %h.squared {train.each_gradient, spmd.signature = #spmd.sig<@mesh, ([{}, {"gpu"}]) -> ([], unreduced={"gpu"})>} : (tensor<4x2xf32>) -> tensor<f32>
  %total = aten.add.Tensor %g.squares, %h.squares {train.each_gradient, spmd.signature = #spmd.sig<@mesh, ([], unreduced={"gpu"}, [], unreduced={"gpu"}) -> ([], unreduced={"gpu"})>} : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %total.whole = spmd.all_reduce [{"gpu"}] %total out_sharding = <@mesh, []> : tensor<f32>
  %d.squared = aten.mul.Tensor %d, %d {train.each_gradient, spmd.signature = #spmd.sig<@mesh, ([{}], [{}]) -> ([{}])>} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %d.squares = aten.sum %d.squared {train.each_gradient, spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([])>} : (tensor<8xf32>) -> tensor<f32>
  %two = aten.add.Tensor %total.whole, %d.squares {train.each_gradient, spmd.signature = #spmd.sig<@mesh, ([], []) -> ([])>} : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %e.squared = aten.mul.Tensor %d, %d {train.each_gradient, spmd.signature = #spmd.sig<@mesh, ([{}], [{}]) -> ([{}])>} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %e.squares = aten.sum %e.squared {train.each_gradient, spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([])>} : (tensor<8xf32>) -> tensor<f32>
  %three = aten.add.Tensor %two, %e.squares {train.each_gradient, spmd.signature = #spmd.sig<@mesh, ([], []) -> ([])>} : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %all = aten.add.Tensor %three, %c {train.each_gradient, spmd.signature = #spmd.sig<@mesh, ([], []) -> ([])>} : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %scale = aten.rsqrt %all {spmd.signature = #spmd.sig<@mesh, ([]) -> ([])>} : (tensor<f32>) -> tensor<f32>
  %g.scaled = aten.mul.Tensor %g, %scale {train.each_gradient, spmd.signature = #spmd.sig<@mesh, ([{"gpu"}], []) -> ([{"gpu"}])>} : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
  %h.scaled = aten.mul.Tensor %h, %scale {train.each_gradient, spmd.signature = #spmd.sig<@mesh, ([{}, {"gpu"}], []) -> ([{}, {"gpu"}])>} : (tensor<4x2xf32>, tensor<f32>) -> tensor<4x2xf32>
  %a.new = train.sgd %a, %g.scaled, %n, %lr {absent = ["momentum_buffer"], spmd.signature = #spmd.sig<@mesh, ([{"gpu"}], [{"gpu"}], [], []) -> ([{"gpu"}])>} : (tensor<8xf32>, tensor<8xf32>, tensor<f32>, tensor<f64>) -> tensor<8xf32>
  %b.new = train.sgd %b, %h.scaled, %n, %lr {absent = ["momentum_buffer"], spmd.signature = #spmd.sig<@mesh, ([{}, {"gpu"}], [{}, {"gpu"}], [], []) -> ([{}, {"gpu"}])>} : (tensor<4x2xf32>, tensor<4x2xf32>, tensor<f32>, tensor<f64>) -> tensor<4x2xf32>
  func.return %a.new, %b.new : tensor<8xf32>, tensor<4x2xf32>
}
