// RUN: opt-tool %s -p select-collectives --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s -p 'select-collectives{method=padded}' --mlir-print-debuginfo=false | filecheck %s --check-prefix=PADDED
// RUN: opt-tool %s -p 'select-collectives{method=grouped_broadcast}' --mlir-print-debuginfo=false | filecheck %s --check-prefix=GROUPED

// Nearly equal parts are padded, very unequal ones are sent without padding.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-9, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=4]>
spmd.cluster @four on @mesh devices [#cpu] placement [0, 0, 0, 0] links [#link]
// CHECK-LABEL: func.func @step
// PADDED-LABEL: func.func @step
// GROUPED-LABEL: func.func @step
func.func @step(
  %near: tensor<40xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}], offsets={0: [0, 11, 20, 30, 40]}>},
  %far: tensor<40xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}], offsets={0: [0, 37, 38, 39, 40]}>},
  %sums: tensor<40xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}], unreduced={"gpu"}>}
) -> (tensor<40xf32>, tensor<40xf32>, tensor<40xf32>) {
  // CHECK-NEXT: spmd.all_gather [{"gpu"}] %near out_sharding = <@mesh, [{}]> method = "padded"
  // PADDED-NEXT: spmd.all_gather [{"gpu"}] %near out_sharding = <@mesh, [{}]> method = "padded"
  // GROUPED-NEXT: spmd.all_gather [{"gpu"}] %near out_sharding = <@mesh, [{}]> method = "grouped_broadcast"
  %a = spmd.reshard %near to <@mesh, [{}]> : tensor<40xf32>
  // CHECK-NEXT: spmd.all_gather [{"gpu"}] %far out_sharding = <@mesh, [{}]> method = "grouped_broadcast"
  // PADDED-NEXT: spmd.all_gather [{"gpu"}] %far out_sharding = <@mesh, [{}]> method = "padded"
  // GROUPED-NEXT: spmd.all_gather [{"gpu"}] %far out_sharding = <@mesh, [{}]> method = "grouped_broadcast"
  %b = spmd.reshard %far to <@mesh, [{}]> : tensor<40xf32>
  // CHECK-NEXT: spmd.reduce_scatter [{"gpu"}] %sums {{.*}} method = "grouped_broadcast"
  // PADDED-NEXT: spmd.reduce_scatter [{"gpu"}] %sums {{.*}} method = "padded"
  // GROUPED-NEXT: spmd.reduce_scatter [{"gpu"}] %sums {{.*}} method = "grouped_broadcast"
  %c = spmd.reshard %sums to <@mesh, [{"gpu"}], offsets={0: [0, 37, 38, 39, 40]}> : tensor<40xf32>
  func.return %a, %b, %c : tensor<40xf32>, tensor<40xf32>, tensor<40xf32>
}
