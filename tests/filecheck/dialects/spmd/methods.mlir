// RUN: opt-tool %s --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s --mlir-print-debuginfo=false --mlir-print-op-generic | filecheck %s --check-prefix=GENERIC

// Methods and kinds are words of a fixed set.
spmd.mesh @mesh = <["node"=2, "gpu"=2]>
// CHECK-LABEL: func.func @each_kind
func.func @each_kind(
    %x: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>},
    %p: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {}], unreduced={"node", "gpu"}>}) {
  // CHECK: method = "padded"
  // GENERIC: method = #spmd<method "padded">
  %y = spmd.all_gather [{"gpu"}, {}] %x out_sharding = <@mesh, [{}, {}]> method = "padded" : tensor<4x6xf32>
  // CHECK: method = "hierarchical"
  %r = spmd.all_reduce [{"node", "gpu"}] %p out_sharding = <@mesh, [{}, {}]> method = "hierarchical" : tensor<4x6xf32>
  // CHECK: spmd.start "all_gather"
  // GENERIC: kind = #spmd<kind "all_gather">
  %t = spmd.start "all_gather" %x out_shardings = [#spmd.sharding<@mesh, [{}, {}]>] method = "flat" : tensor<4x6xf32>
  %w = spmd.wait %t : tensor<4x6xf32>
  func.return
}
