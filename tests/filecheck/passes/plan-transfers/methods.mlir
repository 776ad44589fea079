// RUN: opt-tool %s --pass-pipeline='plan-transfers{method=send_recv}' | filecheck %s --check-prefix=SEND
// RUN: opt-tool %s --pass-pipeline='plan-transfers{method=local_allgather per_host=2}' | filecheck %s --check-prefix=LOCAL

spmd.mesh @stage0 = <["gpu"=1]> on [0]
spmd.mesh @stage1 = <["gpu"=2]> on [2, 3]
func.func @step(%x: tensor<4xf32> {pipe.stage = 0 : i64}) -> tensor<4xf32> attributes {pipe.stages = ["stage0", "stage1"]} {
  // SEND: tasks = [#pipe.task<part 0, [0:4], 0 to [2]>, #pipe.task<part 0, [0:4], 0 to [3]>]
  // LOCAL: tasks = [#pipe.task<part 0, [0:2], 0 to [2, 3]>, #pipe.task<part 0, [2:4], 0 to [3, 2]>]
  %h = pipe.transfer "h" %x to @stage1 out_sharding = <@stage1, [{}]> : tensor<4xf32>
  func.return %h : tensor<4xf32>
}
