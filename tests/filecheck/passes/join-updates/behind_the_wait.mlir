// RUN: opt-tool %s --pass-pipeline=join-updates --mlir-print-debuginfo=false --verify-numerics | filecheck %s

// Ops of an update that depend on a state alone precede the wait for the gradient; they are joined with the later ones.

spmd.mesh @mesh = <["gpu"=2]>
// CHECK-LABEL: func.func @step
func.func @step(
  %a: tensor<8xf32> {train.param = "a"}, %b: tensor<8xf32> {train.param = "b"},
  %g: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}
) -> (tensor<8xf32> {train.updates = 0 : i64}, tensor<8xf32> {train.updates = 1 : i64}) {
  // CHECK-NEXT: %t = spmd.start "all_gather" %g
  // CHECK-NEXT: %h = spmd.wait %t
  // CHECK-NEXT: %a.less, %b.less = train.foreach "aten.mul.Tensor" in_place lists = ["self"] %a, %b
  // CHECK-SAME:   {other = 9.000000e-01 : f64
  // CHECK-NEXT: %a.new, %b.new = train.foreach "aten.add.Tensor" in_place lists = ["self", "other"]
  // CHECK-SAME:   %a.less, %b.less, %h, %h
  // CHECK-NEXT: return %a.new, %b.new
  %t = spmd.start "all_gather" %g out_shardings = [#spmd.sharding<@mesh, [{}]>] : tensor<8xf32>
  %a.less = aten.mul.Tensor %a {other = 0.9 : f64, train.update = "a"} : (tensor<8xf32>) -> tensor<8xf32>
  %h = spmd.wait %t : tensor<8xf32>
  %a.next = aten.add.Tensor %a.less, %h {train.update = "a"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %a.new = train.assign %a, %a.next {train.update = "a"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %b.less = aten.mul.Tensor %b {other = 0.9 : f64, train.update = "b"} : (tensor<8xf32>) -> tensor<8xf32>
  %b.next = aten.add.Tensor %b.less, %h {train.update = "b"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %b.new = train.assign %b, %b.next {train.update = "b"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  func.return %a.new, %b.new : tensor<8xf32>, tensor<8xf32>
}
