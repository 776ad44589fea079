// RUN: opt-tool %s --pass-pipeline='leave-idle{file="local-4" ranks="3,1"}' --mlir-print-debuginfo=false | filecheck %s
// RUN: not opt-tool %s --pass-pipeline='leave-idle{file="local-4" ranks="1"}' 2>&1 | filecheck %s --check-prefix=FEW
// RUN: not opt-tool %s --pass-pipeline='leave-idle{file="local-4" ranks="0,1,2,3"}' 2>&1 | filecheck %s --check-prefix=MANY
// RUN: not opt-tool %s --pass-pipeline='leave-idle{file="local-4" ranks="1,4"}' 2>&1 | filecheck %s --check-prefix=ALL
// RUN: not opt-tool %s --pass-pipeline='leave-idle{file="local-4" ranks="3,1"},leave-idle{file="h100-8x8" ranks="0,1,2,3"}' 2>&1 | filecheck %s --check-prefix=TWICE
// RUN: not opt-tool %s --pass-pipeline='leave-idle{file="local-4" ranks="one"}' 2>&1 | filecheck %s --check-prefix=TEXT

// The stages keep their meshes, on other ranks, and their transfers are planned anew; the idle ranks are a third stage.
// CHECK: spmd.mesh @job = <["gpu"=4]>
// CHECK-NOT: spmd.mesh @mesh
// CHECK: spmd.mesh @stage0 = <["gpu"=1]> on [3]
// CHECK: spmd.mesh @stage1 = <["gpu"=1]> on [1]
// CHECK: spmd.mesh @idle = <["gpu"=2]> on [0, 2]
// CHECK: pipe.stages = ["stage0", "stage1", "idle"]
// CHECK: pipe.transfer "h" %x to @stage1 out_sharding = <@stage1, [{}]> tasks = [#pipe.task<part 0, [0:8], 3 to [1]>]
// CHECK: pipe.transfer "loss.idle" %loss to @idle out_sharding = <@idle, []> tasks = [#pipe.task<part 0, [], {{[13]}} to [0, 2]>]

// FEW: ranks="1": the program is for 2 ranks
// MANY: ranks="0,1,2,3": the program is for 2 ranks
// ALL: expected different ranks of 'local-4', 0 to 3{{$}}
// TWICE: the module has a mesh @idle; run leave-idle once
// TEXT: ranks="one" file="local-4": invalid literal

spmd.mesh @mesh = <["gpu"=2]>
spmd.mesh @stage0 = <["gpu"=1]> on [0]
spmd.mesh @stage1 = <["gpu"=1]> on [1]

func.func @step(%x: tensor<8xf32> {train.batch = "0", pipe.stage = 0 : i64,
    spmd.sharding = #spmd.sharding<@stage0, [{}]>})
    -> (tensor<f32> {train.loss, spmd.sharding = #spmd.sharding<@stage0, []>},
        tensor<f32> {train.loss, spmd.sharding = #spmd.sharding<@stage1, []>})
    attributes {pipe.stages = ["stage0", "stage1"]} {
  %h = pipe.transfer "h" %x to @stage1 out_sharding = <@stage1, [{}]>
    tasks = [#pipe.task<part 0, [0:8], 0 to [1]>] : tensor<8xf32>
  %there = aten.mean %h {spmd.signature = #spmd.sig<@stage1, ([{}]) -> ([])>} : (tensor<8xf32>) -> tensor<f32>
  %loss = pipe.transfer "loss" %there to @stage0 out_sharding = <@stage0, []>
    tasks = [#pipe.task<part 0, [], 1 to [0]>] : tensor<f32>
  func.return %loss, %there : tensor<f32>, tensor<f32>
}
