// RUN: opt-tool %s --split-input-file --verify-diagnostics --pass-pipeline=check-order

// The receiver starts the second part first: it would confuse the two parts.

spmd.mesh @stage0 = <["t"=2 temporal, "gpu"=1]> on [0]
spmd.mesh @stage1 = <["t"=2 temporal, "gpu"=1]> on [1]
func.func @step(%x: tensor<4xf32> {pipe.stage = 0 : i64}, %y: tensor<4xf32> {pipe.stage = 1 : i64}) -> tensor<f32> attributes {
  pipe.stages = ["stage0", "stage1"],
  pipe.schedule = [
    [#pipe.slot<run "forward0" 0>, #pipe.slot<start "h" 0>, #pipe.slot<run "forward0" 1>, #pipe.slot<start "h" 1>, #pipe.slot<start "g" 0>, #pipe.slot<start "g" 1>, #pipe.slot<wait "g" 0>, #pipe.slot<run "last0" 0>, #pipe.slot<wait "g" 1>, #pipe.slot<run "last0" 1>],
    [#pipe.slot<start "h" 1>, #pipe.slot<start "h" 0>, #pipe.slot<wait "h" 0>, #pipe.slot<run "back1" 0>, #pipe.slot<start "g" 0>, #pipe.slot<wait "h" 1>, #pipe.slot<run "back1" 1>, #pipe.slot<start "g" 1>]
  ]
} {
  %h = pipe.fragment "forward0" stage 0 : i64 over "t" -> tensor<4xf32> {
    %x.slice = spmd.slice [{"t"}] %x out_sharding = <@stage0, [{"t"}]> : tensor<4xf32>
    pipe.yield %x.slice : tensor<4xf32>
  }
  // expected-error@+1 {{the ranks [0, 1] issue their communications in different orders: at position 1 rank 0 issues 'pipe.transfer' op %h.1 for part 0, rank 1 'pipe.transfer' op %h.1 for part 1; issue them in the same order on all ranks}}
  %h.1 = pipe.transfer "h" %h to @stage1 out_sharding = <@stage1, [{"t"}]> : tensor<4xf32>
  %g = pipe.fragment "back1" stage 1 : i64 over "t" -> tensor<4xf32> {
    %y.slice = spmd.slice [{"t"}] %y out_sharding = <@stage1, [{"t"}]> : tensor<4xf32>
    %m = aten.mul.Tensor %y.slice, %h.1 {spmd.signature = #spmd.sig<@stage1, ([{"t"}], [{"t"}]) -> ([{"t"}])>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    pipe.yield %m : tensor<4xf32>
  }
  %g.0 = pipe.transfer "g" %g to @stage0 out_sharding = <@stage0, [{"t"}]> : tensor<4xf32>
  %s = pipe.fragment "last0" stage 0 : i64 over "t" -> tensor<f32> {
    %s.t = aten.sum %g.0 {spmd.signature = #spmd.sig<@stage0, ([{"t"}]) -> ([], unreduced={"t"})>} : (tensor<4xf32>) -> tensor<f32>
    pipe.yield %s.t : tensor<f32>
  }
  %s.sum = spmd.all_reduce [{"t"}] %s out_sharding = <@stage0, []> : tensor<f32>
  func.return %s.sum : tensor<f32>
}

// -----

// Stage 1 waits for both parts before it answers the first; stage 0 sends the second after the answer to the first.

spmd.mesh @stage0 = <["t"=2 temporal, "gpu"=1]> on [0]
spmd.mesh @stage1 = <["t"=2 temporal, "gpu"=1]> on [1]
func.func @step(%x: tensor<4xf32> {pipe.stage = 0 : i64}, %y: tensor<4xf32> {pipe.stage = 1 : i64}) -> tensor<f32> attributes {
  pipe.stages = ["stage0", "stage1"],
  pipe.schedule = [
    [#pipe.slot<run "forward0" 0>, #pipe.slot<start "h" 0>, #pipe.slot<start "g" 0>, #pipe.slot<wait "g" 0>, #pipe.slot<run "last0" 0>, #pipe.slot<run "forward0" 1>, #pipe.slot<start "h" 1>, #pipe.slot<start "g" 1>, #pipe.slot<wait "g" 1>, #pipe.slot<run "last0" 1>],
    [#pipe.slot<start "h" 0>, #pipe.slot<start "h" 1>, #pipe.slot<wait "h" 0>, #pipe.slot<wait "h" 1>, #pipe.slot<run "back1" 0>, #pipe.slot<start "g" 0>, #pipe.slot<run "back1" 1>, #pipe.slot<start "g" 1>]
  ]
} {
  %h = pipe.fragment "forward0" stage 0 : i64 over "t" -> tensor<4xf32> {
    %x.slice = spmd.slice [{"t"}] %x out_sharding = <@stage0, [{"t"}]> : tensor<4xf32>
    pipe.yield %x.slice : tensor<4xf32>
  }
  %h.1 = pipe.transfer "h" %h to @stage1 out_sharding = <@stage1, [{"t"}]> : tensor<4xf32>
  %g = pipe.fragment "back1" stage 1 : i64 over "t" -> tensor<4xf32> {
    %y.slice = spmd.slice [{"t"}] %y out_sharding = <@stage1, [{"t"}]> : tensor<4xf32>
    %m = aten.mul.Tensor %y.slice, %h.1 {spmd.signature = #spmd.sig<@stage1, ([{"t"}], [{"t"}]) -> ([{"t"}])>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    pipe.yield %m : tensor<4xf32>
  }
  // expected-error@+1 {{deadlock: 'pipe.transfer' op %g.0 for part 0 and 'pipe.transfer' op %h.1 for part 1 each wait, on some rank, for the other to complete}}
  %g.0 = pipe.transfer "g" %g to @stage0 out_sharding = <@stage0, [{"t"}]> : tensor<4xf32>
  %s = pipe.fragment "last0" stage 0 : i64 over "t" -> tensor<f32> {
    %s.t = aten.sum %g.0 {spmd.signature = #spmd.sig<@stage0, ([{"t"}]) -> ([], unreduced={"t"})>} : (tensor<4xf32>) -> tensor<f32>
    pipe.yield %s.t : tensor<f32>
  }
  %s.sum = spmd.all_reduce [{"t"}] %s out_sharding = <@stage0, []> : tensor<f32>
  func.return %s.sum : tensor<f32>
}

// -----

// Rank 1 has a place in both stages, so that it would have to run two programs at once.

spmd.mesh @stage0 = <["gpu"=2]> on [0, 1]
spmd.mesh @stage1 = <["gpu"=2]> on [1, 2]
// expected-error@+1 {{rank 1 is in the meshes of several stages; place each stage on ranks of its own}}
func.func @step(%x: tensor<4xf32> {pipe.stage = 0 : i64, spmd.sharding = #spmd.sharding<@stage0, [{}]>}) -> tensor<4xf32> attributes {pipe.stages = ["stage0", "stage1"]} {
  %y = pipe.transfer "y" %x to @stage1 out_sharding = <@stage1, [{}]> : tensor<4xf32>
  func.return %y : tensor<4xf32>
}
