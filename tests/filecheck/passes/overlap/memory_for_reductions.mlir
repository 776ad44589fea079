// RUN: opt-tool %s --pass-pipeline='overlap{bucket_mb=0 memory=180}' --verify-numerics --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s --pass-pipeline='overlap{bucket_mb=0}' --mlir-print-debuginfo=false | filecheck %s --check-prefix=AMPLE

// If a rank would exceed its memory, the oldest reduce-scatter is waited for before that op, even on a slow link.
// If there is enough memory, reductions are waited for when they are needed.

#sum = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{}], unreduced={"gpu"})>
#neg = #spmd.sig<@mesh, ([{}], unreduced={"gpu"}) -> ([{}], unreduced={"gpu"})>
#half = #spmd.sharding<@mesh, [{"gpu"}]>

spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @c on @mesh devices [#spmd.device<"a", flops = {float32 = 1.0e9}, bandwidth = 64.0, memory = 1.0e9, launch = 0.0>] placement [0, 0] links [#spmd.link<"gpu", alpha = 10.0, beta = 0.0>]

// CHECK-LABEL: func.func @step
// CHECK:         %a.own.started = spmd.start
// CHECK-NEXT:    %b = aten.neg
// CHECK-NEXT:    %b.own.started = spmd.start
// CHECK-NEXT:    %a.own = spmd.wait
// CHECK-NEXT:    %c = aten.neg
// CHECK-NEXT:    %b.own = spmd.wait
// CHECK-NEXT:    %d = aten.neg
// CHECK-NEXT:    %e = aten.neg
// CHECK-NEXT:    %e.own.started = spmd.start

// AMPLE-LABEL: func.func @step
// AMPLE:         %a.own.started = spmd.start
// AMPLE-NEXT:    %b = aten.neg
// AMPLE-NEXT:    %b.own.started = spmd.start
// AMPLE-NEXT:    %c = aten.neg
// AMPLE-NEXT:    %d = aten.neg
// AMPLE-NEXT:    %e = aten.neg
// AMPLE-NEXT:    %e.own.started = spmd.start
// AMPLE-NEXT:    %a.own = spmd.wait
func.func @step(%x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>})
    -> (tensor<8xf32> {spmd.sharding = #half}, tensor<8xf32> {spmd.sharding = #half}, tensor<8xf32> {spmd.sharding = #half}) {
  %a = aten.sum.dim_IntList %x {dim = [0 : i64], spmd.signature = #sum} : (tensor<4x8xf32>) -> tensor<8xf32>
  %b = aten.neg %a {spmd.signature = #neg} : (tensor<8xf32>) -> tensor<8xf32>
  %c = aten.neg %b {spmd.signature = #neg} : (tensor<8xf32>) -> tensor<8xf32>
  %d = aten.neg %c {spmd.signature = #neg} : (tensor<8xf32>) -> tensor<8xf32>
  %e = aten.neg %d {spmd.signature = #neg} : (tensor<8xf32>) -> tensor<8xf32>
  %a.own = spmd.reduce_scatter [{"gpu"}] %a out_sharding = <@mesh, [{"gpu"}]> : tensor<8xf32>
  %b.own = spmd.reduce_scatter [{"gpu"}] %b out_sharding = <@mesh, [{"gpu"}]> : tensor<8xf32>
  %e.own = spmd.reduce_scatter [{"gpu"}] %e out_sharding = <@mesh, [{"gpu"}]> : tensor<8xf32>
  func.return %a.own, %b.own, %e.own : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}
