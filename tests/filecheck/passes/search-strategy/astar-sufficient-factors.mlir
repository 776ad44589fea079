// RUN: opt-tool %s --pass-pipeline='search-strategy{algorithm=astar pins="%S/Inputs/data-parallel.toml"},insert-resharding,select-collectives' --mlir-print-debuginfo=false | filecheck %s

// Sufficient factors (HAP 2.5.2 and 4.4): the gradient of a weight of 1024 x 1024 is the product of two factors of batch x
// 1024. With a batch of 512 it is cheaper to gather both factors, so that every device has the full gradient, than to
// reduce it, although every device then computes all of it. With a batch of 8192 the gradient is reduced.

#gpu = #spmd.device<"gpu", flops = {float32 = 1.0e13}, bandwidth = 1.0e12, memory = 1.0e12, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-5, beta = 1.0e-10>
spmd.mesh @mesh = <["gpu"=4]>
spmd.cluster @four on @mesh devices [#gpu] placement [0, 0, 0, 0] links [#link]

// CHECK-LABEL: func.func @small
func.func @small(
  %w: tensor<1024x1024xf32> {train.param = "w"}, %x: tensor<512x1024xf32> {train.batch = "x"}, %t: tensor<512x1024xf32> {train.batch = "t"},
  %count: tensor<f32> {train.step_count}, %lr: tensor<f32> {train.learning_rate}
) -> (tensor<1024x1024xf32> {train.updates = 0 : i64}) {
  %y = aten.mm %x, %w : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
  %d = aten.sub.Tensor %y, %t : (tensor<512x1024xf32>, tensor<512x1024xf32>) -> tensor<512x1024xf32>
  %xt = aten.t %x {train.backward} : (tensor<512x1024xf32>) -> tensor<1024x512xf32>
  // CHECK-NOT: spmd.all_reduce
  // CHECK: spmd.all_gather
  // CHECK: aten.t
  // CHECK: spmd.all_gather
  // CHECK: %g = aten.mm {{.*}}([{}, {}], [{}, {}]) -> ([{}, {}])>}
  // CHECK-NOT: spmd.all_reduce
  %g = aten.mm %xt, %d {train.backward} : (tensor<1024x512xf32>, tensor<512x1024xf32>) -> tensor<1024x1024xf32>
  %w.new = train.sgd %w, %g, %count, %lr {absent = ["momentum_buffer"]}
    : (tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<f32>, tensor<f32>) -> tensor<1024x1024xf32>
  func.return %w.new : tensor<1024x1024xf32>
}

// CHECK-LABEL: func.func @large
func.func @large(
  %w: tensor<1024x1024xf32> {train.param = "w"}, %x: tensor<8192x1024xf32> {train.batch = "x"}, %t: tensor<8192x1024xf32> {train.batch = "t"},
  %count: tensor<f32> {train.step_count}, %lr: tensor<f32> {train.learning_rate}
) -> (tensor<1024x1024xf32> {train.updates = 0 : i64}) {
  %y = aten.mm %x, %w : (tensor<8192x1024xf32>, tensor<1024x1024xf32>) -> tensor<8192x1024xf32>
  %d = aten.sub.Tensor %y, %t : (tensor<8192x1024xf32>, tensor<8192x1024xf32>) -> tensor<8192x1024xf32>
  %xt = aten.t %x {train.backward} : (tensor<8192x1024xf32>) -> tensor<1024x8192xf32>
  // CHECK-NOT: spmd.all_gather
  // CHECK: %g = aten.mm {{.*}}([{}, {"gpu"}], [{"gpu"}, {}]) -> ([{}, {}], unreduced={"gpu"})>}
  // CHECK: spmd.all_reduce
  %g = aten.mm %xt, %d {train.backward} : (tensor<1024x8192xf32>, tensor<8192x1024xf32>) -> tensor<1024x1024xf32>
  %w.new = train.sgd %w, %g, %count, %lr {absent = ["momentum_buffer"]}
    : (tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<f32>, tensor<f32>) -> tensor<1024x1024xf32>
  func.return %w.new : tensor<1024x1024xf32>
}
