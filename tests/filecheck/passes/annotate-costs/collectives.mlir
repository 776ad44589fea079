// RUN: opt-tool %s --pass-pipeline='annotate-costs' | filecheck %s

// The relu reads and writes 4,000 bytes: 4 s. The all-reduce of 2,000 bytes takes 1 s and 2 s of bytes, and is hidden
// behind the relu; the gather takes 1 s and 1 s and is waited for.

spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#spmd.device<"a", flops = {float32 = 1.0e9}, bandwidth = 1.0e3, memory = 1.0e9, launch = 0.0>] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0, beta = 1.0e-3>]

// CHECK:       cost.step = {seconds = 6.000000e+00 : f64, compute = 4.000000e+00 : f64, waiting = 2.000000e+00 : f64, peak_bytes = 11000 : i64}
// CHECK:         spmd.start "all_reduce" %p
// CHECK-SAME:      cost.seconds = 3.000000e+00 : f64, cost.bytes = 2.000000e+03 : f64
// CHECK-NEXT:    aten.relu %x
// CHECK-SAME:      cost.seconds = 4.000000e+00 : f64, cost.flops = 5.000000e+02 : f64, cost.bytes = 4.000000e+03 : f64
// CHECK-NEXT:    spmd.wait
// CHECK-NOT:       cost.
// CHECK-NEXT:    spmd.all_gather
// CHECK-SAME:      cost.seconds = 2.000000e+00 : f64, cost.bytes = 1.000000e+03 : f64
func.func @step(%p: tensor<500xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}], unreduced={"gpu"}>}, %x: tensor<500xf32>, %h: tensor<500xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> (tensor<500xf32>, tensor<500xf32>, tensor<500xf32>) {
  %t = spmd.start "all_reduce" %p out_shardings = [#spmd.sharding<@mesh, [{}]>] : tensor<500xf32>
  %y = aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>} : (tensor<500xf32>) -> tensor<500xf32>
  %z = spmd.wait %t : tensor<500xf32>
  %w = spmd.all_gather [{"gpu"}] %h out_sharding = <@mesh, [{}]> : tensor<500xf32>
  func.return %y, %z, %w : tensor<500xf32>, tensor<500xf32>, tensor<500xf32>
}
