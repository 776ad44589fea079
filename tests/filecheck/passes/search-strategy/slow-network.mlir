// RUN: opt-tool %s --pass-pipeline=search-strategy --mlir-print-debuginfo=false | filecheck %s

// The network is so slow that no message pays: every device computes everything.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]

// CHECK-LABEL: func.func @step
// CHECK-SAME: %w1: tensor<32x32xf32> {train.param = "fc1", spmd.sharding = #spmd.sharding<@mesh, [{}, {}]>}
func.func @step(
  %w1: tensor<32x32xf32> {train.param = "fc1"},
  %w2: tensor<32x32xf32> {train.param = "fc2"},
  %x: tensor<4x32xf32> {train.batch = "x"},
  %t: tensor<4x32xf32> {train.batch = "t"},
  %count: tensor<f32> {train.step_count},
  %lr: tensor<f32> {train.learning_rate}
) -> (tensor<32x32xf32> {train.updates = 0 : i64}, tensor<32x32xf32> {train.updates = 1 : i64}) {
  // CHECK: %y = aten.mm %x, %w1 {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}, {}]) -> ([{}, {}])>}
  %y = aten.mm %x, %w1 : (tensor<4x32xf32>, tensor<32x32xf32>) -> tensor<4x32xf32>
  %z = aten.mm %y, %w2 : (tensor<4x32xf32>, tensor<32x32xf32>) -> tensor<4x32xf32>
  %dz = aten.sub.Tensor %z, %t : (tensor<4x32xf32>, tensor<4x32xf32>) -> tensor<4x32xf32>
  %yt = aten.t %y {train.backward} : (tensor<4x32xf32>) -> tensor<32x4xf32>
  %g2 = aten.mm %yt, %dz {train.backward} : (tensor<32x4xf32>, tensor<4x32xf32>) -> tensor<32x32xf32>
  %w2t = aten.t %w2 {train.backward} : (tensor<32x32xf32>) -> tensor<32x32xf32>
  %dy = aten.mm %dz, %w2t {train.backward} : (tensor<4x32xf32>, tensor<32x32xf32>) -> tensor<4x32xf32>
  %xt = aten.t %x {train.backward} : (tensor<4x32xf32>) -> tensor<32x4xf32>
  %g1 = aten.mm %xt, %dy {train.backward} : (tensor<32x4xf32>, tensor<4x32xf32>) -> tensor<32x32xf32>
  %w1.new = train.sgd %w1, %g1, %count, %lr {absent = ["momentum_buffer"]}
    : (tensor<32x32xf32>, tensor<32x32xf32>, tensor<f32>, tensor<f32>) -> tensor<32x32xf32>
  %w2.new = train.sgd %w2, %g2, %count, %lr {absent = ["momentum_buffer"]}
    : (tensor<32x32xf32>, tensor<32x32xf32>, tensor<f32>, tensor<f32>) -> tensor<32x32xf32>
  func.return %w1.new, %w2.new : tensor<32x32xf32>, tensor<32x32xf32>
}
// CHECK-NOT: {"gpu"}
