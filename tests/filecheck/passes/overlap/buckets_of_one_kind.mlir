// RUN: opt-tool %s --pass-pipeline='overlap' | filecheck %s

// A bucket has reductions of one kind, dtype and set of axes; the dims that they scatter may differ.

#sum = #spmd.sig<@mesh, ([{}, {}, {"gpu"}]) -> ([{}, {}], unreduced={"gpu"})>
#pass = #spmd.sig<@mesh, ([{}, {}], unreduced={"gpu"}) -> ([{}, {}], unreduced={"gpu"})>

spmd.mesh @mesh = <["gpu"=2]>

// CHECK-LABEL: func.func @results
// CHECK:         %b = aten.neg
// CHECK-NEXT:    %r0.started = spmd.start "reduce_scatter" %a, %b
// CHECK-NEXT:    %c = aten.neg
// CHECK-NEXT:    %r2.started = spmd.start "all_reduce" %c out
// CHECK-NEXT:    %d = aten._to_copy
// CHECK-NEXT:    %r3.started = spmd.start "reduce_scatter" %d out
// CHECK-NEXT:    %r0, %r1 = spmd.wait
// CHECK-NEXT:    %r2 = spmd.wait
// CHECK-NEXT:    %r3 = spmd.wait
// CHECK-NEXT:    func.return
func.func @results(%x: tensor<4x4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {}, {"gpu"}]>}) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf64>) {
  %a = aten.sum.dim_IntList %x {dim = [2 : i64], spmd.signature = #sum} : (tensor<4x4x8xf32>) -> tensor<4x4xf32>
  %b = aten.neg %a {spmd.signature = #pass} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %c = aten.neg %b {spmd.signature = #pass} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %d = aten._to_copy %c {dtype = f64, spmd.signature = #pass} : (tensor<4x4xf32>) -> tensor<4x4xf64>
  %r0 = spmd.reduce_scatter [{"gpu"}, {}] %a out_sharding = <@mesh, [{"gpu"}, {}]> : tensor<4x4xf32>
  %r1 = spmd.reduce_scatter [{}, {"gpu"}] %b out_sharding = <@mesh, [{}, {"gpu"}]> : tensor<4x4xf32>
  %r2 = spmd.all_reduce [{"gpu"}] %c out_sharding = <@mesh, [{}, {}]> : tensor<4x4xf32>
  %r3 = spmd.reduce_scatter [{"gpu"}, {}] %d out_sharding = <@mesh, [{"gpu"}, {}]> : tensor<4x4xf64>
  func.return %r0, %r1, %r2, %r3 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf64>
}
