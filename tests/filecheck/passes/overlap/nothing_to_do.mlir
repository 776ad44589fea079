// RUN: opt-tool %s --pass-pipeline='overlap' | filecheck %s

// Local steps, and collectives over a single rank, have nothing to wait for. Frees and reused memory depend on the order of ops: they are
// dropped, and decided again by later passes.

spmd.mesh @mesh = <["gpu"=2, "one"=1]>

// CHECK-LABEL: func.func @step
// CHECK-NEXT:    %a = spmd.slice
// CHECK-NEXT:    %b = aten.neg
// CHECK-NEXT:    %c = spmd.all_reduce [{"one"}] %b out_sharding = <@mesh, [{"gpu"}]> :
// CHECK-NEXT:    %d = aten.neg
// CHECK-NEXT:    func.return
func.func @step(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}], unreduced={"one"}>}) -> tensor<4xf32> {
  %a = spmd.slice [{"gpu"}] %x out_sharding = <@mesh, [{"gpu"}], unreduced={"one"}> : tensor<4xf32>
  %b = aten.neg %a {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}], unreduced={"one"}) -> ([{"gpu"}], unreduced={"one"})>} : (tensor<4xf32>) -> tensor<4xf32>
  %c = spmd.all_reduce [{"one"}] %b out_sharding = <@mesh, [{"gpu"}]> {spmd.reuses = array<i64: 0>} : tensor<4xf32>
  %d = aten.neg %c {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}]) -> ([{"gpu"}])>} : (tensor<4xf32>) -> tensor<4xf32>
  spmd.free %b : tensor<4xf32>
  func.return %d : tensor<4xf32>
}
