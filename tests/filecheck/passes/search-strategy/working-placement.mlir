// RUN: opt-tool %s --pass-pipeline=search-strategy --mlir-print-debuginfo=false | filecheck %s

// A value with several users that need another sharding is resharded once: to its working placement.
// The weights are stored split, which makes their update cheapest, and all three products need them replicated.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]

// CHECK: %w: tensor<64x64xf32> {train.param = "w", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>, spmd.working = #spmd.sharding<@mesh, [{}, {}]>}
func.func @step(
  %w: tensor<64x64xf32> {train.param = "w"},
  %x: tensor<2048x64xf32> {train.batch = "x"},
  %g: tensor<64x64xf32> {train.batch = "g"},
  %count: tensor<f32> {train.step_count},
  %lr: tensor<f32> {train.learning_rate}
) -> (tensor<64x64xf32> {train.updates = 0 : i64}, tensor<2048x64xf32>) {
  %a = aten.mm %x, %w : (tensor<2048x64xf32>, tensor<64x64xf32>) -> tensor<2048x64xf32>
  // CHECK: %b = aten.mm %a, %w {{.*}}([{"gpu"}, {}], [{}, {}]) -> ([{"gpu"}, {}])>}
  %b = aten.mm %a, %w : (tensor<2048x64xf32>, tensor<64x64xf32>) -> tensor<2048x64xf32>
  %c = aten.mm %b, %w : (tensor<2048x64xf32>, tensor<64x64xf32>) -> tensor<2048x64xf32>
  // CHECK: %w.new = train.sgd %w, %g, %count, %lr {{.*}}([{"gpu"}, {}], [{"gpu"}, {}], [], []) -> ([{"gpu"}, {}])>}
  %w.new = train.sgd %w, %g, %count, %lr {absent = ["momentum_buffer"]}
    : (tensor<64x64xf32>, tensor<64x64xf32>, tensor<f32>, tensor<f32>) -> tensor<64x64xf32>
  func.return %w.new, %c : tensor<64x64xf32>, tensor<2048x64xf32>
}
