// RUN: opt-tool %s --pass-pipeline='schedule-pipeline{schedule=auto}' | filecheck %s

// A transfer takes as long as four fragments. The first stage runs three forwards ahead, where 1f1b has two, so that the link
// is never idle; each stage starts receives up to two parts ahead of the part that it waits for.
// The duration of a transfer depends on its tasks, so transfers are planned first.

// CHECK: pipe.schedule = {{\[\[}}#pipe.slot<run "forward0" 0>, #pipe.slot<start "h" 0>, #pipe.slot<run "forward0" 1>, #pipe.slot<start "h" 1>, #pipe.slot<start "g" 0>, #pipe.slot<run "forward0" 2>, #pipe.slot<start "h" 2>, #pipe.slot<start "g" 1>, #pipe.slot<wait "g" 0>, #pipe.slot<run "backward0" 0>, #pipe.slot<run "forward0" 3>
// CHECK-SAME: [#pipe.slot<start "h" 0>, #pipe.slot<start "h" 1>, #pipe.slot<wait "h" 0>, #pipe.slot<run "forward1" 0>, #pipe.slot<run "backward1" 0>, #pipe.slot<start "g" 0>, #pipe.slot<run "weights1" 0>, #pipe.slot<start "h" 2>, #pipe.slot<wait "h" 1>
// CHECK: pipe.transfer "h" {{.*}} tasks = [#pipe.task<part 0, [0:2], 0 to [1]>

#m0 = #spmd.sig<@stage0, ([{"micro"}]) -> ([{"micro"}])>
#m1 = #spmd.sig<@stage1, ([{"micro"}]) -> ([{"micro"}])>
#s0 = #spmd.sig<@stage0, ([{"micro"}]) -> ([], unreduced={"micro"})>
#s1 = #spmd.sig<@stage1, ([{"micro"}]) -> ([], unreduced={"micro"})>
#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 1.0>
#link = #spmd.link<"gpu", alpha = 4.0, beta = 0.0>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]
spmd.mesh @stage0 = <["micro"=4 temporal, "gpu"=1]> on [0]
spmd.mesh @stage1 = <["micro"=4 temporal, "gpu"=1]> on [1]
spmd.cluster @two.stage0 on @stage0 devices [#cpu] placement [0] links [#link]
spmd.cluster @two.stage1 on @stage1 devices [#cpu] placement [0] links [#link]
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
