// RUN: not opt-tool %s --pass-pipeline='search-strategy{pins="%S/Inputs/typo.toml"}' 2>&1 \
// RUN:   | filecheck %s --check-prefix=TYPO
// RUN: not opt-tool %s --pass-pipeline='search-strategy{pins="%S/Inputs/no-axis.toml"}' 2>&1 \
// RUN:   | filecheck %s --check-prefix=AXIS
// RUN: not opt-tool %s --pass-pipeline='search-strategy{pins="%S/Inputs/unknown-preset.toml"}' 2>&1 \
// RUN:   | filecheck %s --check-prefix=PRESET
// RUN: not opt-tool %s --pass-pipeline='search-strategy{pins="%S/Inputs/partial.toml"}' 2>&1 \
// RUN:   | filecheck %s --check-prefix=HOME
// RUN: not opt-tool %s --pass-pipeline='search-strategy{pins="%S/Inputs/partial-grad.toml"}' 2>&1 \
// RUN:   | filecheck %s --check-prefix=GRAD
// RUN: not opt-tool %s --pass-pipeline='search-strategy{pins="%S/Inputs/missing.toml"}' 2>&1 \
// RUN:   | filecheck %s --check-prefix=FILE

// Impossible pins are refused with the reason, at the step or op concerned.
// TYPO: 'func.func' op @step: typo.toml:1: pin 'fcc.weight' matches no parameter, state, gradient or batch input; did you mean "fc.weight"?
// AXIS: pin 'fc.weight' on fc.weight: mesh @mesh has no axis "gpus"; its axes are "gpu"=2
// PRESET: Inputs/unknown-preset.toml:1: pin 1: preset 'fsdp' is not one of dp, zero1, zero2, zero3, tp
// HOME: 'func.func' op @step: partial.toml:1: pin 'fc.weight' leaves no sharding for %w of shape [32, 16]
// GRAD: 'train.sgd' op %w.new: partial-grad.toml:1: pin 'fc.weight.grad' leaves no signature for it; its rule is
// FILE: Inputs/missing.toml: cannot read the pin file: No such file or directory

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]

func.func @step(
  %w: tensor<32x16xf32> {train.param = "fc.weight"},
  %x: tensor<64x32xf32> {train.batch = "x"},
  %t: tensor<64x16xf32> {train.batch = "t"},
  %count: tensor<f32> {train.step_count},
  %lr: tensor<f32> {train.learning_rate}
) -> (tensor<32x16xf32> {train.updates = 0 : i64}) {
  %y = aten.mm %x, %w : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  %d = aten.sub.Tensor %y, %t : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  %xt = aten.t %x {train.backward} : (tensor<64x32xf32>) -> tensor<32x64xf32>
  %g = aten.mm %xt, %d {train.backward} : (tensor<32x64xf32>, tensor<64x16xf32>) -> tensor<32x16xf32>
  %w.new = train.sgd %w, %g, %count, %lr {absent = ["momentum_buffer"]}
    : (tensor<32x16xf32>, tensor<32x16xf32>, tensor<f32>, tensor<f32>) -> tensor<32x16xf32>
  func.return %w.new : tensor<32x16xf32>
}
