// An axis of two parts, unrolled: what runs for a part says which; sums are made where both parts are there.
spmd.mesh @mesh = <["t"=2 temporal, "dp"=2]>
func.func @step(
    %x: tensor<7x3xf32> {train.batch = "x"},
    %w: tensor<3xf32> {train.param = "w"})
    -> (tensor<f32> {train.loss}, tensor<3xf32> {train.grad = "max"}, tensor<3xf32> {train.grad = "view"}) {
  %x.a = spmd.slice [{"t"}, {}] %x out_sharding = <@mesh, [{"t"}, {}]> {spmd.at = {"t" = 0 : i64}} : tensor<7x3xf32>
  %x.b = spmd.slice [{"t"}, {}] %x out_sharding = <@mesh, [{"t"}, {}]> {spmd.at = {"t" = 1 : i64}} : tensor<7x3xf32>
  %v.a = aten.view %x.a {size = [21], spmd.at = {"t" = 0 : i64}, spmd.signature = #spmd.sig<@mesh, ([{"t"}, {}]) -> ([{"t"}], offsets={0: [0, 9, 21]})>} : (tensor<7x3xf32>) -> tensor<21xf32>
  %v.b = aten.view %x.b {size = [21], spmd.at = {"t" = 1 : i64}, spmd.signature = #spmd.sig<@mesh, ([{"t"}, {}]) -> ([{"t"}], offsets={0: [0, 9, 21]})>} : (tensor<7x3xf32>) -> tensor<21xf32>
  %s.a = aten.sum %v.a {spmd.at = {"t" = 0 : i64}, spmd.signature = #spmd.sig<@mesh, ([{"t"}], offsets={0: [0, 9, 21]}) -> ([], unreduced={"t"})>} : (tensor<21xf32>) -> tensor<f32>
  %s.b = aten.sum %v.b {spmd.at = {"t" = 1 : i64}, spmd.signature = #spmd.sig<@mesh, ([{"t"}], offsets={0: [0, 9, 21]}) -> ([], unreduced={"t"})>} : (tensor<21xf32>) -> tensor<f32>
  %loss = spmd.accumulate %s.a, %s.b out_sharding = <@mesh, []> : tensor<f32>
  %m.a = aten.amax %x.a {dim = [0], spmd.at = {"t" = 0 : i64}, spmd.signature = #spmd.sig<@mesh, ([{"t"}, {}]) -> ([{}], unreduced={"t" max})>} : (tensor<7x3xf32>) -> tensor<3xf32>
  %m.b = aten.amax %x.b {dim = [0], spmd.at = {"t" = 1 : i64}, spmd.signature = #spmd.sig<@mesh, ([{"t"}, {}]) -> ([{}], unreduced={"t" max})>} : (tensor<7x3xf32>) -> tensor<3xf32>
  %m = spmd.accumulate %m.a, %m.b out_sharding = <@mesh, [{}]> : tensor<3xf32>
  %g.a = aten.sum.dim_IntList %x.a {dim = [0], spmd.at = {"t" = 0 : i64}, spmd.signature = #spmd.sig<@mesh, ([{"t"}, {}]) -> ([{}], unreduced={"t"})>} : (tensor<7x3xf32>) -> tensor<3xf32>
  %g.b = aten.sum.dim_IntList %x.b {dim = [0], spmd.at = {"t" = 1 : i64}, spmd.signature = #spmd.sig<@mesh, ([{"t"}, {}]) -> ([{}], unreduced={"t"})>} : (tensor<7x3xf32>) -> tensor<3xf32>
  %g = spmd.accumulate %g.a, %g.b out_sharding = <@mesh, [{}]> : tensor<3xf32>
  func.return %loss, %m, %g : tensor<f32>, tensor<3xf32>, tensor<3xf32>
}
