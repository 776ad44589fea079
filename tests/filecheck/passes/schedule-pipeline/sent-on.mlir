// RUN: opt-tool %s --verify-diagnostics --pass-pipeline='schedule-pipeline{schedule=gpipe}'

spmd.mesh @stage0 = <["micro"=2 temporal, "gpu"=1]> on [0]
spmd.mesh @stage1 = <["micro"=2 temporal, "gpu"=1]> on [1]
func.func @step(%x: tensor<8xf32> {train.batch = "0", pipe.stage = 0 : i64}) -> tensor<f32>
    attributes {pipe.stages = ["stage0", "stage1"]} {
  %x.slice = spmd.slice [{"micro"}] %x out_sharding = <@stage0, [{"micro"}]> : tensor<8xf32>
  %h = aten.exp %x.slice {spmd.signature = #spmd.sig<@stage0, ([{"micro"}]) -> ([{"micro"}])>}
    : (tensor<8xf32>) -> tensor<8xf32>
  %h.at1 = pipe.transfer "h" %h to @stage1 out_sharding = <@stage1, [{"micro"}]> : tensor<8xf32>
  // expected-error@+1 {{sends %h.at1, expected a result of an op in the loop; send it from there}}
  %h.at0 = pipe.transfer "back" %h.at1 to @stage0 out_sharding = <@stage0, [{"micro"}]> : tensor<8xf32>
  %s = aten.sum %h.at0 {spmd.signature = #spmd.sig<@stage0, ([{"micro"}]) -> ([], unreduced={"micro"})>}
    : (tensor<8xf32>) -> tensor<f32>
  %s.all_reduce = spmd.all_reduce [{"micro"}] %s out_sharding = <@stage0, []> : tensor<f32>
  func.return %s.all_reduce : tensor<f32>
}
