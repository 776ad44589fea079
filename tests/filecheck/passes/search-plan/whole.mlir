// RUN: opt-tool %s --pass-pipeline='search-plan,check-order,reuse-buffers,check-memory,insert-frees' --mlir-print-debuginfo=false | filecheck %s

// The plan is a program, with its candidates and a lower bound of its step. Here it is optimal: columns of the weight
// are split, the batch is replicated, and nothing is sent.
// CHECK: spmd.chosen = {
// CHECK-SAME: spmd.plan = {chosen = "
// CHECK-SAME: bound = {{[0-9.e-]+}} : f64
// CHECK-SAME: candidates = [{name = "dp on 4"
// CHECK: aten.mm %x, %w {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}, {"gpu"}]) -> ([{}, {"gpu"}])>}
// CHECK-NOT: spmd.start

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
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
