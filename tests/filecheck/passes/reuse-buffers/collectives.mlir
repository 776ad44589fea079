// RUN: opt-tool %s --pass-pipeline=reuse-buffers --mlir-print-debuginfo=false | filecheck %s

// An all-reduce is in place, a started one until its wait; a result that may be the operand itself is not overwritten.

spmd.mesh @mesh = <["gpu"=2]>
// CHECK-LABEL: func.func @step
func.func @step(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}], unreduced={"gpu"}>}) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
  %a = aten.neg %x {spmd.signature = #spmd.sig<@mesh, ([{}], unreduced={"gpu"}) -> ([{}], unreduced={"gpu"})>} : (tensor<8xf32>) -> tensor<8xf32>
  // CHECK: %b = spmd.all_reduce [{"gpu"}] %a out_sharding = <@mesh, [{}]> {spmd.reuses = array<i64: 0>}
  %b = spmd.all_reduce [{"gpu"}] %a out_sharding = <@mesh, [{}]> : tensor<8xf32>
  %c = aten.neg %x {spmd.signature = #spmd.sig<@mesh, ([{}], unreduced={"gpu"}) -> ([{}], unreduced={"gpu"})>} : (tensor<8xf32>) -> tensor<8xf32>
  // CHECK: %t = spmd.start "all_reduce" %c out_shardings = [#spmd.sharding<@mesh, [{}]>] {spmd.reuses = array<i64: 0>}
  %t = spmd.start "all_reduce" %c out_shardings = [#spmd.sharding<@mesh, [{}]>] : tensor<8xf32>
  // CHECK-NEXT: %d = spmd.wait %t : tensor<8xf32>
  %d = spmd.wait %t : tensor<8xf32>
  // %p is %b itself on the first rank.
  %p = spmd.partial [{"gpu"}] %b out_sharding = <@mesh, [{}], unreduced={"gpu"}> : tensor<8xf32>
  // CHECK: %q = spmd.all_reduce [{"gpu"}] %p out_sharding = <@mesh, [{}]> {spmd.reuses = array<i64: -1>}
  %q = spmd.all_reduce [{"gpu"}] %p out_sharding = <@mesh, [{}]> : tensor<8xf32>
  func.return %b, %d, %q : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}
