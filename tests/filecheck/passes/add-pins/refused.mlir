// RUN: not opt-tool %s --pass-pipeline='add-pins{pins=fsdp}' 2>&1 | filecheck %s --check-prefix=ALIAS
// RUN: not opt-tool %s --pass-pipeline='add-pins{pins="[[pin]]\nvalue = \"v\"\nsharding = \"[]\""}' 2>&1 | filecheck %s --check-prefix=TEXT
// RUN: not opt-tool %s --pass-pipeline='add-pins{pins="[[pin]]\npreset = \"dp\"\n[[pin]]\npreset = 3"}' 2>&1 | filecheck %s --check-prefix=LINE
// RUN: not opt-tool %s --pass-pipeline='add-cluster{file="local-4"},search-strategy{algorithm=fixed pins=zero3},insert-resharding,add-pins{pins=dp}' 2>&1 \
// RUN:   | filecheck %s --check-prefix=LOWERED

// Invalid pins are refused with the entry and its line.

// ALIAS: pins 'fsdp': expected a file or a preset (dp, zero1, zero2, zero3, tp); fsdp is called 'zero3' here
// TEXT: 'func.func' op @step: pins:1: pin 'v' matches no parameter, state, gradient or batch input
// LOWERED: exists already; run add-pins before insert-resharding, or strip-resharding before it
// LINE: pins:3: pin 2: 'preset' is 3, expected text

spmd.mesh @mesh = <["gpu"=4]>
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
