// RUN: opt-tool %s --pass-pipeline=duplex --verify-numerics --mlir-print-debuginfo=false | filecheck %s

// Two collectives in a row are two phases: a part computes while the other communicates. Ops that depend on no
// collective are in the first phase.

spmd.mesh @mesh = <["micro"=2 temporal, "gpu"=2]>

func.func @step(%x: tensor<8x4xf32> {train.batch = "0"}, %w: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK: aten.sum.dim_IntList %p.a
  // CHECK-NEXT: %i.a = aten.neg %p.a
  // CHECK-NEXT: %g.a.started = spmd.start "reduce_scatter" %h.a
  // CHECK: aten.sum.dim_IntList %p.b
  // CHECK-NEXT: %i.b = aten.neg %p.b
  // CHECK-NEXT: %g.a = spmd.wait %g.a.started
  // CHECK-NEXT: %g.b.started = spmd.start "reduce_scatter" %h.b
  // CHECK-NEXT: %e.a = aten.exp %g.a
  // CHECK-NEXT: %g.b = spmd.wait %g.b.started
  // CHECK-NEXT: %f.a.started = spmd.start "all_gather" %e.a
  // CHECK-NEXT: %e.b = aten.exp %g.b
  // CHECK-NEXT: %f.a = spmd.wait %f.a.started
  // CHECK-NEXT: %f.b.started = spmd.start "all_gather" %e.b
  // CHECK-NEXT: %j.a = aten.mul.Tensor %f.a, %i.a
  // CHECK: %f.b = spmd.wait %f.b.started
  // CHECK-NEXT: %j.b = aten.mul.Tensor %f.b, %i.b
  %p = spmd.slice [{"micro"}, {}] %x out_sharding = <@mesh, [{"micro"}, {}]> : tensor<8x4xf32>
  %q = spmd.partial [{"gpu"}] %p out_sharding = <@mesh, [{"micro"}, {}], unreduced={"gpu"}> : tensor<8x4xf32>
  %h = aten.neg %q {spmd.signature = #spmd.sig<@mesh,
    ([{"micro"}, {}], unreduced={"gpu"}) -> ([{"micro"}, {}], unreduced={"gpu"})>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %k = aten.sum.dim_IntList %p {dim = [0 : i64],
    spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([{}], unreduced={"micro"})>
  } : (tensor<8x4xf32>) -> tensor<4xf32>
  %i = aten.neg %p {spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([{"micro"}, {}])>}
    : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %g = spmd.reduce_scatter [{}, {"gpu"}] %h out_sharding = <@mesh, [{"micro"}, {"gpu"}]> : tensor<8x4xf32>
  %e = aten.exp %g {spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {"gpu"}]) -> ([{"micro"}, {"gpu"}])>}
    : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %f = spmd.all_gather [{}, {"gpu"}] %e out_sharding = <@mesh, [{"micro"}, {}]> : tensor<8x4xf32>
  %j = aten.mul.Tensor %f, %i {spmd.signature = #spmd.sig<@mesh,
    ([{"micro"}, {}], [{"micro"}, {}]) -> ([{"micro"}, {}])>} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %s = aten.sum.dim_IntList %j {dim = [0 : i64],
    spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([{}], unreduced={"micro"})>
  } : (tensor<8x4xf32>) -> tensor<4xf32>
  %t = aten.add.Tensor %s, %k {spmd.signature = #spmd.sig<@mesh,
    ([{}], unreduced={"micro"}, [{}], unreduced={"micro"}) -> ([{}], unreduced={"micro"})>
  } : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %u = spmd.all_reduce [{"micro"}] %t out_sharding = <@mesh, [{}]> : tensor<4xf32>
  func.return %u : tensor<4xf32>
}
