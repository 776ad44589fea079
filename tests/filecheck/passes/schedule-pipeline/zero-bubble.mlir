// RUN: opt-tool %s --pass-pipeline='schedule-pipeline{schedule=zero-bubble}' | filecheck %s

// As 1f1b, but on the second of two stages gradients of weights run one part later: `weights1 0` fills the wait of
// the stage for part 2, and holds its operands for as long as the first stage holds its parts.

// CHECK: pipe.schedule = {{\[\[}}#pipe.slot<run "forward0" 0>
// CHECK-SAME: [#pipe.slot<start "h" 0>, #pipe.slot<wait "h" 0>, #pipe.slot<run "forward1" 0>, #pipe.slot<start "h" 1>, #pipe.slot<run "backward1" 0>, #pipe.slot<start "g" 0>, #pipe.slot<wait "h" 1>, #pipe.slot<run "forward1" 1>, #pipe.slot<run "backward1" 1>, #pipe.slot<start "g" 1>, #pipe.slot<start "h" 2>, #pipe.slot<run "weights1" 0>, #pipe.slot<wait "h" 2>, #pipe.slot<run "forward1" 2>, #pipe.slot<run "backward1" 2>, #pipe.slot<start "g" 2>, #pipe.slot<start "h" 3>, #pipe.slot<run "weights1" 1>, #pipe.slot<wait "h" 3>, #pipe.slot<run "forward1" 3>, #pipe.slot<run "backward1" 3>, #pipe.slot<start "g" 3>, #pipe.slot<run "weights1" 2>, #pipe.slot<run "weights1" 3>{{\]\]}}

#m0 = #spmd.sig<@stage0, ([{"micro"}]) -> ([{"micro"}])>
#m1 = #spmd.sig<@stage1, ([{"micro"}]) -> ([{"micro"}])>
#s0 = #spmd.sig<@stage0, ([{"micro"}]) -> ([], unreduced={"micro"})>
#s1 = #spmd.sig<@stage1, ([{"micro"}]) -> ([], unreduced={"micro"})>
spmd.mesh @stage0 = <["micro"=4 temporal, "gpu"=1]> on [0]
spmd.mesh @stage1 = <["micro"=4 temporal, "gpu"=1]> on [1]
func.func @step(%x: tensor<8xf32> {train.batch = "0", pipe.stage = 0 : i64}) -> (tensor<f32>, tensor<f32>)
    attributes {pipe.stages = ["stage0", "stage1"]} {
  %x.slice = spmd.slice [{"micro"}] %x out_sharding = <@stage0, [{"micro"}]> : tensor<8xf32>
  %h = aten.exp %x.slice {spmd.signature = #m0} : (tensor<8xf32>) -> tensor<8xf32>
  %h.at1 = pipe.transfer "h" %h to @stage1 out_sharding = <@stage1, [{"micro"}]> : tensor<8xf32>
  %y = aten.exp %h.at1 {spmd.signature = #m1} : (tensor<8xf32>) -> tensor<8xf32>
  %g = aten.neg %y {train.backward, spmd.signature = #m1} : (tensor<8xf32>) -> tensor<8xf32>
  %w1 = aten.sum %g {train.backward, spmd.signature = #s1} : (tensor<8xf32>) -> tensor<f32>
  %w1.sum = spmd.all_reduce [{"micro"}] %w1 out_sharding = <@stage1, []> : tensor<f32>
  %g.at0 = pipe.transfer "g" %g to @stage0 out_sharding = <@stage0, [{"micro"}]> {train.backward} : tensor<8xf32>
  %w0 = aten.sum %g.at0 {train.backward, spmd.signature = #s0} : (tensor<8xf32>) -> tensor<f32>
  %w0.sum = spmd.all_reduce [{"micro"}] %w0 out_sharding = <@stage0, []> : tensor<f32>
  func.return %w0.sum, %w1.sum : tensor<f32>, tensor<f32>
}
