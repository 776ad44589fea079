// RUN: opt-tool %s --pass-pipeline='annotate-costs,annotate-costs{remove=true}' | filecheck %s
// RUN: opt-tool %s --pass-pipeline='annotate-costs,annotate-costs' | filecheck %s --check-prefix=TWICE

spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#spmd.device<"a", flops = {float32 = 1.0e9}, bandwidth = 1.0e3, memory = 1.0e9, launch = 0.0>] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0, beta = 1.0e-3>]

// CHECK-NOT:  cost.
// CHECK:      aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>} :
// CHECK-NOT:  cost.

// TWICE:      aten.relu %x
// TWICE-SAME:   cost.seconds = 4.000000e+00 : f64, cost.flops = 5.000000e+02 : f64, cost.bytes = 4.000000e+03 : f64} :
func.func @step(%x: tensor<500xf32>) -> tensor<500xf32> {
  %y = aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>} : (tensor<500xf32>) -> tensor<500xf32>
  func.return %y : tensor<500xf32>
}
