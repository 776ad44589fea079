// Parts of different sizes: views, and every collective.
spmd.mesh @mesh = <["dp"=2, "tp"=2]>
func.func @step(
    %table: tensor<7x5xf32> {train.param = "table", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>},
    %x: tensor<7x6xf32> {train.batch = "x", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>})
    -> (tensor<f32> {train.loss}, tensor<7x5xf32> {train.grad = "table"}, tensor<6x7xf32> {train.grad = "x"}) {
  %wide = aten.view %x {size = [7, 2, 3], spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}]) -> ([{"dp"}, {}, {}])>} : (tensor<7x6xf32>) -> tensor<7x2x3xf32>
  %again = aten.view %x {size = [7, 2, 3], spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}]) -> ([{"dp"}, {}, {}])>} : (tensor<7x6xf32>) -> tensor<7x2x3xf32>
  %both = aten.mul.Tensor %wide, %again {spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}, {}], [{"dp"}, {}, {}]) -> ([{"dp"}, {}, {}])>} : (tensor<7x2x3xf32>, tensor<7x2x3xf32>) -> tensor<7x2x3xf32>
  %narrow = aten.view %both {size = [7, 6], spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}, {}]) -> ([{"dp"}, {}])>} : (tensor<7x2x3xf32>) -> tensor<7x6xf32>
  %whole = spmd.all_gather [{"dp"}, {}] %narrow out_sharding = <@mesh, [{}, {}]> : tensor<7x6xf32>
  %moved = spmd.all_to_all [{}, {"dp"}] %narrow out_sharding = <@mesh, [{}, {"dp"}]> : tensor<7x6xf32>
  %back = spmd.all_gather [{}, {"dp"}] %moved out_sharding = <@mesh, [{}, {}]> : tensor<7x6xf32>
  %part = spmd.slice [{"dp"}, {}] %back out_sharding = <@mesh, [{"dp"}, {}], offsets={0: [0, 2, 7]}> : tensor<7x6xf32>
  %even = spmd.slice [{"dp", "tp"}, {}] %whole out_sharding = <@mesh, [{"dp", "tp"}, {}]> : tensor<7x6xf32>
  %inner = spmd.all_gather [{"tp"}, {}] %even out_sharding = <@mesh, [{"dp"}, {}]> : tensor<7x6xf32>
  %restored = spmd.all_gather [{"dp"}, {}] %inner out_sharding = <@mesh, [{}, {}]> : tensor<7x6xf32>
  %t = aten.t %restored {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>} : (tensor<7x6xf32>) -> tensor<6x7xf32>
  %apart = spmd.all_gather [{"dp"}, {}] %part out_sharding = <@mesh, [{}, {}]> : tensor<7x6xf32>
  %split = spmd.partial [{"tp"}] %apart out_sharding = <@mesh, [{}, {}], unreduced={"tp"}> : tensor<7x6xf32>
  %mine = spmd.reduce_scatter [{"tp"}, {}] %split out_sharding = <@mesh, [{"tp"}, {}], offsets={0: [0, 1, 7]}> : tensor<7x6xf32>
  %total = aten.sum %mine {spmd.signature = #spmd.sig<@mesh, ([{"tp"}, {}], offsets={0: [0, 1, 7]}) -> ([], unreduced={"tp"})>} : (tensor<7x6xf32>) -> tensor<f32>
  %loss = spmd.all_reduce [{"tp"}] %total out_sharding = <@mesh, []> : tensor<f32>
  func.return %loss, %table, %t : tensor<f32>, tensor<7x5xf32>, tensor<6x7xf32>
}
