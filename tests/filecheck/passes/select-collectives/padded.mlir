// RUN: opt-tool %s --pass-pipeline=select-collectives --mlir-print-debuginfo=false | filecheck %s

// Parts of different sizes are padded to the largest: an even split with a remainder, or offsets. An
// all-reduce has no parts.

#rows = #spmd.sharding<@mesh, [{"gpu"}, {}]>
#uneven = #spmd.sharding<@mesh, [{}, {"gpu"}], offsets={1: [0, 1, 6]}>
#sums = #spmd.sharding<@mesh, [{}, {}], unreduced={"gpu"}>
spmd.mesh @mesh = <["gpu"=2]>

// CHECK-LABEL: func.func @step
func.func @step(%r: tensor<7x6xf32> {spmd.sharding = #rows}, %u: tensor<8x6xf32> {spmd.sharding = #uneven}, %p: tensor<7x6xf32> {spmd.sharding = #sums})
    -> (tensor<7x6xf32>, tensor<8x6xf32>, tensor<7x6xf32>, tensor<7x6xf32>, tensor<7x6xf32>) {
  // CHECK-NEXT: %a = spmd.all_gather {{.*}} method = "padded"
  %a = spmd.reshard %r to <@mesh, [{}, {}]> : tensor<7x6xf32>
  // CHECK-NEXT: %b = spmd.all_to_all {{.*}} method = "padded"
  %b = spmd.reshard %u to <@mesh, [{"gpu"}, {}]> : tensor<8x6xf32>
  // CHECK-NEXT: %c = spmd.reduce_scatter [{"gpu"}, {}] {{.*}} method = "padded"
  %c = spmd.reshard %p to <@mesh, [{"gpu"}, {}]> : tensor<7x6xf32>
  // CHECK-NEXT: %d = spmd.reduce_scatter [{}, {"gpu"}] {{.*}} method = "flat"
  %d = spmd.reshard %p to <@mesh, [{}, {"gpu"}]> : tensor<7x6xf32>
  // CHECK-NEXT: %e = spmd.all_reduce {{.*}} method = "flat"
  %e = spmd.reshard %p to <@mesh, [{}, {}]> : tensor<7x6xf32>
  func.return %a, %b, %c, %d, %e : tensor<7x6xf32>, tensor<8x6xf32>, tensor<7x6xf32>, tensor<7x6xf32>, tensor<7x6xf32>
}
