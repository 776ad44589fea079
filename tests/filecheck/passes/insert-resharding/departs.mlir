// RUN: opt-tool %s --pass-pipeline=insert-resharding | filecheck %s

// A value for another stage must not be partial: it is reduced before, here by a reduce-scatter.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
#rows = #spmd.sharding<@stage0, [{"gpu"}, {}]>
spmd.mesh @stage0 = <["gpu"=2]> on [0, 1]
spmd.cluster @c0 on @stage0 devices [#cpu] placement [0, 0] links [#link]
spmd.mesh @stage1 = <["gpu"=1]> on [2]
spmd.cluster @c1 on @stage1 devices [#cpu] placement [0] links [#link]
func.func @step(%v: tensor<64x64xf32> {pipe.stage = 0 : i64, spmd.sharding = #rows}) -> (tensor<64xf32>)
    attributes {pipe.stages = ["stage0", "stage1"]} {
  %a = aten.sum.dim_IntList %v {dim = [0 : i64], pipe.stage = 0 : i64,
    spmd.signature = #spmd.sig<@stage0, ([{"gpu"}, {}]) -> ([{}], unreduced={"gpu"})>} : (tensor<64x64xf32>) -> tensor<64xf32>
  // CHECK: %a.reduce_scatter = spmd.reshard %a to <@stage0, [{"gpu"}]>
  // CHECK-NEXT: pipe.transfer "a" %a.reduce_scatter to @stage1
  %a.at1 = pipe.transfer "a" %a to @stage1 out_sharding = <@stage1, [{}]> : tensor<64xf32>
  %b = aten.exp %a.at1 {pipe.stage = 1 : i64, spmd.signature = #spmd.sig<@stage1, ([{}]) -> ([{}])>} : (tensor<64xf32>) -> tensor<64xf32>
  func.return %b : tensor<64xf32>
}
