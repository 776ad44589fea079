// RUN: opt-tool %s --pass-pipeline='search-strategy{memory=20000},fit-memory{pipeline="search-strategy{memory=20000}"}' --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s --pass-pipeline='search-strategy{memory=12000},fit-memory{pipeline="search-strategy"}' --mlir-print-debuginfo=false | filecheck %s --check-prefix=FITS

// The first search predicts less memory than its program needs. The limit is lowered by the excess, and the next fits.
// A program that fits is not changed.
// CHECK: peak_bytes = 11272
// CHECK-SAME: spmd.memory_budget = 1.300000e+04
// FITS: peak_bytes = 11272
// FITS-NOT: spmd.memory_budget


#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 13000.0, launch = 0.0>
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
