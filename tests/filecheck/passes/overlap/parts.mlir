// RUN: opt-tool %s --pass-pipeline=overlap | filecheck %s

// Reductions for every part of the batch do not share a bucket with reductions after all parts.

spmd.mesh @mesh = <["micro"=2 temporal, "gpu"=2]>
func.func @step(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}]>},
    %y: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> (tensor<f32>, tensor<f32>) {
  %m = spmd.slice [{"micro"}] %x out_sharding = <@mesh, [{"micro"}]> : tensor<8xf32>
  %p = spmd.slice [{"gpu"}] %m out_sharding = <@mesh, [{"micro", "gpu"}]> : tensor<8xf32>
  %a = aten.sum %p {spmd.signature = #spmd.sig<@mesh, ([{"micro", "gpu"}]) -> ([], unreduced={"micro", "gpu"})>}
    : (tensor<8xf32>) -> tensor<f32>
  %b = aten.sum %y {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}]) -> ([], unreduced={"gpu"})>}
    : (tensor<8xf32>) -> tensor<f32>
  // CHECK-DAG: spmd.start "all_reduce" %a out_shardings
  // CHECK-DAG: spmd.start "all_reduce" %b out_shardings
  %c = spmd.all_reduce [{"gpu"}] %a out_sharding = <@mesh, [], unreduced={"micro"}> : tensor<f32>
  %d = spmd.all_reduce [{"gpu"}] %b out_sharding = <@mesh, []> : tensor<f32>
  %e = spmd.all_reduce [{"micro"}] %c out_sharding = <@mesh, []> : tensor<f32>
  func.return %e, %d : tensor<f32>, tensor<f32>
}
