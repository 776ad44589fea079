// RUN: opt-tool %s --pass-pipeline=schedule-pipeline | filecheck %s

// On a stage that sends gradients, gradients of weights are in a separate fragment, which runs after the transfer has
// started; the first stage, which sends none, has one fragment. Sums over the parts are reduced after the parts.

// CHECK: pipe.schedule = {{\[\[}}#pipe.slot<run "forward0" 0>, #pipe.slot<start "h" 0>, #pipe.slot<start "g" 0>, #pipe.slot<run "forward0" 1>, #pipe.slot<start "h" 1>, #pipe.slot<start "g" 1>, #pipe.slot<wait "g" 0>, #pipe.slot<run "backward0" 0>, #pipe.slot<wait "g" 1>, #pipe.slot<run "backward0" 1>],
// CHECK-SAME: [#pipe.slot<start "h" 0>, #pipe.slot<wait "h" 0>, #pipe.slot<run "forward1" 0>, #pipe.slot<start "h" 1>, #pipe.slot<run "backward1" 0>, #pipe.slot<start "g" 0>, #pipe.slot<wait "h" 1>, #pipe.slot<run "forward1" 1>, #pipe.slot<run "weights1" 0>, #pipe.slot<run "backward1" 1>, #pipe.slot<start "g" 1>, #pipe.slot<run "weights1" 1>{{\]\]}}

#m0 = #spmd.sig<@stage0, ([{"micro"}]) -> ([{"micro"}])>
#m1 = #spmd.sig<@stage1, ([{"micro"}]) -> ([{"micro"}])>
#s0 = #spmd.sig<@stage0, ([{"micro"}]) -> ([], unreduced={"micro"})>
#s1 = #spmd.sig<@stage1, ([{"micro"}]) -> ([], unreduced={"micro"})>
spmd.mesh @stage0 = <["micro"=2 temporal, "gpu"=1]> on [0]
spmd.mesh @stage1 = <["micro"=2 temporal, "gpu"=1]> on [1]
func.func @step(%x: tensor<8xf32> {train.batch = "0", pipe.stage = 0 : i64}) -> (tensor<f32>, tensor<f32>)
    attributes {pipe.stages = ["stage0", "stage1"]} {
  // CHECK: pipe.fragment "forward0" stage 0 : i64 over "micro"
  // CHECK: pipe.transfer "h"
  // CHECK: pipe.fragment "forward1" stage 1 : i64 over "micro"
  // CHECK: pipe.fragment "backward1" stage 1 : i64 over "micro"
  // CHECK: pipe.transfer "g"
  // CHECK: pipe.fragment "weights1" stage 1 : i64 over "micro" -> tensor<f32>
  // CHECK: pipe.fragment "backward0" stage 0 : i64 over "micro" -> tensor<f32>
  // CHECK: spmd.all_reduce [{"micro"}] %w1
  // CHECK: spmd.all_reduce [{"micro"}] %w0
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
