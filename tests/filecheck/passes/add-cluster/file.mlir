// RUN: opt-tool %s --pass-pipeline='add-cluster{file="%S/Inputs/pair.toml"}' --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s --pass-pipeline='add-cluster{file=h100-8x8},add-cluster{file="%S/Inputs/pair.toml"}' \
// RUN:   --mlir-print-debuginfo=false | filecheck %s

// Mesh and cluster come first and replace existing ones; the memory found by fit-memory is removed with them.
// CHECK:      builtin.module {
// CHECK-NEXT:   spmd.mesh @mesh = <["gpu"=2]>
// CHECK-NEXT:   spmd.cluster @pair on @mesh devices [#spmd.device<"cpu", flops = {float32 = 1000000000.0}, bandwidth = 1000000000.0, memory = 1000000000.0, launch = 0.0>]
// CHECK-SAME:     placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-06, beta = 1.0e-09>]
// CHECK-NEXT:   func.func @f
// CHECK-NOT:    spmd.
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> attributes {spmd.memory_budget = 1000.0} {
  func.return %x : tensor<4xf32>
}
