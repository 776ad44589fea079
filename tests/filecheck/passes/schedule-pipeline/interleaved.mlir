// RUN: opt-tool %s --pass-pipeline='schedule-pipeline{schedule=interleaved-1f1b}' | filecheck %s

// Values come back to the first stage, so each stage has two chunks of the model, with separate fragments. Two parts, as
// many as there are stages, go through the first chunks before they go through the second ones; backward begins with these.
// Another stage waits for backward of the first stage's second chunk, so its gradients of weights are separate.

// CHECK: pipe.schedule = {{\[\[}}#pipe.slot<run "forward0.0" 0>, #pipe.slot<start "a" 0>, #pipe.slot<start "b" 0>, #pipe.slot<run "forward0.0" 1>, #pipe.slot<start "a" 1>, #pipe.slot<start "b" 1>, #pipe.slot<wait "b" 0>, #pipe.slot<run "forward0.1" 0>, #pipe.slot<start "c" 0>, #pipe.slot<start "gc" 0>, #pipe.slot<wait "b" 1>, #pipe.slot<run "forward0.1" 1>, #pipe.slot<start "c" 1>
// CHECK-SAME: #pipe.slot<run "backward0.1" 0>
// CHECK-SAME: #pipe.slot<run "weights0.1" 0>
// CHECK-SAME: #pipe.slot<run "backward0.0" 1>],
// CHECK-SAME: #pipe.slot<run "forward1.0" 0>
// CHECK-SAME: #pipe.slot<run "forward1.0" 1>
// CHECK-SAME: #pipe.slot<run "forward1.1" 0>
// CHECK-SAME: #pipe.slot<run "backward1.1" 0>
// CHECK-SAME: #pipe.slot<run "forward1.1" 1>

#m0 = #spmd.sig<@stage0, ([{"micro"}]) -> ([{"micro"}])>
#m1 = #spmd.sig<@stage1, ([{"micro"}]) -> ([{"micro"}])>
#s0 = #spmd.sig<@stage0, ([{"micro"}]) -> ([], unreduced={"micro"})>
spmd.mesh @stage0 = <["micro"=2 temporal, "gpu"=1]> on [0]
spmd.mesh @stage1 = <["micro"=2 temporal, "gpu"=1]> on [1]
func.func @step(%x: tensor<8xf32> {train.batch = "0", pipe.stage = 0 : i64}) -> (tensor<f32>, tensor<f32>)
    attributes {pipe.stages = ["stage0", "stage1"]} {
  // CHECK: pipe.fragment "forward0.0" stage 0
  // CHECK: pipe.transfer "a"
  // CHECK: pipe.fragment "forward1.0" stage 1
  // CHECK: pipe.transfer "b"
  // CHECK: pipe.fragment "forward0.1" stage 0
  // CHECK: pipe.transfer "c"
  // CHECK: pipe.fragment "forward1.1" stage 1
  // CHECK: pipe.fragment "backward1.1" stage 1
  // CHECK: pipe.fragment "backward0.1" stage 0
  // CHECK: pipe.fragment "weights0.1" stage 0
  // CHECK: pipe.fragment "backward1.0" stage 1
  // CHECK: pipe.fragment "backward0.0" stage 0
  %x.slice = spmd.slice [{"micro"}] %x out_sharding = <@stage0, [{"micro"}]> : tensor<8xf32>
  %a = aten.exp %x.slice {spmd.signature = #m0} : (tensor<8xf32>) -> tensor<8xf32>
  %a.in = pipe.transfer "a" %a to @stage1 out_sharding = <@stage1, [{"micro"}]> : tensor<8xf32>
  %b = aten.exp %a.in {spmd.signature = #m1} : (tensor<8xf32>) -> tensor<8xf32>
  %b.in = pipe.transfer "b" %b to @stage0 out_sharding = <@stage0, [{"micro"}]> : tensor<8xf32>
  %c = aten.exp %b.in {spmd.signature = #m0} : (tensor<8xf32>) -> tensor<8xf32>
  %c.in = pipe.transfer "c" %c to @stage1 out_sharding = <@stage1, [{"micro"}]> : tensor<8xf32>
  %d = aten.exp %c.in {spmd.signature = #m1} : (tensor<8xf32>) -> tensor<8xf32>
  %gc = aten.neg %d {train.backward, spmd.signature = #m1} : (tensor<8xf32>) -> tensor<8xf32>
  %gc.in = pipe.transfer "gc" %gc to @stage0 out_sharding = <@stage0, [{"micro"}]> {train.backward} : tensor<8xf32>
  %gb = aten.neg %gc.in {train.backward, spmd.signature = #m0} : (tensor<8xf32>) -> tensor<8xf32>
  %w1 = aten.sum %gc.in {train.backward, spmd.signature = #s0} : (tensor<8xf32>) -> tensor<f32>
  %w1.sum = spmd.all_reduce [{"micro"}] %w1 out_sharding = <@stage0, []> : tensor<f32>
  %gb.in = pipe.transfer "gb" %gb to @stage1 out_sharding = <@stage1, [{"micro"}]> {train.backward} : tensor<8xf32>
  %ga = aten.neg %gb.in {train.backward, spmd.signature = #m1} : (tensor<8xf32>) -> tensor<8xf32>
  %ga.in = pipe.transfer "ga" %ga to @stage0 out_sharding = <@stage0, [{"micro"}]> {train.backward} : tensor<8xf32>
  %w0 = aten.sum %ga.in {train.backward, spmd.signature = #s0} : (tensor<8xf32>) -> tensor<f32>
  %w0.sum = spmd.all_reduce [{"micro"}] %w0 out_sharding = <@stage0, []> : tensor<f32>
  func.return %w0.sum, %w1.sum : tensor<f32>, tensor<f32>
}
