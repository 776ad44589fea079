// RUN: opt-tool %s --pass-pipeline='annotate-costs' | filecheck %s

// Each of the two ranks of the first stage sends 1,000 of 2,000 bytes to the one rank of the second: their ports are
// busy for 1 s, but its port takes in 2 s of bytes, after 0.5 s of latency. Then its relu moves 4,000 bytes in 4 s.

#device = #spmd.device<"a", flops = {float32 = 1.0e9}, bandwidth = 1.0e3, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["gpu"=3]>
spmd.mesh @stage0 = <["gpu"=2]> on [0, 1]
spmd.mesh @stage1 = <["gpu"=1]> on [2]
spmd.cluster @three on @mesh devices [#device] placement [0, 0, 0] links [#spmd.link<"gpu", alpha = 0.5, beta = 1.0e-3>]
spmd.cluster @first on @stage0 devices [#device] placement [0, 0] links [#spmd.link<"gpu", alpha = 0.5, beta = 1.0e-3>]
spmd.cluster @second on @stage1 devices [#device] placement [0] links [#spmd.link<"gpu", alpha = 0.5, beta = 1.0e-3>]

// CHECK:       cost.step = {seconds = 6.500000e+00 : f64, compute = 4.000000e+00 : f64, waiting = 2.500000e+00 : f64, peak_bytes = 4000 : i64}
// CHECK:         pipe.transfer "x" %x
// CHECK-SAME:      cost.seconds = 2.500000e+00 : f64, cost.bytes = 1.000000e+03 : f64
// CHECK-NEXT:    aten.relu
// CHECK-SAME:      cost.seconds = 4.000000e+00 : f64
func.func @step(%x: tensor<500xf32> {pipe.stage = 0 : i64, spmd.sharding = #spmd.sharding<@stage0, [{"gpu"}]>}) -> tensor<500xf32> attributes {pipe.stages = ["stage0", "stage1"]} {
  %h = pipe.transfer "x" %x to @stage1 out_sharding = <@stage1, [{}]> tasks = [#pipe.task<part 0, [0:250], 0 to [2]>, #pipe.task<part 0, [250:500], 1 to [2]>] : tensor<500xf32>
  %y = aten.relu %h {pipe.stage = 1 : i64, spmd.signature = #spmd.sig<@stage1, ([{}]) -> ([{}])>} : (tensor<500xf32>) -> tensor<500xf32>
  func.return %y : tensor<500xf32>
}
