// RUN: opt-tool %s --split-input-file --verify-diagnostics --pass-pipeline=plan-transfers

spmd.mesh @stage0 = <["gpu"=2]> on [0, 1]
spmd.mesh @stage1 = <["gpu"=2]> on [1, 2]
func.func @step(%x: tensor<4xf32> {pipe.stage = 0 : i64}) -> tensor<4xf32> attributes {pipe.stages = ["stage0", "stage1"]} {
  // expected-error@+1 {{from @stage0 to @stage1: rank 1 is in both meshes; the meshes of stages must not share ranks}}
  %h = pipe.transfer "h" %x to @stage1 out_sharding = <@stage1, [{}]> : tensor<4xf32>
  func.return %h : tensor<4xf32>
}

// -----

spmd.mesh @stage0 = <["micro"=2 temporal, "gpu"=1]> on [0]
spmd.mesh @stage1 = <["micro"=4 temporal, "gpu"=1]> on [1]
func.func @step(%x: tensor<4xf32> {pipe.stage = 0 : i64, spmd.sharding = #spmd.sharding<@stage0, [{"micro"}]>})
    -> tensor<4xf32> attributes {pipe.stages = ["stage0", "stage1"]} {
  // expected-error@+1 {{the micro-batches of the two meshes differ: {'micro': 2} on the sender, {'micro': 4} on the receiver}}
  %h = pipe.transfer "h" %x to @stage1 out_sharding = <@stage1, [{"micro"}]> : tensor<4xf32>
  func.return %h : tensor<4xf32>
}

// -----

spmd.mesh @stage0 = <["gpu"=1]> on [0]
spmd.mesh @stage1 = <["gpu"=1]> on [1]
func.func @step(%x: tensor<4xf32> {pipe.stage = 0 : i64}) -> tensor<4xf32> attributes {pipe.stages = ["stage0", "stage1"]} {
  // expected-error@+1 {{'pipe.transfer' op %h: has no sharding; run search-strategy before plan-transfers}}
  %h = pipe.transfer "h" %x to @stage1 : tensor<4xf32>
  func.return %h : tensor<4xf32>
}
