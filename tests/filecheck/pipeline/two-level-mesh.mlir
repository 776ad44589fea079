// RUN: opt-tool %s --pass-pipeline=search-strategy,communicate --mlir-print-debuginfo=false \
// RUN:   | filecheck %s

// On nodes with fast inner links and a slow network the batch is split over all devices. Gradients are scattered inside the
// node first, so that only a part of them crosses the network; weights cross it before they are gathered inside.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#slow = #spmd.link<"node", alpha = 1.0e-5, beta = 1.0e-8>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["node"=2, "gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0, 0, 0] links [#slow, #link]

func.func @step(
  %w1: tensor<96x96xf32> {train.param = "fc1"},
  %w2: tensor<96x96xf32> {train.param = "fc2"},
  %x: tensor<1024x96xf32> {train.batch = "x"},
  %t: tensor<1024x96xf32> {train.batch = "t"},
  %count: tensor<f32> {train.step_count},
  %lr: tensor<f32> {train.learning_rate}
) -> (tensor<96x96xf32> {train.updates = 0 : i64}, tensor<96x96xf32> {train.updates = 1 : i64}) {
  // CHECK: %w1.all_gather = spmd.all_gather [{"node"}, {}] %w1 out_sharding = <@mesh, [{}, {"gpu"}]>
  // CHECK-NEXT: %w1.all_gather_1 = spmd.all_gather [{}, {"gpu"}] %w1.all_gather out_sharding = <@mesh, [{}, {}]>
  // CHECK-NEXT: %y = aten.mm %x, %w1.all_gather_1 {{.*}}([{"node", "gpu"}, {}], [{}, {}]) -> ([{"node", "gpu"}, {}])>}
  %y = aten.mm %x, %w1 : (tensor<1024x96xf32>, tensor<96x96xf32>) -> tensor<1024x96xf32>
  %z = aten.mm %y, %w2 : (tensor<1024x96xf32>, tensor<96x96xf32>) -> tensor<1024x96xf32>
  %dz = aten.sub.Tensor %z, %t : (tensor<1024x96xf32>, tensor<1024x96xf32>) -> tensor<1024x96xf32>
  %yt = aten.t %y {train.backward} : (tensor<1024x96xf32>) -> tensor<96x1024xf32>
  %g2 = aten.mm %yt, %dz {train.backward} : (tensor<96x1024xf32>, tensor<1024x96xf32>) -> tensor<96x96xf32>
  %w2t = aten.t %w2 {train.backward} : (tensor<96x96xf32>) -> tensor<96x96xf32>
  %dy = aten.mm %dz, %w2t {train.backward} : (tensor<1024x96xf32>, tensor<96x96xf32>) -> tensor<1024x96xf32>
  %xt = aten.t %x {train.backward} : (tensor<1024x96xf32>) -> tensor<96x1024xf32>
  // CHECK: %g1 = aten.mm %xt, %dy {{.*}} -> ([{}, {}], unreduced={"node", "gpu"})>}
  %g1 = aten.mm %xt, %dy {train.backward} : (tensor<96x1024xf32>, tensor<1024x96xf32>) -> tensor<96x96xf32>
  // CHECK-NEXT: %g1.reduce_scatter = spmd.reduce_scatter [{}, {"gpu"}] %g1 out_sharding = <@mesh, [{}, {"gpu"}], unreduced={"node"}>
  // CHECK-NEXT: %g1.reduce_scatter_1 = spmd.reduce_scatter [{"node"}, {}] %g1.reduce_scatter out_sharding = <@mesh, [{"node"}, {"gpu"}]>
  // CHECK-NEXT: %w1.new = train.sgd %w1, %g1.reduce_scatter_1
  %w1.new = train.sgd %w1, %g1, %count, %lr {absent = ["momentum_buffer"]}
    : (tensor<96x96xf32>, tensor<96x96xf32>, tensor<f32>, tensor<f32>) -> tensor<96x96xf32>
  %w2.new = train.sgd %w2, %g2, %count, %lr {absent = ["momentum_buffer"]}
    : (tensor<96x96xf32>, tensor<96x96xf32>, tensor<f32>, tensor<f32>) -> tensor<96x96xf32>
  func.return %w1.new, %w2.new : tensor<96x96xf32>, tensor<96x96xf32>
}
