// RUN: opt-tool %s --pass-pipeline='search-plan{candidate="%S/Inputs/zero3.json"}' --mlir-print-debuginfo=false | filecheck %s
// RUN: not opt-tool %s --pass-pipeline='search-plan{candidate="%s"}' 2>&1 | filecheck %s --check-prefix=NONE
// RUN: not opt-tool %s --pass-pipeline='search-plan{candidate="%S/Inputs/zero3.json" stages=2}' 2>&1 | filecheck %s --check-prefix=OTHER
// RUN: opt-tool %s --pass-pipeline='search-plan{candidate="%S/Inputs/zero3.json" mesh="4" stages=1}' | filecheck %s

// The candidate of a file is compiled again without a search: the report has one candidate and no bound. The file is
// of an older version, which gave choices a name.
// CHECK: spmd.chosen = {
// CHECK-SAME: choice = {pins = [{preset = "zero3", axes = ["gpu"]}]
// CHECK-SAME: spmd.plan = {chosen = "zero3 on 4", step = {{[0-9.e-]+}} : f64, candidates = [{name = "zero3 on 4", why = ""
// CHECK-SAME: memory_bytes = {{[0-9.e+]+}} : f64}]}
// CHECK: spmd.start "reduce_scatter"

// OTHER: zero3.json is zero3 on 4, but options say stages=2; leave one out
// NONE: candidate.mlir: cannot read a candidate (JSONDecodeError: {{.*}}); expected the plan.json of a search

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
