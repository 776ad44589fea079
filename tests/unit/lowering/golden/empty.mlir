// Ranks without a part: what is defined on nothing is called all the same, the rest is not.
spmd.mesh @mesh = <["dp"=2, "tp"=2]>
func.func @step(
    %x: tensor<5x4xf32> {train.batch = "x", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}], offsets={0: [0, 5, 5]}>},
    %w: tensor<4x3xf32> {train.param = "w", spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}], offsets={0: [0, 0, 4]}>},
    %b: tensor<3xf32> {train.param = "b"})
    -> (tensor<f32> {train.loss}, tensor<5xf32> {train.grad = "b"}, tensor<4xi64> {train.grad = "i"}) {
  %p = spmd.partial [{"tp"}] %b out_sharding = <@mesh, [{}], unreduced={"tp"}> : tensor<3xf32>
  %s = spmd.slice [{}, {"tp"}] %x out_sharding = <@mesh, [{"dp"}, {"tp"}], offsets={0: [0, 5, 5], 1: [0, 0, 4]}> : tensor<5x4xf32>
  %h = aten.addmm %p, %s, %w {beta = 2.0 : f64, spmd.signature = #spmd.sig<@mesh, ([{}], unreduced={"tp"}, [{"dp"}, {"tp"}], offsets={0: [0, 5, 5], 1: [0, 0, 4]}, [{"tp"}, {}], offsets={0: [0, 0, 4]}) -> ([{"dp"}, {}], unreduced={"tp"}, offsets={0: [0, 5, 5]})>} : (tensor<3xf32>, tensor<5x4xf32>, tensor<4x3xf32>) -> tensor<5x3xf32>
  %h.1 = spmd.all_reduce [{"tp"}] %h out_sharding = <@mesh, [{"dp"}, {}], offsets={0: [0, 5, 5]}> : tensor<5x3xf32>
  %r = aten.relu %h.1 {spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}], offsets={0: [0, 5, 5]}) -> ([{"dp"}, {}], offsets={0: [0, 5, 5]})>} : (tensor<5x3xf32>) -> tensor<5x3xf32>
  %t = aten.t %r {spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}], offsets={0: [0, 5, 5]}) -> ([{}, {"dp"}], offsets={1: [0, 5, 5]})>} : (tensor<5x3xf32>) -> tensor<3x5xf32>
  %v, %i = aten.max.dim %t {dim = 0 : i64, spmd.signature = #spmd.sig<@mesh, ([{}, {"dp"}], offsets={1: [0, 5, 5]}) -> ([{"dp"}], offsets={0: [0, 5, 5]}, [{"dp"}], offsets={0: [0, 5, 5]})>} : (tensor<3x5xf32>) -> (tensor<5xf32>, tensor<5xi64>)
  %all = spmd.all_gather [{"dp"}] %v out_sharding = <@mesh, [{}]> : tensor<5xf32>
  %m = aten.amax %x {dim = [0], spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}], offsets={0: [0, 5, 5]}) -> ([{}], unreduced={"dp" max})>} : (tensor<5x4xf32>) -> tensor<4xf32>
  %m.1 = spmd.all_reduce [{"dp"}] %m out_sharding = <@mesh, [{}]> : tensor<4xf32>
  %k = aten._to_copy %x {dtype = i64, spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}], offsets={0: [0, 5, 5]}) -> ([{"dp"}, {}], offsets={0: [0, 5, 5]})>} : (tensor<5x4xf32>) -> tensor<5x4xi64>
  %low = aten.amin %k {dim = [0], spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}], offsets={0: [0, 5, 5]}) -> ([{}], unreduced={"dp" min})>} : (tensor<5x4xi64>) -> tensor<4xi64>
  %low.1 = spmd.all_reduce [{"dp"}] %low out_sharding = <@mesh, [{}]> : tensor<4xi64>
  %loss = aten.sum %m.1 {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([])>} : (tensor<4xf32>) -> tensor<f32>
  func.return %loss, %all, %low.1 : tensor<f32>, tensor<5xf32>, tensor<4xi64>
}
