// RUN: opt-tool %s --mlir-print-debuginfo=false | filecheck %s

// Ranks that share a NIC share a list of their tasks. The two senders begin with different hosts,
// so that they do not compete.

spmd.mesh @stage0 = <["node"=2]> on [0, 1]
spmd.mesh @stage1 = <["node"=2, "gpu"=2]> on [2, 3, 4, 5]

func.func @step(%x: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@stage0, [{"node"}, {}]>, pipe.stage = 0 : i64}) -> tensor<4x4xf32> attributes {pipe.stages = ["stage0", "stage1"]} {
  // CHECK: 1 to [4, 5]>] order = <[0]: [0, 1], [1]: [3, 2], [2, 3]: [0, 2], [4, 5]: [3, 1]> : tensor<4x4xf32>
  %h = pipe.transfer "h" %x to @stage1 out_sharding = <@stage1, [{}, {"node"}]>
    tasks = [#pipe.task<part 0, [0:2, 0:2], 0 to [2, 3]>, #pipe.task<part 0, [0:2, 2:4], 0 to [4, 5]>,
             #pipe.task<part 0, [2:4, 0:2], 1 to [2, 3]>, #pipe.task<part 0, [2:4, 2:4], 1 to [4, 5]>]
    order = <[0]: [0, 1], [1]: [3, 2], [2, 3]: [0, 2], [4, 5]: [3, 1]> : tensor<4x4xf32>
  func.return %h : tensor<4x4xf32>
}
