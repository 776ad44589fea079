// RUN: opt-tool %s --pass-pipeline='search-strategy{algorithm=fixed pins="%S/Inputs/zero3.toml"}' \
// RUN:   --mlir-print-debuginfo=false | filecheck %s

// ZeRO-3 of an update that is not a fused op: parameter and state are split at home, and every op of the update on its part.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]

func.func @step(
  // CHECK: %w: tensor<32x16xf32> {train.param = "fc.weight", {{.*}}spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>, spmd.working = #spmd.sharding<@mesh, [{}, {}]>}
  %w: tensor<32x16xf32> {train.param = "fc.weight"},
  // CHECK: %m: tensor<32x16xf32> {train.state = ["fc.weight", "momentum"], {{.*}}spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>}
  %m: tensor<32x16xf32> {train.state = ["fc.weight", "momentum"]},
  %x: tensor<64x32xf32> {train.batch = "x"},
  %t: tensor<64x16xf32> {train.batch = "t"},
  %lr: tensor<f64> {train.learning_rate}
) -> (tensor<32x16xf32> {train.updates = 0 : i64}, tensor<32x16xf32> {train.updates = 1 : i64}) {
  %y = aten.mm %x, %w : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  %d = aten.sub.Tensor %y, %t : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  %xt = aten.t %x {train.backward} : (tensor<64x32xf32>) -> tensor<32x64xf32>
  // CHECK: %g = aten.mm %xt, %d {{.*}}-> ([{}, {}], unreduced={"gpu"})>
  %g = aten.mm %xt, %d {train.backward} : (tensor<32x64xf32>, tensor<64x16xf32>) -> tensor<32x16xf32>
  // CHECK: %buf.scaled = aten.mul.Tensor %m {{.*}}([{"gpu"}, {}]) -> ([{"gpu"}, {}])>
  // CHECK: %buf = aten.add.Tensor %buf.scaled, %g {{.*}}([{"gpu"}, {}], [{"gpu"}, {}]) -> ([{"gpu"}, {}])>
  // CHECK: %w.new = train.assign %w, %next {{.*}}([{"gpu"}, {}], [{"gpu"}, {}]) -> ([{"gpu"}, {}])>
  %buf.scaled = aten.mul.Tensor %m {other = 0.9 : f64, train.update = "fc.weight"} : (tensor<32x16xf32>) -> tensor<32x16xf32>
  %buf = aten.add.Tensor %buf.scaled, %g {train.update = "fc.weight"}
    : (tensor<32x16xf32>, tensor<32x16xf32>) -> tensor<32x16xf32>
  %lr.neg = aten.neg %lr {train.update} : (tensor<f64>) -> tensor<f64>
  %delta = aten.mul.Tensor %buf, %lr.neg {train.update = "fc.weight"} : (tensor<32x16xf32>, tensor<f64>) -> tensor<32x16xf32>
  %next = aten.add.Tensor %w, %delta {train.update = "fc.weight"}
    : (tensor<32x16xf32>, tensor<32x16xf32>) -> tensor<32x16xf32>
  %w.new = train.assign %w, %next {train.update = "fc.weight"}
    : (tensor<32x16xf32>, tensor<32x16xf32>) -> tensor<32x16xf32>
  %m.new = train.assign %m, %buf {train.update = "fc.weight"}
    : (tensor<32x16xf32>, tensor<32x16xf32>) -> tensor<32x16xf32>
  func.return %w.new, %m.new : tensor<32x16xf32>, tensor<32x16xf32>
}
