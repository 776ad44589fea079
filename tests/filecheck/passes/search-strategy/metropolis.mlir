// RUN: opt-tool %s --pass-pipeline='search-strategy{algorithm=metropolis without=reduction explain=true budget=100}' \
// RUN:   --mlir-print-debuginfo=false | filecheck %s

// One product changes at a time, and a more expensive strategy is accepted with a probability.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]

// CHECK: algorithm = "metropolis", cost = 7.4760000{{[0-9]*}}e-05
// CHECK-SAME: statistics = {accepted = {{[0-9]+}} : i64, accepted_uphill = 0 : i64, decided = 2 : i64
// CHECK-SAME: visited = 100 : i64}
func.func @step(
  %w: tensor<32x16xf32> {train.param = "fc.weight"},
  %x: tensor<64x32xf32> {train.batch = "x"},
  %t: tensor<64x16xf32> {train.batch = "t"},
  %count: tensor<f32> {train.step_count},
  %lr: tensor<f32> {train.learning_rate}
) -> (tensor<32x16xf32> {train.updates = 0 : i64}) {
  // CHECK: %y = aten.mm {{.*}}([{}, {}], [{}, {"gpu"}]) -> ([{}, {"gpu"}])>
  %y = aten.mm %x, %w : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  %d = aten.sub.Tensor %y, %t : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  %xt = aten.t %x {train.backward} : (tensor<64x32xf32>) -> tensor<32x64xf32>
  %g = aten.mm %xt, %d {train.backward} : (tensor<32x64xf32>, tensor<64x16xf32>) -> tensor<32x16xf32>
  %w.new = train.sgd %w, %g, %count, %lr {absent = ["momentum_buffer"]}
    : (tensor<32x16xf32>, tensor<32x16xf32>, tensor<f32>, tensor<f32>) -> tensor<32x16xf32>
  func.return %w.new : tensor<32x16xf32>
}
