// RUN: opt-tool %s --pass-pipeline='search-plan{mesh=2x2 micro_batches=1 stages=1 duplex=no}' --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s --pass-pipeline='search-plan{micro_batches=4 stages=1 duplex=no}' --mlir-print-debuginfo=false | filecheck %s --check-prefix=PARTS
// RUN: opt-tool %s --pass-pipeline='search-plan{duplex=yes}' --mlir-print-debuginfo=false | filecheck %s --check-prefix=TURNS

// Decisions of the user are not searched.
// CHECK: spmd.mesh @mesh = <["a0"=2, "a1"=2]>
// CHECK-NOT: pipe.fragment
// PARTS: spmd.mesh @mesh = <["micro"=4 temporal, "gpu"=4]>
// PARTS: pipe.fragment "micro" over "micro"
// TURNS: spmd.mesh @mesh = <["micro"=2 temporal, "gpu"=4]>
// TURNS: spmd.at = {micro = 0 : i64}

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
