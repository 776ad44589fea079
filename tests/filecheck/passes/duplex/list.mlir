// RUN: opt-tool %s --split-input-file --pass-pipeline='duplex{order=list}' --verify-numerics --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s --split-input-file --pass-pipeline='duplex{order=phases}' --mlir-print-debuginfo=false | filecheck %s --check-prefix=PHASES

// Two collectives in a row over different axes, the second one long: with the list, part b starts its first collective
// when its operand is ready, together with part a and not after it. The large %w keeps the peak below its limit.

spmd.mesh @mesh = <["micro"=2 temporal, "node"=2, "gpu"=2]>
spmd.cluster @c on @mesh devices [#spmd.device<"a", flops = {float32 = 1.0e9}, bandwidth = 32.0, memory = 1.0e9, launch = 0.0>] placement [0, 0, 0, 0] links [#spmd.link<"node", alpha = 1.0, beta = 0.1>, #spmd.link<"gpu", alpha = 1.0, beta = 0.0>]

// CHECK-LABEL: @step
// CHECK: %k.a.started = spmd.start "all_gather" %q.a
// CHECK-NEXT: %p.b = spmd.slice
// CHECK: %k.b.started = spmd.start "all_gather" %q.b
// CHECK-NEXT: %k.a = spmd.wait
// CHECK-NEXT: %r.a.started = spmd.start "all_gather" %k.a
// PHASES-LABEL: @step
// PHASES: %k.a.started = spmd.start "all_gather" %q.a
// PHASES: %k.a = spmd.wait
// PHASES-NEXT: %k.b.started = spmd.start "all_gather" %q.b
func.func @step(%x: tensor<8x4xf32> {train.batch = "0"}, %w: tensor<9999xf32>) -> tensor<f32> {
  %p = spmd.slice [{"micro"}, {}] %x out_sharding = <@mesh, [{"micro"}, {}]> : tensor<8x4xf32>
  %q = spmd.slice [{}, {"node", "gpu"}] %p out_sharding = <@mesh, [{"micro"}, {"node", "gpu"}]> : tensor<8x4xf32>
  %k = spmd.all_gather [{}, {"gpu"}] %q out_sharding = <@mesh, [{"micro"}, {"node"}]> : tensor<8x4xf32>
  %r = spmd.all_gather [{}, {"node"}] %k out_sharding = <@mesh, [{"micro"}, {}]> : tensor<8x4xf32>
  %s = aten.sum %r {spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([], unreduced={"micro"})>}
    : (tensor<8x4xf32>) -> tensor<f32>
  %t = spmd.all_reduce [{"micro"}] %s out_sharding = <@mesh, []> : tensor<f32>
  func.return %t : tensor<f32>
}

// -----

// The gradient of a weight (%g) is filler: it is computed while its part communicates, and not before.

spmd.mesh @mesh = <["micro"=2 temporal, "gpu"=2]>
spmd.cluster @c on @mesh devices [#spmd.device<"a", flops = {float32 = 1.0e9}, bandwidth = 32.0, memory = 1.0e9, launch = 0.0>] placement [0, 0] links [#spmd.link<"gpu", alpha = 100.0, beta = 0.0>]

// CHECK-LABEL: @filler
// CHECK: %r.a.started = spmd.start "all_gather" %q.a
// CHECK-NEXT: %g.a = aten.sum.dim_IntList
// CHECK: %r.b.started = spmd.start "all_gather" %q.b
// CHECK-NEXT: %g.b = aten.sum.dim_IntList
// CHECK: %r.a = spmd.wait %r.a.started
// PHASES-LABEL: @filler
// PHASES: %g.a = aten.sum.dim_IntList
// PHASES: %r.a.started = spmd.start "all_gather" %q.a
// PHASES: %g.b = aten.sum.dim_IntList
// PHASES: %r.b.started = spmd.start "all_gather" %q.b
func.func @filler(%x: tensor<8x4xf32> {train.batch = "0"}, %w: tensor<9999xf32>) -> (tensor<f32>, tensor<4xf32>) {
  %p = spmd.slice [{"micro"}, {}] %x out_sharding = <@mesh, [{"micro"}, {}]> : tensor<8x4xf32>
  %g = aten.sum.dim_IntList %p {dim = [0 : i64],
    spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([{}], unreduced={"micro"})>
  } : (tensor<8x4xf32>) -> tensor<4xf32>
  %q = spmd.slice [{}, {"gpu"}] %p out_sharding = <@mesh, [{"micro"}, {"gpu"}]> : tensor<8x4xf32>
  %r = spmd.all_gather [{}, {"gpu"}] %q out_sharding = <@mesh, [{"micro"}, {}]> : tensor<8x4xf32>
  %s = aten.sum %r {spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([], unreduced={"micro"})>}
    : (tensor<8x4xf32>) -> tensor<f32>
  %t = spmd.all_reduce [{"micro"}] %s out_sharding = <@mesh, []> : tensor<f32>
  %u = spmd.all_reduce [{"micro"}] %g out_sharding = <@mesh, [{}]> : tensor<4xf32>
  func.return %t, %u : tensor<f32>, tensor<4xf32>
}
