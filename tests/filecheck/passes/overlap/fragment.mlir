// RUN: opt-tool %s --pass-pipeline=overlap --verify-numerics --mlir-print-debuginfo=false | filecheck %s

// A parameter is gathered before the loop that uses it, and the sum of its gradient's parts is reduced after it; within
// the loop a collective starts early too. The sum over time is not a collective.

#half = #spmd.sharding<@mesh, [{"gpu"}]>
spmd.mesh @mesh = <["t"=2 temporal, "gpu"=2]>

func.func @step(%w: tensor<8xf32> {train.param = "w", spmd.sharding = #half}, %x: tensor<4x8xf32> {train.batch = "0"}, %lr: tensor<f32>)
    -> (tensor<8xf32> {train.updates = 0 : i64, spmd.sharding = #half}) {
  // CHECK: %w.whole.started = spmd.start "all_gather" %w
  // CHECK: %w.whole = spmd.wait %w.whole.started
  // CHECK-NEXT: %g = pipe.fragment "t" over "t" -> tensor<8xf32> {
  // CHECK-NEXT: %part = spmd.slice
  // CHECK-NEXT: %a = aten.mul.Tensor %part, %w.whole
  // CHECK-NEXT: %p = spmd.partial
  // CHECK-NEXT: %r.started = spmd.start "all_reduce" %p
  // CHECK-NEXT: %b = aten.exp %part
  // CHECK-NEXT: %r = spmd.wait %r.started
  // CHECK-NEXT: %c = aten.mul.Tensor %r, %b
  // CHECK: pipe.yield
  // CHECK: %g.sum = spmd.all_reduce [{"t"}] %g
  // CHECK: %g.own.started = spmd.start "reduce_scatter" %g.part
  // CHECK-NEXT: %g.own = spmd.wait %g.own.started
  // CHECK-NEXT: train.sgd %w, %g.own
  %w.whole = spmd.all_gather [{"gpu"}] %w out_sharding = <@mesh, [{}]> : tensor<8xf32>
  %g = pipe.fragment "t" over "t" -> tensor<8xf32> {
    %part = spmd.slice [{"t"}, {}] %x out_sharding = <@mesh, [{"t"}, {}]> : tensor<4x8xf32>
    %a = aten.mul.Tensor %part, %w.whole {spmd.signature = #spmd.sig<@mesh, ([{"t"}, {}], [{}]) -> ([{"t"}, {}])>}
      : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
    %p = spmd.partial [{"gpu"}] %a out_sharding = <@mesh, [{"t"}, {}], unreduced={"gpu"}> : tensor<4x8xf32>
    %r = spmd.all_reduce [{"gpu"}] %p out_sharding = <@mesh, [{"t"}, {}]> : tensor<4x8xf32>
    %b = aten.exp %part {spmd.signature = #spmd.sig<@mesh, ([{"t"}, {}]) -> ([{"t"}, {}])>}
      : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %c = aten.mul.Tensor %r, %b {spmd.signature = #spmd.sig<@mesh, ([{"t"}, {}], [{"t"}, {}]) -> ([{"t"}, {}])>}
      : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %s = aten.sum.dim_IntList %c {dim = [0 : i64],
      spmd.signature = #spmd.sig<@mesh, ([{"t"}, {}]) -> ([{}], unreduced={"t"})>} : (tensor<4x8xf32>) -> tensor<8xf32>
    pipe.yield %s : tensor<8xf32>
  }
  %g.sum = spmd.all_reduce [{"t"}] %g out_sharding = <@mesh, [{}]> : tensor<8xf32>
  %g.part = spmd.partial [{"gpu"}] %g.sum out_sharding = <@mesh, [{}], unreduced={"gpu"}> : tensor<8xf32>
  %g.own = spmd.reduce_scatter [{"gpu"}] %g.part out_sharding = <@mesh, [{"gpu"}]> : tensor<8xf32>
  %new = train.sgd %w, %g.own, %lr {absent = ["momentum_buffer", "step"],
    spmd.signature = #spmd.sig<@mesh, ([{"gpu"}], [{"gpu"}], []) -> ([{"gpu"}])>
  } : (tensor<8xf32>, tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
  func.return %new : tensor<8xf32>
}
