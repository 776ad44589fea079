// RUN: opt-tool %s --pass-pipeline='search-strategy,insert-resharding' | filecheck %s

// Each stage is searched on its own mesh; the sharding of received values is part of the choice.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#fast = #spmd.link<"gpu", alpha = 1.0e-9, beta = 1.0e-12>
spmd.mesh @stage0 = <["gpu"=1]> on [0]
spmd.cluster @c0 on @stage0 devices [#cpu] placement [0] links [#fast]
spmd.mesh @stage1 = <["gpu"=2]> on [1, 2]
spmd.cluster @c1 on @stage1 devices [#cpu] placement [0, 0] links [#fast]
func.func @step(%v: tensor<64x64xf32> {train.param = "a", pipe.stage = 0 : i64}) -> (tensor<64x64xf32>)
    attributes {pipe.stages = ["stage0", "stage1"]} {
  // CHECK: aten.exp %v {pipe.stage = 0 : i64, spmd.signature = #spmd.sig<@stage0,
  %a = aten.exp %v {pipe.stage = 0 : i64} : (tensor<64x64xf32>) -> tensor<64x64xf32>
  // CHECK-NEXT: pipe.transfer "a" %a to @stage1 out_sharding = <@stage1, [{"gpu"}, {}]>
  %a.at1 = pipe.transfer "a" %a to @stage1 : tensor<64x64xf32>
  // CHECK-NEXT: aten.exp %a.at1 {pipe.stage = 1 : i64, spmd.signature = #spmd.sig<@stage1, ([{"gpu"}, {}]) -> ([{"gpu"}, {}])>}
  %b = aten.exp %a.at1 {pipe.stage = 1 : i64} : (tensor<64x64xf32>) -> tensor<64x64xf32>
  func.return %b : tensor<64x64xf32>
}
