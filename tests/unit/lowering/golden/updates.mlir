// What may be written in place: states, sums, reductions; and what must be copied first.
spmd.mesh @mesh = <["dp"=2]>
func.func @step(
    %w: tensor<4xf32> {train.param = "w", train.tied = ["head.w"]},
    %m: tensor<4xf32> {train.state = ["w", "exp_avg"]},
    %v: tensor<4xf32> {train.state = ["w", "exp_avg_sq"]},
    %mean: tensor<4xf32> {train.buffer = "norm.mean"},
    %mask: tensor<2x2xi1> {train.constant = "mask", train.value = dense<[[1, 0], [1, 1]]> : tensor<2x2xi1>},
    %zeros: tensor<4xf32> {train.constant = "zeros", train.value = dense<0.0> : tensor<4xf32>},
    %x: tensor<6x4xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>},
    %step_count: tensor<f32> {train.step_count},
    %lr: tensor<f32> {train.learning_rate})
    -> (tensor<f32> {train.loss}, tensor<4xf32> {train.updates = 0 : i64}, tensor<4xf32> {train.updates = 1 : i64}, tensor<4xf32> {train.updates = 2 : i64}, tensor<4xf32> {train.updates = 3 : i64}, tensor<f32> {train.updates = 7 : i64}, tensor<4xf32> {train.grad = "w"})
    attributes {train.optimizer = {kind = "adamw", lr = 0.001 : f64, eps = 1.0e-08 : f64}} {
  %count = train.increment %step_count {spmd.signature = #spmd.sig<@mesh, ([]) -> ([])>} : (tensor<f32>) -> tensor<f32>
  %h = aten.mul.Tensor %x, %w {spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}], [{}]) -> ([{"dp"}, {}])>} : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6x4xf32> loc("scale"("model.py":3:0))
  %a = aten.sum.dim_IntList %h {dim = [0], spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}]) -> ([{}], unreduced={"dp"})>} : (tensor<6x4xf32>) -> tensor<4xf32> loc("scale"("model.py":4:0))
  %b = aten.sum.dim_IntList %x {dim = [0], spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}]) -> ([{}], unreduced={"dp"})>} : (tensor<6x4xf32>) -> tensor<4xf32> loc("scale"("model.py":4:0))
  %g = aten.add.Tensor %a, %b {train.backward, spmd.signature = #spmd.sig<@mesh, ([{}], unreduced={"dp"}, [{}], unreduced={"dp"}) -> ([{}], unreduced={"dp"})>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32> loc("scale"("model.py":4:0))
  %g.1 = spmd.all_reduce [{"dp"}] %g out_sharding = <@mesh, [{}]> : tensor<4xf32>
  %kept = aten.add.Tensor %g.1, %zeros {spmd.signature = #spmd.sig<@mesh, ([{}], [{}]) -> ([{}])>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %mean.new = aten.add.Tensor %mean, %kept {spmd.signature = #spmd.sig<@mesh, ([{}], [{}]) -> ([{}])>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32> loc("norm")
  %w.new, %m.new, %v.new = train.adamw %w, %g.1, %m, %v, %count, %lr {beta1 = 0.9 : f64, beta2 = 0.999 : f64, eps = 1.0e-08 : f64, weight_decay = 0.01 : f64, spmd.signature = #spmd.sig<@mesh, ([{}], [{}], [{}], [{}], [], []) -> ([{}], [{}], [{}])>} : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)
  spmd.free %kept, %zeros, %m : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  %s = aten.sum %w {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([])>} : (tensor<4xf32>) -> tensor<f32>
  func.return %s, %w.new, %m.new, %v.new, %mean.new, %count, %g.1 : tensor<f32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<4xf32>
}
