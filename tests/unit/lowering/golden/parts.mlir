// A loop over parts of the batch: sizes that differ by rank and part, parts that are empty, sums in place or in memory
// of their own (a view that another result looks at, a repeated one), a maximum, and parts that are put together.
spmd.mesh @mesh = <["t"=2 temporal, "dp"=2]>
func.func @step(
    %x: tensor<5x3xf32> {train.batch = "x", spmd.sharding = #spmd.sharding<@mesh, [{}, {"dp"}]>},
    %w: tensor<1x3xf32> {train.param = "w", spmd.sharding = #spmd.sharding<@mesh, [{}, {"dp"}]>})
    -> (tensor<f32> {train.loss}, tensor<3xf32> {train.grad = "sum"}, tensor<3x1xf32> {train.grad = "view"}, tensor<2x3xf32> {train.grad = "repeated"}, tensor<3xf32> {train.grad = "max"}, tensor<5x3xf32> {train.grad = "all"}) {
  %e = aten.exp %w {spmd.signature = #spmd.sig<@mesh, ([{}, {"dp"}]) -> ([{}, {"dp"}])>} : (tensor<1x3xf32>) -> tensor<1x3xf32>
  %f:6 = pipe.fragment "micro" over "t" -> tensor<f32>, tensor<3xf32>, tensor<3x1xf32>, tensor<2x3xf32>, tensor<3xf32>, tensor<5x3xf32> {
    %part = spmd.slice [{"t"}, {}] %x out_sharding = <@mesh, [{"t"}, {"dp"}], offsets={0: [0, 5, 5]}> : tensor<5x3xf32>
    %sums = aten.expand %e {size = [5, 3], spmd.signature = #spmd.sig<@mesh, ([{}, {"dp"}]) -> ([{"t"}, {"dp"}], offsets={0: [0, 5, 5]})>} : (tensor<1x3xf32>) -> tensor<5x3xf32>
    %h = aten.mul.Tensor %part, %sums {spmd.signature = #spmd.sig<@mesh, ([{"t"}, {"dp"}], offsets={0: [0, 5, 5]}, [{"t"}, {"dp"}], offsets={0: [0, 5, 5]}) -> ([{"t"}, {"dp"}], offsets={0: [0, 5, 5]})>} : (tensor<5x3xf32>, tensor<5x3xf32>) -> tensor<5x3xf32>
    %s = aten.sum %h {spmd.signature = #spmd.sig<@mesh, ([{"t"}, {"dp"}], offsets={0: [0, 5, 5]}) -> ([], unreduced={"t", "dp"})>} : (tensor<5x3xf32>) -> tensor<f32>
    %g = aten.sum.dim_IntList %h {dim = [0], spmd.signature = #spmd.sig<@mesh, ([{"t"}, {"dp"}], offsets={0: [0, 5, 5]}) -> ([{"dp"}], unreduced={"t"})>} : (tensor<5x3xf32>) -> tensor<3xf32>
    %g.1 = aten.view %g {size = [3, 1], spmd.signature = #spmd.sig<@mesh, ([{"dp"}], unreduced={"t"}) -> ([{"dp"}, {}], unreduced={"t"})>} : (tensor<3xf32>) -> tensor<3x1xf32>
    %k = aten.neg %g {spmd.signature = #spmd.sig<@mesh, ([{"dp"}], unreduced={"t"}) -> ([{"dp"}], unreduced={"t"})>} : (tensor<3xf32>) -> tensor<3xf32>
    %r = aten.expand %k {size = [2, 3], spmd.signature = #spmd.sig<@mesh, ([{"dp"}], unreduced={"t"}) -> ([{}, {"dp"}], unreduced={"t"})>} : (tensor<3xf32>) -> tensor<2x3xf32>
    %m = aten.amax %h {dim = [0], spmd.signature = #spmd.sig<@mesh, ([{"t"}, {"dp"}], offsets={0: [0, 5, 5]}) -> ([{"dp"}], unreduced={"t" max})>} : (tensor<5x3xf32>) -> tensor<3xf32>
    %whole = spmd.all_gather [{}, {"dp"}] %h out_sharding = <@mesh, [{"t"}, {}], offsets={0: [0, 5, 5]}> : tensor<5x3xf32>
    pipe.yield %s, %g, %g.1, %r, %m, %whole : tensor<f32>, tensor<3xf32>, tensor<3x1xf32>, tensor<2x3xf32>, tensor<3xf32>, tensor<5x3xf32>
  }
  %s.1 = spmd.all_reduce [{"t"}] %f#0 out_sharding = <@mesh, [], unreduced={"dp"}> : tensor<f32>
  %loss = spmd.all_reduce [{"dp"}] %s.1 out_sharding = <@mesh, []> : tensor<f32>
  %g.2 = spmd.all_reduce [{"t"}] %f#1 out_sharding = <@mesh, [{"dp"}]> : tensor<3xf32>
  %g.4 = spmd.all_reduce [{"t"}] %f#2 out_sharding = <@mesh, [{"dp"}, {}]> : tensor<3x1xf32>
  %r.1 = spmd.all_reduce [{"t"}] %f#3 out_sharding = <@mesh, [{}, {"dp"}]> : tensor<2x3xf32>
  %m.1 = spmd.all_reduce [{"t"}] %f#4 out_sharding = <@mesh, [{"dp"}]> : tensor<3xf32>
  %all = spmd.all_gather [{"t"}, {}] %f#5 out_sharding = <@mesh, [{}, {}]> : tensor<5x3xf32>
  func.return %loss, %g.2, %g.4, %r.1, %m.1, %all : tensor<f32>, tensor<3xf32>, tensor<3x1xf32>, tensor<2x3xf32>, tensor<3xf32>, tensor<5x3xf32>
}
