// RUN: opt-tool %s --pass-pipeline=plan-transfers | filecheck %s

// Receivers of a host are adjacent in the chain, so that the host gets one copy; the hosts that hold a slice take
// turns to send.

spmd.mesh @stage0 = <["node"=2, "gpu"=2]> on [0, 1, 2, 3]
spmd.mesh @stage1 = <["node"=2, "gpu"=2]> on [4, 5, 6, 7]
func.func @step(%x: tensor<4xf32> {pipe.stage = 0 : i64, spmd.sharding = #spmd.sharding<@stage0, [{"gpu"}]>})
    -> tensor<4xf32> attributes {pipe.stages = ["stage0", "stage1"]} {
  // CHECK: tasks = [#pipe.task<part 0, [0:2], 0 to [4, 5, 6, 7]>, #pipe.task<part 0, [2:4], 3 to [4, 5, 6, 7]>]
  %h = pipe.transfer "h" %x to @stage1 out_sharding = <@stage1, [{}]> : tensor<4xf32>
  func.return %h : tensor<4xf32>
}
