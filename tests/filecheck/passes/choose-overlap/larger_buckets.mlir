// RUN: opt-tool %s --pass-pipeline='overlap' | filecheck %s --check-prefix=USUAL
// RUN: opt-tool %s --pass-pipeline='choose-overlap' | filecheck %s

// Two gradients are there at about the same time, and a message costs as much as eight thousand bytes: by default
// buckets have room for one of them, and two messages go one after the other. In a bucket of twice the size they take
// less time together, though the first waits for the second.

// USUAL:     spmd.start "all_reduce" %g
// USUAL-NOT: %g, %h
// USUAL:     spmd.start "all_reduce" %h
// CHECK:     spmd.start "all_reduce" %g, %h
// CHECK-NOT: spmd.start

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e12, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-3, beta = 1.25e-7>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]
func.func @step(%w: tensor<12000xf32> {train.param = "w"}, %b: tensor<12000xf32> {train.param = "b"},
    %x: tensor<4x12000xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>}, %lr: tensor<f32>)
    -> (tensor<12000xf32> {train.updates = 0 : i64}, tensor<12000xf32> {train.updates = 1 : i64}) {
  %g = aten.sum.dim_IntList %x {dim = [0 : i64],
    spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{}], unreduced={"gpu"})>
  } : (tensor<4x12000xf32>) -> tensor<12000xf32>
  %h = aten.neg %g {
    spmd.signature = #spmd.sig<@mesh, ([{}], unreduced={"gpu"}) -> ([{}], unreduced={"gpu"})>
  } : (tensor<12000xf32>) -> tensor<12000xf32>
  %g.sum = spmd.all_reduce [{"gpu"}] %g out_sharding = <@mesh, [{}]> : tensor<12000xf32>
  %w.new = train.sgd %w, %g.sum, %lr {absent = ["momentum_buffer", "step"],
    spmd.signature = #spmd.sig<@mesh, ([{}], [{}], []) -> ([{}])>}
    : (tensor<12000xf32>, tensor<12000xf32>, tensor<f32>) -> tensor<12000xf32>
  %h.sum = spmd.all_reduce [{"gpu"}] %h out_sharding = <@mesh, [{}]> : tensor<12000xf32>
  %b.new = train.sgd %b, %h.sum, %lr {absent = ["momentum_buffer", "step"],
    spmd.signature = #spmd.sig<@mesh, ([{}], [{}], []) -> ([{}])>}
    : (tensor<12000xf32>, tensor<12000xf32>, tensor<f32>) -> tensor<12000xf32>
  func.return %w.new, %b.new : tensor<12000xf32>, tensor<12000xf32>
}
