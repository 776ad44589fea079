// RUN: opt-tool %s --pass-pipeline='communicate{per_part=true},accumulate{per_part=true}' --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s --pass-pipeline=communicate,accumulate --mlir-print-debuginfo=false | filecheck %s --check-prefix=ONCE

// Each micro-batch gathers %w for forward and again for backward, and %v, which only forward uses, and reduces their
// gradients. Forward and backward share the copy of %u, so it is gathered once, and its gradient is reduced once.
// Without the option, all of this happens once.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#rows = #spmd.sharding<@mesh, [{"gpu"}, {}]>
#full = #spmd.sharding<@mesh, [{}, {}]>
#times = #spmd.sig<@mesh, ([{"micro", "gpu"}, {}], [{}, {}]) -> ([{"micro", "gpu"}, {}])>
#grad = #spmd.sig<@mesh, ([{}, {"micro", "gpu"}], [{"micro", "gpu"}, {}]) -> ([{}, {}], unreduced={"micro", "gpu"})>
#sgd = #spmd.sig<@mesh, ([{"gpu"}, {}], [{"gpu"}, {}], [], []) -> ([{"gpu"}, {}])>
spmd.mesh @mesh = <["micro"=2 temporal, "gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]

// CHECK: %u.all_gather = spmd.all_gather
// CHECK-NEXT: pipe.fragment "micro"
// CHECK-NEXT: %w.all_gather = spmd.all_gather
// CHECK: %v.all_gather = spmd.all_gather
// CHECK: %w.all_gather_1 = spmd.all_gather {{.*}} regather
// CHECK: %gw.reduce_scatter_1 = spmd.reduce_scatter [{"gpu"}, {}] %gw out_sharding = <@mesh, [{"gpu"}, {}], unreduced={"micro"}>
// CHECK: %gv.reduce_scatter_1 = spmd.reduce_scatter [{"gpu"}, {}] %gv out_sharding = <@mesh, [{"gpu"}, {}], unreduced={"micro"}>
// CHECK: pipe.yield
// CHECK: %gu.all_reduce = spmd.all_reduce [{"micro"}] %gu out_sharding
// CHECK-NEXT: spmd.reduce_scatter [{"gpu"}, {}] %gu.all_reduce

// ONCE: spmd.all_gather
// ONCE-NEXT: spmd.all_gather
// ONCE-NEXT: spmd.all_gather
// ONCE-NEXT: spmd.all_gather
// ONCE-NEXT: pipe.fragment "micro"
// ONCE-NOT: spmd.reduce_scatter
// ONCE: pipe.yield
// ONCE: spmd.reduce_scatter
func.func @step(
  %w: tensor<8x8xf32> {train.param = "w", spmd.sharding = #rows, spmd.working = #full, spmd.regather = true},
  %u: tensor<8x8xf32> {train.param = "u", spmd.sharding = #rows, spmd.working = #full},
  %v: tensor<8x8xf32> {train.param = "v", spmd.sharding = #rows},
  %x: tensor<8x8xf32> {train.batch = "0"},
  %count: tensor<f32> {train.step_count},
  %lr: tensor<f32> {train.learning_rate}
) -> (tensor<8x8xf32> {train.updates = 0 : i64}, tensor<8x8xf32> {train.updates = 1 : i64}, tensor<8x8xf32> {train.updates = 2 : i64}) {
  %a = aten.mm %x, %w {spmd.signature = #times} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %b = aten.mm %a, %v {spmd.signature = #times} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %c = aten.mm %b, %u {spmd.signature = #times} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %d = aten.mm %c, %u {train.backward, spmd.signature = #times} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %e = aten.mm %d, %w {train.backward, spmd.signature = #times} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %t = aten.t %x {spmd.signature = #spmd.sig<@mesh, ([{"micro", "gpu"}, {}]) -> ([{}, {"micro", "gpu"}])>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %gw = aten.mm %t, %e {train.backward, spmd.signature = #grad} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %gu = aten.mm %t, %d {train.backward, spmd.signature = #grad} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %gv = aten.mm %t, %c {train.backward, spmd.signature = #grad} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %w.new = train.sgd %w, %gw, %count, %lr {absent = ["momentum_buffer"], spmd.signature = #sgd}
    : (tensor<8x8xf32>, tensor<8x8xf32>, tensor<f32>, tensor<f32>) -> tensor<8x8xf32>
  %u.new = train.sgd %u, %gu, %count, %lr {absent = ["momentum_buffer"], spmd.signature = #sgd}
    : (tensor<8x8xf32>, tensor<8x8xf32>, tensor<f32>, tensor<f32>) -> tensor<8x8xf32>
  %v.new = train.sgd %v, %gv, %count, %lr {absent = ["momentum_buffer"], spmd.signature = #sgd}
    : (tensor<8x8xf32>, tensor<8x8xf32>, tensor<f32>, tensor<f32>) -> tensor<8x8xf32>
  func.return %w.new, %u.new, %v.new : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}
