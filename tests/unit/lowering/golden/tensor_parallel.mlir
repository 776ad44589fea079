spmd.mesh @mesh = <["dp"=2, "tp"=2]>
func.func @step(
    %fc1.weight: tensor<8x6xf32> {train.param = "fc1.weight", spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
    %x: tensor<4x6xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>},
    %step_count: tensor<f32> {train.step_count},
    %lr: tensor<f32> {train.learning_rate})
    -> (tensor<f32> {train.loss}, tensor<8x6xf32> {train.updates = 0 : i64}, tensor<f32> {train.updates = 2 : i64})
    attributes {train.optimizer = {kind = "sgd", lr = 0.1 : f64}} {
  %step_count.new = train.increment %step_count {spmd.signature = #spmd.sig<@mesh, ([]) -> ([])>} : (tensor<f32>) -> tensor<f32>
  %t = aten.t %fc1.weight {spmd.signature = #spmd.sig<@mesh, ([{"tp"}, {}]) -> ([{}, {"tp"}])>} : (tensor<8x6xf32>) -> tensor<6x8xf32> loc("fc1"("/home/u/models/mlp.py":12:0))
  %h = aten.mm %x, %t {spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}], [{}, {"tp"}]) -> ([{"dp"}, {"tp"}])>} : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32> loc("fc1"("/home/u/models/mlp.py":12:0))
  %loss = aten.sum %h {spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {"tp"}]) -> ([], unreduced={"dp", "tp"})>} : (tensor<4x8xf32>) -> tensor<f32> loc("loss"("/home/u/models/mlp.py":13:0))
  spmd.free %h : tensor<4x8xf32>
  %loss.1 = spmd.all_reduce [{"dp", "tp"}] %loss out_sharding = <@mesh, []> : tensor<f32>
  %ones = aten.ones {size = [4, 8], spmd.signature = #spmd.sig<@mesh, () -> ([{"dp"}, {"tp"}])>} : () -> tensor<4x8xf32>
  %ones.t = aten.t %ones {spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {"tp"}]) -> ([{"tp"}, {"dp"}])>} : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %g = aten.mm %ones.t, %x {spmd.signature = #spmd.sig<@mesh, ([{"tp"}, {"dp"}], [{"dp"}, {}]) -> ([{"tp"}, {}], unreduced={"dp"})>} : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32> loc("fc1"("/home/u/models/mlp.py":12:0))
  %token = spmd.start "all_reduce" %g out_shardings = [#spmd.sharding<@mesh, [{"tp"}, {}]>] : tensor<8x6xf32>
  %g_1 = spmd.wait %token : tensor<8x6xf32>
  %w.new = train.sgd %fc1.weight, %g_1, %step_count.new, %lr {absent = ["momentum_buffer"], momentum = 0.0 : f64, weight_decay = 0.01 : f64, spmd.signature = #spmd.sig<@mesh, ([{"tp"}, {}], [{"tp"}, {}], [], []) -> ([{"tp"}, {}])>} : (tensor<8x6xf32>, tensor<8x6xf32>, tensor<f32>, tensor<f32>) -> tensor<8x6xf32>
  func.return %loss.1, %w.new, %step_count.new : tensor<f32>, tensor<8x6xf32>, tensor<f32>
}
