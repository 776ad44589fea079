// RUN: opt-tool %s --pass-pipeline=search-strategy --mlir-print-debuginfo=false | filecheck %s --check-prefix=FREE
// RUN: opt-tool %s --pass-pipeline='search-strategy{memory=12000}' --mlir-print-debuginfo=false | filecheck %s --check-prefix=TIGHT
// RUN: not opt-tool %s --pass-pipeline='search-strategy{memory=8000}' 2>&1 | filecheck %s --check-prefix=REFUSED

// The cheapest strategy keeps the full batch on every device. If it does not fit, the cheapest fitting strategy is
// taken; if no strategy fits, the error names the missing bytes.
// REFUSED: no strategy fits: the tightest found needs 11272 bytes on a device that has 8000 bytes, 3272 bytes too much;

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]

// FREE: cost = 7.476{{.*}} peak_bytes = 15368
// TIGHT: cost = 7.881{{.*}} peak_bytes = 11272
func.func @step(
  %w: tensor<32x16xf32> {train.param = "fc.weight"},
  %x: tensor<64x32xf32> {train.batch = "x"},
  %t: tensor<64x16xf32> {train.batch = "t"},
  %count: tensor<f32> {train.step_count},
  %lr: tensor<f32> {train.learning_rate}
) -> (tensor<32x16xf32> {train.updates = 0 : i64}) {
  // FREE: %y = aten.mm {{.*}}([{}, {}], [{}, {"gpu"}]) -> ([{}, {"gpu"}])>
  // TIGHT: %y = aten.mm {{.*}}([{"gpu"}, {}], [{}, {}]) -> ([{"gpu"}, {}])>
  %y = aten.mm %x, %w : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  %d = aten.sub.Tensor %y, %t : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  %xt = aten.t %x {train.backward} : (tensor<64x32xf32>) -> tensor<32x64xf32>
  %g = aten.mm %xt, %d {train.backward} : (tensor<32x64xf32>, tensor<64x16xf32>) -> tensor<32x16xf32>
  %w.new = train.sgd %w, %g, %count, %lr {absent = ["momentum_buffer"]}
    : (tensor<32x16xf32>, tensor<32x16xf32>, tensor<f32>, tensor<f32>) -> tensor<32x16xf32>
  func.return %w.new : tensor<32x16xf32>
}
