// RUN: opt-tool %s --pass-pipeline='add-pins{pins="%S/Inputs/mixed.toml"}' --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s --pass-pipeline='add-pins{pins="%S/Inputs/mixed.toml"}' | opt-tool --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s --pass-pipeline='add-pins{pins="%S/Inputs/mixed.toml"},add-pins{pins="%S/Inputs/mixed.toml"}' \
// RUN:   --mlir-print-debuginfo=false | filecheck %s

// Globs become the matching values, a preset the placements of all values and ops; a pin of a value by name overrides.

spmd.mesh @mesh = <["gpu"=2]>
// CHECK: %w: tensor<32x16xf32> {train.param = "fc.weight", spmd.pin = #spmd.pin<([{}, {"gpu"}]), working {"gpu" = R} regather, by [1, 0]>}
// CHECK-SAME: %x: tensor<64x32xf32> {train.batch = "x", spmd.pin = #spmd.pin<{"gpu" = S(0)}, by [0]>}
// CHECK-SAME: spmd.pins = [#spmd.pin_entry<preset "zero3" at "mixed.toml:1">, #spmd.pin_entry<"fc*.weight" ([{}, {"gpu"}]) at "mixed.toml:5">, #spmd.pin_entry<"fc.weight.grad" ([{}, {}]) at "mixed.toml:9">]
// CHECK: %y = aten.mm %x, %w {spmd.pin = #spmd.op_pin<"gpu" = (S(0), R) -> (S(0)), by [0]>}
// CHECK: %g = aten.mm %xt, %y {train.backward, spmd.pin = #spmd.op_pin<"gpu" = (S(1), S(0)) -> (P), by [0]>}
// CHECK: train.sgd {{.*}}spmd.pin = #spmd.op_pin<operand 1 ([{}, {}]), by [2]>
func.func @step(
  %w: tensor<32x16xf32> {train.param = "fc.weight"},
  %x: tensor<64x32xf32> {train.batch = "x"},
  %count: tensor<f32> {train.step_count},
  %lr: tensor<f32> {train.learning_rate}
) -> (tensor<32x16xf32> {train.updates = 0 : i64}) {
  %y = aten.mm %x, %w : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  %xt = aten.t %x {train.backward} : (tensor<64x32xf32>) -> tensor<32x64xf32>
  %g = aten.mm %xt, %y {train.backward} : (tensor<32x64xf32>, tensor<64x16xf32>) -> tensor<32x16xf32>
  %w.new = train.sgd %w, %g, %count, %lr {absent = ["momentum_buffer"]}
    : (tensor<32x16xf32>, tensor<32x16xf32>, tensor<f32>, tensor<f32>) -> tensor<32x16xf32>
  func.return %w.new : tensor<32x16xf32>
}
