// RUN: opt-tool %s --pass-pipeline=plan-transfers | filecheck %s

// Parts are sent separately, and each receiver gets exactly its own slice, uneven or not.

spmd.mesh @stage0 = <["micro"=2 temporal, "gpu"=1]> on [0]
spmd.mesh @stage1 = <["micro"=2 temporal, "gpu"=2]> on [1, 2]
func.func @step(%x: tensor<8x4xf32> {pipe.stage = 0 : i64, spmd.sharding = #spmd.sharding<@stage0, [{"micro"}, {}]>})
    -> tensor<8x4xf32> attributes {pipe.stages = ["stage0", "stage1"]} {
  // CHECK: tasks = [#pipe.task<part 0, [0:4, 0:3], 0 to [1]>, #pipe.task<part 0, [0:4, 3:4], 0 to [2]>, #pipe.task<part 1, [4:8, 0:3], 0 to [1]>, #pipe.task<part 1, [4:8, 3:4], 0 to [2]>]
  %h = pipe.transfer "h" %x to @stage1 out_sharding = <@stage1, [{"micro"}, {"gpu"}], offsets={1: [0, 3, 4]}> : tensor<8x4xf32>
  func.return %h : tensor<8x4xf32>
}
