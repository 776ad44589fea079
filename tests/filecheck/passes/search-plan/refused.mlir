// RUN: not opt-tool %s --pass-pipeline='search-plan{mesh=2x4}' 2>&1 | filecheck %s --check-prefix=MESH
// RUN: not opt-tool %s --pass-pipeline='search-plan{stages=9}' 2>&1 | filecheck %s --check-prefix=STAGES
// RUN: not opt-tool %s --pass-pipeline='search-plan' 2>&1 | filecheck %s --check-prefix=MEMORY
// RUN: sed 's/memory = 3000.0/memory = 500.0/' %s | not opt-tool --pass-pipeline='search-plan' 2>&1 | filecheck %s --check-prefix=STATE

// MESH: mesh 2x4 has 8 devices, but cluster 'four' has 4; the product of the axis sizes must be the same
// STAGES: no plan obeys the options (stages=9): a stage needs a device of its own, and the cluster has 4
// MEMORY: no plan fits: of {{[0-9]+}} candidates
// MEMORY-SAME: on a device that has 2.93 KiB; use more devices, a smaller batch or a smaller model
// STATE: no plan fits: parameters and optimizer states take 2.00 KiB, and all devices have 1.95 KiB together; use more devices

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 3000.0, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-9, beta = 1.0e-12>
spmd.mesh @mesh = <["gpu"=4]>
spmd.cluster @four on @mesh devices [#cpu] placement [0, 0, 0, 0] links [#link]

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
