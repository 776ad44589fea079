// A pipeline: a stage of one rank and one of two, two parts, gradients back and summed, a weight of the first that the
// second uses too, a value that is there before the loop, and a loss on both.
spmd.mesh @stage0 = <["micro"=2 temporal, "gpu"=1]> on [0]
spmd.mesh @stage1 = <["micro"=2 temporal, "gpu"=2]> on [1, 2]
func.func @step(
    %v: tensor<3x3xf32> {train.param = "first.weight", pipe.stage = 0 : i64, spmd.sharding = #spmd.sharding<@stage0, [{}, {}]>},
    %x: tensor<4x3xf32> {train.batch = "x", pipe.stage = 0 : i64, spmd.sharding = #spmd.sharding<@stage0, [{}, {}]>},
    %w: tensor<3x3xf32> {train.param = "last.weight", pipe.stage = 1 : i64, spmd.sharding = #spmd.sharding<@stage1, [{}, {"gpu"}]>})
    -> (tensor<f32> {train.loss}, tensor<3x3xf32> {train.grad = "first.weight"}, tensor<f32> {train.loss},
        tensor<3x3xf32> {train.grad = "last.weight", spmd.sharding = #spmd.sharding<@stage1, [{}, {"gpu"}]>}) attributes {
  pipe.stages = ["stage0", "stage1"],
  pipe.schedule = [
    [#pipe.slot<start "g" 0>, #pipe.slot<run "forward0" 0>, #pipe.slot<start "h" 0>, #pipe.slot<run "forward0" 1>,
     #pipe.slot<start "h" 1>, #pipe.slot<wait "g" 0>, #pipe.slot<run "weights0" 0>, #pipe.slot<start "g" 1>,
     #pipe.slot<wait "g" 1>, #pipe.slot<run "weights0" 1>],
    [#pipe.slot<start "h" 0>, #pipe.slot<start "h" 1>, #pipe.slot<wait "h" 0>, #pipe.slot<run "forward1" 0>,
     #pipe.slot<run "backward1" 0>, #pipe.slot<start "g" 0>, #pipe.slot<wait "h" 1>, #pipe.slot<run "forward1" 1>,
     #pipe.slot<run "backward1" 1>, #pipe.slot<start "g" 1>]
  ]
} {
  %tied = pipe.transfer "tied" %v to @stage1 out_sharding = <@stage1, [{}, {}]> tasks = [#pipe.task<part 0, [0:3, 0:3], 0 to [1, 2]>] : tensor<3x3xf32>
  %e = aten.exp %tied {pipe.stage = 1 : i64, spmd.signature = #spmd.sig<@stage1, ([{}, {}]) -> ([{}, {}])>} : (tensor<3x3xf32>) -> tensor<3x3xf32>
  %x.part, %h = pipe.fragment "forward0" stage 0 : i64 over "micro" -> tensor<4x3xf32>, tensor<4x3xf32> {
    %0 = spmd.slice [{"micro"}, {}] %x out_sharding = <@stage0, [{"micro"}, {}]> : tensor<4x3xf32>
    %h.in = aten.mm %0, %v {pipe.stage = 0 : i64, spmd.signature = #spmd.sig<@stage0, ([{"micro"}, {}], [{}, {}]) -> ([{"micro"}, {}])>} : (tensor<4x3xf32>, tensor<3x3xf32>) -> tensor<4x3xf32>
    pipe.yield %0, %h.in : tensor<4x3xf32>, tensor<4x3xf32>
  }
  %h.at1 = pipe.transfer "h" %h to @stage1 out_sharding = <@stage1, [{"micro"}, {}]>
    tasks = [#pipe.task<part 0, [0:2, 0:3], 0 to [1, 2]>, #pipe.task<part 1, [2:4, 0:3], 0 to [2, 1]>] : tensor<4x3xf32>
  %y, %loss = pipe.fragment "forward1" stage 1 : i64 over "micro" -> tensor<4x3xf32>, tensor<f32> {
    %m = aten.mm %h.at1, %e {pipe.stage = 1 : i64, spmd.signature = #spmd.sig<@stage1, ([{"micro"}, {}], [{}, {}]) -> ([{"micro"}, {}])>} : (tensor<4x3xf32>, tensor<3x3xf32>) -> tensor<4x3xf32>
    %z = aten.mm %m, %w {pipe.stage = 1 : i64, spmd.signature = #spmd.sig<@stage1, ([{"micro"}, {}], [{}, {"gpu"}]) -> ([{"micro"}, {"gpu"}])>} : (tensor<4x3xf32>, tensor<3x3xf32>) -> tensor<4x3xf32>
    %s = aten.sum %z {pipe.stage = 1 : i64, spmd.signature = #spmd.sig<@stage1, ([{"micro"}, {"gpu"}]) -> ([], unreduced={"micro", "gpu"})>} : (tensor<4x3xf32>) -> tensor<f32>
    pipe.yield %z, %s : tensor<4x3xf32>, tensor<f32>
  }
  %g.w, %g = pipe.fragment "backward1" stage 1 : i64 over "micro" -> tensor<3x3xf32>, tensor<4x3xf32> {
    %t = aten.t %h.at1 {pipe.stage = 1 : i64, spmd.signature = #spmd.sig<@stage1, ([{"micro"}, {}]) -> ([{}, {"micro"}])>} : (tensor<4x3xf32>) -> tensor<3x4xf32>
    %gw = aten.mm %t, %y {pipe.stage = 1 : i64, spmd.signature = #spmd.sig<@stage1, ([{}, {"micro"}], [{"micro"}, {"gpu"}]) -> ([{}, {"gpu"}], unreduced={"micro"})>} : (tensor<3x4xf32>, tensor<4x3xf32>) -> tensor<3x3xf32>
    %wt = aten.t %w {pipe.stage = 1 : i64, spmd.signature = #spmd.sig<@stage1, ([{}, {"gpu"}]) -> ([{"gpu"}, {}])>} : (tensor<3x3xf32>) -> tensor<3x3xf32>
    %gh = aten.mm %y, %wt {pipe.stage = 1 : i64, spmd.signature = #spmd.sig<@stage1, ([{"micro"}, {"gpu"}], [{"gpu"}, {}]) -> ([{"micro"}, {}], unreduced={"gpu"})>} : (tensor<4x3xf32>, tensor<3x3xf32>) -> tensor<4x3xf32>
    %gr = spmd.reduce_scatter [{"gpu"}, {}] %gh out_sharding = <@stage1, [{"micro", "gpu"}, {}]> : tensor<4x3xf32>
    pipe.yield %gw, %gr : tensor<3x3xf32>, tensor<4x3xf32>
  }
  %g.at0 = pipe.transfer "g" %g to @stage0 out_sharding = <@stage0, [{"micro"}, {}]>
    tasks = [#pipe.task<part 0, [0:1, 0:3], 1 to [0]>, #pipe.task<part 0, [1:2, 0:3], 2 to [0]>,
             #pipe.task<part 1, [2:3, 0:3], 1 to [0]>, #pipe.task<part 1, [3:4, 0:3], 2 to [0]>] : tensor<4x3xf32>
  %g.v = pipe.fragment "weights0" stage 0 : i64 over "micro" -> tensor<3x3xf32> {
    %xt = aten.t %x.part {pipe.stage = 0 : i64, spmd.signature = #spmd.sig<@stage0, ([{"micro"}, {}]) -> ([{}, {"micro"}])>} : (tensor<4x3xf32>) -> tensor<3x4xf32>
    %gv = aten.mm %xt, %g.at0 {pipe.stage = 0 : i64, spmd.signature = #spmd.sig<@stage0, ([{}, {"micro"}], [{"micro"}, {}]) -> ([{}, {}], unreduced={"micro"})>} : (tensor<3x4xf32>, tensor<4x3xf32>) -> tensor<3x3xf32>
    pipe.yield %gv : tensor<3x3xf32>
  }
  %loss.sum = spmd.all_reduce [{"micro"}] %loss out_sharding = <@stage1, [], unreduced={"gpu"}> : tensor<f32>
  %loss.all = spmd.all_reduce [{"gpu"}] %loss.sum out_sharding = <@stage1, []> : tensor<f32>
  %loss.at0 = pipe.transfer "loss" %loss.all to @stage0 out_sharding = <@stage0, []> tasks = [#pipe.task<part 0, [], 1 to [0]>] : tensor<f32>
  %g.v.sum = spmd.all_reduce [{"micro"}] %g.v out_sharding = <@stage0, [{}, {}]> : tensor<3x3xf32>
  %g.w.sum = spmd.all_reduce [{"micro"}] %g.w out_sharding = <@stage1, [{}, {"gpu"}]> : tensor<3x3xf32>
  func.return %loss.at0, %g.v.sum, %loss.all, %g.w.sum : tensor<f32>, tensor<3x3xf32>, tensor<f32>, tensor<3x3xf32>
}
