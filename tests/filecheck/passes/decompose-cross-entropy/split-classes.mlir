// RUN: opt-tool %s --pass-pipeline='decompose-cross-entropy,search-strategy,insert-resharding' --verify-numerics --mlir-print-debuginfo=false | filecheck %s

// A head of many classes is split over them, and so are its scores. The devices exchange a maximum, a sum and a
// score for each row; the gradient of the scores needs no more.
// CHECK: [[SCORES:%.*]] = aten.mm %x, %w {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}, {"gpu"}]) -> ([{}, {"gpu"}])>}
// CHECK-NOT: to <@mesh, [{}, {}]> : tensor<8x9999xf32>
// CHECK: aten.amax [[SCORES]] {{.*}} -> ([{}], unreduced={"gpu" max})>
// CHECK: aten.sum_exp [[SCORES]], {{.*}} -> ([{}], unreduced={"gpu"})>
// CHECK: aten.nll_loss_forward [[SCORES]], %labels {{.*}} -> ([{}], unreduced={"gpu"}
// CHECK: aten.cross_entropy_backward {{.*}} -> ([{}, {"gpu"}])>

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]

func.func @step(
  %w: tensor<16x9999xf32> {train.param = "head.weight"},
  %x: tensor<8x16xf32> {train.batch = "x"},
  %labels: tensor<8xi64> {train.batch = "labels", train.range = [0, 9999]},
  %g: tensor<f32> {train.batch = "g"},
  %count: tensor<f32> {train.step_count},
  %lr: tensor<f32> {train.learning_rate}
) -> (tensor<f32> {train.loss}, tensor<16x9999xf32> {train.updates = 0 : i64}) {
  %scores = aten.mm %x, %w : (tensor<8x16xf32>, tensor<16x9999xf32>) -> tensor<8x9999xf32>
  %log = aten._log_softmax %scores {dim = 1 : i64, half_to_float = false} : (tensor<8x9999xf32>) -> tensor<8x9999xf32>
  %loss, %total = aten.nll_loss_forward %log, %labels
    {reduction = 2 : i64, ignore_index = -100 : i64, absent = ["weight"]}
    : (tensor<8x9999xf32>, tensor<8xi64>) -> (tensor<f32>, tensor<f32>)
  %log.grad = aten.nll_loss_backward %g, %log, %labels, %total
    {reduction = 2 : i64, ignore_index = -100 : i64, absent = ["weight"], train.backward}
    : (tensor<f32>, tensor<8x9999xf32>, tensor<8xi64>, tensor<f32>) -> tensor<8x9999xf32>
  %grad = aten._log_softmax_backward_data %log.grad, %log {dim = 1 : i64, input_dtype = f32, train.backward}
    : (tensor<8x9999xf32>, tensor<8x9999xf32>) -> tensor<8x9999xf32>
  %x.t = aten.t %x {train.backward} : (tensor<8x16xf32>) -> tensor<16x8xf32>
  %w.grad = aten.mm %x.t, %grad {train.backward} : (tensor<16x8xf32>, tensor<8x9999xf32>) -> tensor<16x9999xf32>
  %w.new = train.sgd %w, %w.grad, %count, %lr {absent = ["momentum_buffer"]}
    : (tensor<16x9999xf32>, tensor<16x9999xf32>, tensor<f32>, tensor<f32>) -> tensor<16x9999xf32>
  func.return %loss, %w.new : tensor<f32>, tensor<16x9999xf32>
}
