// RUN: opt-tool %s --pass-pipeline=check-order --mlir-print-debuginfo=false | filecheck %s

// Both stages start their transfers in one order, and no stage waits for a transfer that it delays itself.

spmd.mesh @stage0 = <["t"=2 temporal, "gpu"=1]> on [0]
spmd.mesh @stage1 = <["t"=2 temporal, "gpu"=1]> on [1]
// CHECK: func.func @step
func.func @step(%x: tensor<4xf32> {pipe.stage = 0 : i64}, %y: tensor<4xf32> {pipe.stage = 1 : i64}) -> tensor<f32> attributes {
  pipe.stages = ["stage0", "stage1"],
  pipe.schedule = [
    [#pipe.slot<run "forward0" 0>, #pipe.slot<start "h" 0>, #pipe.slot<run "forward0" 1>, #pipe.slot<start "h" 1>, #pipe.slot<start "g" 0>, #pipe.slot<start "g" 1>, #pipe.slot<wait "g" 0>, #pipe.slot<run "last0" 0>, #pipe.slot<wait "g" 1>, #pipe.slot<run "last0" 1>],
    [#pipe.slot<start "h" 0>, #pipe.slot<start "h" 1>, #pipe.slot<wait "h" 0>, #pipe.slot<run "back1" 0>, #pipe.slot<start "g" 0>, #pipe.slot<wait "h" 1>, #pipe.slot<run "back1" 1>, #pipe.slot<start "g" 1>]
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
  %g.0 = pipe.transfer "g" %g to @stage0 out_sharding = <@stage0, [{"t"}]> : tensor<4xf32>
  %s = pipe.fragment "last0" stage 0 : i64 over "t" -> tensor<f32> {
    %s.t = aten.sum %g.0 {spmd.signature = #spmd.sig<@stage0, ([{"t"}]) -> ([], unreduced={"t"})>} : (tensor<4xf32>) -> tensor<f32>
    pipe.yield %s.t : tensor<f32>
  }
  %s.sum = spmd.all_reduce [{"t"}] %s out_sharding = <@stage0, []> : tensor<f32>
  func.return %s.sum : tensor<f32>
}
