// RUN: opt-tool %s --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s --mlir-print-op-generic | opt-tool --mlir-print-debuginfo=false | filecheck %s

spmd.mesh @mesh = <["node"=2, "gpu"=2]>
func.func @step(
  // CHECK: spmd.pin = #spmd.pin<([{"gpu"}, {}], unreduced={"node"}), working {"node" = R, "gpu" = S(0) | S(1)} regather, by [0, 1]>
  %x: tensor<4x4xf32> {spmd.pin = #spmd.pin<([{"gpu"}, {}], unreduced={"node"}), working {"node" = R, "gpu" = S(1) | S(0)} regather, by [0, 1]>},
  // CHECK-SAME: spmd.pin = #spmd.pin<working ([{}, {}])>
  %w: tensor<4x4xf32> {spmd.pin = #spmd.pin<working ([{}, {}])>}
) -> tensor<4x4xf32> attributes {
  // CHECK-SAME: spmd.pins = [#spmd.pin_entry<preset "dp" over ["gpu"] at "pins.toml:1">, #spmd.pin_entry<"*.we\"ight" ([{}, {}])>]
  spmd.pins = [#spmd.pin_entry<preset "dp" over ["gpu"] at "pins.toml:1">, #spmd.pin_entry<"*.we\22ight" ([{}, {}])>]
} {
  // CHECK: spmd.pin = #spmd.op_pin<"gpu" = (S(0), R) -> (S(0)), not "node" = (S(0), any) -> (any), operand 1 {"node" = R}>
  %y = aten.mm %x, %w {spmd.pin = #spmd.op_pin<"gpu" = (S(0), R) -> (S(0)), not "node" = (S(0), any) -> (any), operand 1 {"node" = R}>}
    : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK: spmd.pin = #spmd.op_pin<signature ([{}, {}]) -> ([{}, {}]), result 0 working {"gpu" = R} regather, by [0]>
  %z = aten.relu %y {spmd.pin = #spmd.op_pin<signature ([{}, {}]) -> ([{}, {}]), result 0 working {"gpu" = R} regather, by [0]>}
    : (tensor<4x4xf32>) -> tensor<4x4xf32>
  func.return %z : tensor<4x4xf32>
}
