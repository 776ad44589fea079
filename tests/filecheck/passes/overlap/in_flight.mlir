// RUN: opt-tool %s --pass-pipeline='overlap{bucket_mb=0 in_flight=1}' --verify-numerics --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s --pass-pipeline='overlap{bucket_mb=0 in_flight=2}' --mlir-print-debuginfo=false | filecheck %s --check-prefix=TWO

// Before a reduce-scatter would exceed the limit in flight, the oldest one is waited for.

#sum = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{}], unreduced={"gpu"})>
#neg = #spmd.sig<@mesh, ([{}], unreduced={"gpu"}) -> ([{}], unreduced={"gpu"})>
#half = #spmd.sharding<@mesh, [{"gpu"}]>

spmd.mesh @mesh = <["gpu"=2]>

// CHECK-LABEL: func.func @step
// CHECK:         %a.own.started = spmd.start
// CHECK-NEXT:    %b = aten.neg
// CHECK-NEXT:    %a.own = spmd.wait
// CHECK-NEXT:    %b.own.started = spmd.start
// CHECK:         %e = aten.neg
// CHECK-NEXT:    %b.own = spmd.wait
// CHECK-NEXT:    %e.own.started = spmd.start

// TWO-LABEL: func.func @step
// TWO:         %b.own.started = spmd.start
// TWO:         %e = aten.neg
// TWO-NEXT:    %a.own = spmd.wait
// TWO-NEXT:    %e.own.started = spmd.start
// TWO-NEXT:    %b.own = spmd.wait
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
