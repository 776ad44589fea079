// RUN: opt-tool %s --pass-pipeline='insert-resharding,select-collectives,annotate-costs,strip-resharding,insert-resharding,select-collectives,overlap,annotate-costs{remove=true}' | filecheck %s

// Other passes ignore costs: they work on a program with costs as on one without.

spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#spmd.device<"a", flops = {float32 = 1.0e9}, bandwidth = 1.0e3, memory = 1.0e9, launch = 0.0>] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0, beta = 1.0e-3>]

// CHECK-LABEL: func.func @step
// CHECK-NEXT:    spmd.start "all_gather" %x
// CHECK-NEXT:    spmd.wait
// CHECK-NEXT:    aten.relu
// CHECK-NEXT:    func.return
// CHECK-NOT:     cost.
func.func @step(%x: tensor<500xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> tensor<500xf32> {
  %y = aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>} : (tensor<500xf32>) -> tensor<500xf32>
  func.return %y : tensor<500xf32>
}
