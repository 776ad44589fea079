// RUN: opt-tool %s --pass-pipeline='annotate-costs' | filecheck %s

// Ranks 0 and 1 each send 1,000 bytes to each of ranks 2 and 3, 1 s at every port. In turns all four are busy for 2 s,
// after 0.5 s of latency; where both begin with rank 2, rank 1 waits for its port, and then rank 3's.

#device = #spmd.device<"a", flops = {float32 = 1.0e9}, bandwidth = 1.0e3, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 0.5, beta = 1.0e-3>
#rows = #spmd.sharding<@stage0, [{"gpu"}, {}]>
spmd.mesh @mesh = <["gpu"=4]>
spmd.mesh @stage0 = <["gpu"=2]> on [0, 1]
spmd.mesh @stage1 = <["gpu"=2]> on [2, 3]
spmd.cluster @four on @mesh devices [#device] placement [0, 0, 0, 0] links [#link]
spmd.cluster @first on @stage0 devices [#device] placement [0, 0] links [#link]
spmd.cluster @second on @stage1 devices [#device] placement [0, 0] links [#link]

// CHECK-LABEL: @in_turns
// CHECK: pipe.transfer "x"
// CHECK-SAME: cost.seconds = 2.500000e+00 : f64
func.func @in_turns(%x: tensor<500x2xf32> {pipe.stage = 0 : i64, spmd.sharding = #rows}) -> tensor<500x2xf32>
    attributes {pipe.stages = ["stage0", "stage1"]} {
  %h = pipe.transfer "x" %x to @stage1 out_sharding = <@stage1, [{}, {"gpu"}]> tasks = [#pipe.task<part 0, [0:250, 0:1], 0 to [2]>, #pipe.task<part 0, [0:250, 1:2], 0 to [3]>, #pipe.task<part 0, [250:500, 0:1], 1 to [2]>, #pipe.task<part 0, [250:500, 1:2], 1 to [3]>] order = <[0]: [0, 1], [1]: [3, 2], [2]: [0, 2], [3]: [3, 1]> : tensor<500x2xf32>
  func.return %h : tensor<500x2xf32>
}

// CHECK-LABEL: @one_after_the_other
// CHECK: pipe.transfer "x"
// CHECK-SAME: cost.seconds = 3.500000e+00 : f64
func.func @one_after_the_other(%x: tensor<500x2xf32> {pipe.stage = 0 : i64, spmd.sharding = #rows}) -> tensor<500x2xf32>
    attributes {pipe.stages = ["stage0", "stage1"]} {
  %h = pipe.transfer "x" %x to @stage1 out_sharding = <@stage1, [{}, {"gpu"}]> tasks = [#pipe.task<part 0, [0:250, 0:1], 0 to [2]>, #pipe.task<part 0, [0:250, 1:2], 0 to [3]>, #pipe.task<part 0, [250:500, 0:1], 1 to [2]>, #pipe.task<part 0, [250:500, 1:2], 1 to [3]>] order = <[0]: [0, 1], [1]: [2, 3], [2]: [0, 2], [3]: [1, 3]> : tensor<500x2xf32>
  func.return %h : tensor<500x2xf32>
}
