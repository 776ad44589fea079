// RUN: opt-tool %s --pass-pipeline=plan-transfers | filecheck %s
// RUN: opt-tool %s --pass-pipeline='plan-transfers{order=greedy}' | filecheck %s --check-prefix=GREEDY
// RUN: opt-tool %s --pass-pipeline='plan-transfers{order=exact}' | filecheck %s

// Two hosts send halves of rows, two need halves of columns. In the order of the slices both send to the first host, and
// then to the second; in the best order each host sends and receives all the time.

spmd.mesh @stage0 = <["node"=2, "gpu"=2]> on [0, 1, 2, 3]
spmd.mesh @stage1 = <["node"=2, "gpu"=2]> on [4, 5, 6, 7]
func.func @step(%x: tensor<4x4xf32> {pipe.stage = 0 : i64, spmd.sharding = #spmd.sharding<@stage0, [{"node"}, {}]>})
    -> tensor<4x4xf32> attributes {pipe.stages = ["stage0", "stage1"]} {
  // CHECK: tasks = [#pipe.task<part 0, [0:2, 0:2], 0 to [4, 5]>, #pipe.task<part 0, [0:2, 2:4], 1 to [6, 7]>, #pipe.task<part 0, [2:4, 0:2], 3 to [4, 5]>, #pipe.task<part 0, [2:4, 2:4], 2 to [6, 7]>]
  // CHECK-SAME: order = <[0, 1]: [0, 1], [2, 3]: [3, 2], [4, 5]: [0, 2], [6, 7]: [3, 1]>
  // GREEDY: order = <[0, 1]: [0, 1], [2, 3]: [2, 3], [4, 5]: [0, 2], [6, 7]: [1, 3]>
  %h = pipe.transfer "h" %x to @stage1 out_sharding = <@stage1, [{}, {"node"}]> : tensor<4x4xf32>
  func.return %h : tensor<4x4xf32>
}
