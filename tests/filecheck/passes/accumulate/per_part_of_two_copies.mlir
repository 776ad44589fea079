// RUN: opt-tool %s --pass-pipeline='communicate{per_part=true},accumulate{per_part=true}' --mlir-print-debuginfo=false | filecheck %s

// Forward and backward share the whole copy of %w, so its gradient is reduced once, although only forward uses the
// copy of its columns.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#rows = #spmd.sharding<@mesh, [{"gpu"}, {}]>
#times = #spmd.sig<@mesh, ([{"micro", "gpu"}, {}], [{}, {}]) -> ([{"micro", "gpu"}, {}])>
#columns = #spmd.sig<@mesh, ([{"micro"}, {}], [{}, {"gpu"}]) -> ([{"micro"}, {"gpu"}])>
#grad = #spmd.sig<@mesh, ([{}, {"micro", "gpu"}], [{"micro", "gpu"}, {}]) -> ([{}, {}], unreduced={"micro", "gpu"})>
#sgd = #spmd.sig<@mesh, ([{"gpu"}, {}], [{"gpu"}, {}], [], []) -> ([{"gpu"}, {}])>
spmd.mesh @mesh = <["micro"=2 temporal, "gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]

// CHECK: pipe.fragment "micro"
// CHECK-NOT: spmd.reduce_scatter
// CHECK: pipe.yield
// CHECK: %g.all_reduce = spmd.all_reduce [{"micro"}] %g out_sharding
// CHECK-NEXT: spmd.reduce_scatter [{"gpu"}, {}] %g.all_reduce
func.func @step(
  %w: tensor<8x8xf32> {train.param = "w", spmd.sharding = #rows},
  %x: tensor<8x8xf32> {train.batch = "0"},
  %count: tensor<f32> {train.step_count},
  %lr: tensor<f32> {train.learning_rate}
) -> (tensor<8x8xf32> {train.updates = 0 : i64}) {
  %a = aten.mm %x, %w {spmd.signature = #columns} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %b = aten.mm %a, %w {spmd.signature = #times} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %c = aten.mm %b, %w {train.backward, spmd.signature = #times} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %t = aten.t %x {spmd.signature = #spmd.sig<@mesh, ([{"micro", "gpu"}, {}]) -> ([{}, {"micro", "gpu"}])>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %g = aten.mm %t, %c {train.backward, spmd.signature = #grad} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %w.new = train.sgd %w, %g, %count, %lr {absent = ["momentum_buffer"], spmd.signature = #sgd}
    : (tensor<8x8xf32>, tensor<8x8xf32>, tensor<f32>, tensor<f32>) -> tensor<8x8xf32>
  func.return %w.new : tensor<8x8xf32>
}
