// RUN: opt-tool %s --pass-pipeline='schedule-pipeline{schedule=1f1b}' --verify-diagnostics

#m0 = #spmd.sig<@stage0, ([{"micro"}]) -> ([{"micro"}])>
#m1 = #spmd.sig<@stage1, ([{"micro"}]) -> ([{"micro"}])>
#s0 = #spmd.sig<@stage0, ([{"micro"}]) -> ([], unreduced={"micro"})>
spmd.mesh @stage0 = <["micro"=2 temporal, "gpu"=1]> on [0]
spmd.mesh @stage1 = <["micro"=2 temporal, "gpu"=1]> on [1]
// expected-error@+1 {{has 2 chunks of the model in each stage, but 1f1b is for one; use interleaved-1f1b, gpipe, auto}}
func.func @step(%x: tensor<8xf32> {train.batch = "0", pipe.stage = 0 : i64}) -> (tensor<f32>, tensor<f32>)
    attributes {pipe.stages = ["stage0", "stage1"]} {
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
