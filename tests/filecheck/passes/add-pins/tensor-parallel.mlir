// RUN: opt-tool %s --pass-pipeline='add-pins{pins=tp}' --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s --pass-pipeline='add-pins{pins=dp},add-pins{pins=tp replace=true}' --mlir-print-debuginfo=false | filecheck %s

// Tensor parallelism allows a choice of dims, and forbids splitting the batch; replace=true removes earlier pins.

spmd.mesh @mesh = <["gpu"=2]>
// CHECK: %w: tensor<32x16xf32> {train.param = "fc.weight", spmd.pin = #spmd.pin<{"gpu" = S(0) | S(1)}, working {"gpu" = S(0) | S(1)}, by [0]>}
// CHECK-SAME: %x: tensor<64x32xf32> {train.batch = "x", spmd.pin = #spmd.pin<{"gpu" = R}, by [0]>}
// CHECK-SAME: %count: tensor<f32> {train.step_count}
// CHECK: aten.mm %x, %w {spmd.pin = #spmd.op_pin<not "gpu" = (S(0), any) -> (S(0)), operand 1 {"gpu" = S(0) | S(1)}, by [0]>}
// CHECK: train.sgd %w, %g, %count, %lr {absent = ["momentum_buffer"]}
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
