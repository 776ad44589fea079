// RUN: opt-tool %s --pass-pipeline=join-updates --mlir-print-debuginfo=false --verify-numerics | filecheck %s

// An update does not wait for the gradients of another bucket.

spmd.mesh @mesh = <["gpu"=2]>
// CHECK-LABEL: func.func @step
func.func @step(
  %a: tensor<8xf32> {train.param = "a"}, %b: tensor<8xf32> {train.param = "b"}, %c: tensor<8xf32> {train.param = "c"},
  %g: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>},
  %h: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}, %lr: tensor<f64> {train.learning_rate}
) -> (
  tensor<8xf32> {train.updates = 0 : i64}, tensor<8xf32> {train.updates = 1 : i64},
  tensor<8xf32> {train.updates = 2 : i64}
) {
  // CHECK:      %g.whole = spmd.all_gather
  // CHECK-NEXT: %a.new, %b.new = train.foreach "train.sgd" lists = ["param", "grad"] shared = ["step", "lr"]
  // CHECK-SAME:   %a, %b, %g.whole, %g.whole, %step, %lr {absent = ["momentum_buffer"]
  // CHECK-NEXT: %h.whole = spmd.all_gather
  // CHECK-NEXT: %c.new = train.sgd %c, %h.whole, %step, %lr
  %step = aten.neg %lr : (tensor<f64>) -> tensor<f64>
  %g.whole = spmd.all_gather [{"gpu"}] %g out_sharding = <@mesh, [{}]> : tensor<8xf32>
  %a.new = train.sgd %a, %g.whole, %step, %lr {absent = ["momentum_buffer"]}
    : (tensor<8xf32>, tensor<8xf32>, tensor<f64>, tensor<f64>) -> tensor<8xf32>
  %b.new = train.sgd %b, %g.whole, %step, %lr {absent = ["momentum_buffer"]}
    : (tensor<8xf32>, tensor<8xf32>, tensor<f64>, tensor<f64>) -> tensor<8xf32>
  %h.whole = spmd.all_gather [{"gpu"}] %h out_sharding = <@mesh, [{}]> : tensor<8xf32>
  %c.new = train.sgd %c, %h.whole, %step, %lr {absent = ["momentum_buffer"]}
    : (tensor<8xf32>, tensor<8xf32>, tensor<f64>, tensor<f64>) -> tensor<8xf32>
  func.return %a.new, %b.new, %c.new : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}
