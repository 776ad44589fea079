// RUN: opt-tool %s --pass-pipeline=insert-frees --mlir-print-debuginfo=false | filecheck %s

// A started collective reads its operands until its wait; arguments belong to the caller.

spmd.mesh @mesh = <["gpu"=2]>
// CHECK-LABEL: func.func @step
func.func @step(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> tensor<8xf32> {
  // CHECK-NEXT: %a = aten.relu %x
  %a = aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}]) -> ([{"gpu"}])>} : (tensor<8xf32>) -> tensor<8xf32>
  // CHECK-NEXT: %t = spmd.start "all_gather" %a
  %t = spmd.start "all_gather" %a out_shardings = [#spmd.sharding<@mesh, [{}]>] : tensor<8xf32>
  // CHECK-NEXT: %b = aten.exp %x
  %b = aten.exp %x {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}]) -> ([{"gpu"}])>} : (tensor<8xf32>) -> tensor<8xf32>
  // CHECK-NEXT: %c = spmd.wait %t
  // CHECK-NEXT: spmd.free %a : tensor<8xf32>
  %c = spmd.wait %t : tensor<8xf32>
  // CHECK-NEXT: %d = spmd.all_gather {{.*}} %b
  // CHECK-NEXT: spmd.free %b : tensor<8xf32>
  %d = spmd.all_gather [{"gpu"}] %b out_sharding = <@mesh, [{}]> : tensor<8xf32>
  // CHECK-NEXT: %e = aten.mul.Tensor %c, %d
  // CHECK-NEXT: spmd.free %c, %d : tensor<8xf32>, tensor<8xf32>
  %e = aten.mul.Tensor %c, %d : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  func.return %e : tensor<8xf32>
}
