// RUN: opt-tool %s --pass-pipeline=join-updates --mlir-print-debuginfo=false --verify-numerics | filecheck %s

// Updates of different shapes and shardings are joined; updates with another number or dtype, or single ones, are not.

spmd.mesh @mesh = <["gpu"=2]>
// CHECK-LABEL: func.func @step
func.func @step(
  %a: tensor<4x8xf32> {train.param = "a", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>},
  %b: tensor<8xf32> {train.param = "b"}, %c: tensor<8xf32> {train.param = "c"}, %d: tensor<8xf64> {train.param = "d"},
  %a.grad: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>},
  %b.grad: tensor<8xf32>, %c.grad: tensor<8xf32>, %d.grad: tensor<8xf64>
) -> (
  tensor<4x8xf32> {train.updates = 0 : i64, spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>},
  tensor<8xf32> {train.updates = 1 : i64}, tensor<8xf32> {train.updates = 2 : i64},
  tensor<8xf64> {train.updates = 3 : i64}
) {
  // CHECK-NEXT: %c.step = aten.mul.Tensor %c.grad {other = 3.000000e-01 : f64
  // CHECK-NEXT: %c.new = train.assign %c, %c.step
  // CHECK-NEXT: %d.step = aten.mul.Tensor %d.grad
  // CHECK-NEXT: %d.new = train.assign %d, %d.step
  // CHECK-NEXT: %a.step, %b.step = train.foreach "aten.mul.Tensor" lists = ["self"] %a.grad, %b.grad
  // CHECK-SAME:   {other = 2.000000e-01 : f64
  // CHECK-SAME:    spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}], [{}]) -> ([{"gpu"}, {}], [{}])>}
  // CHECK-NEXT: %a.new, %b.new = train.foreach "train.assign" lists = ["old", "new"] %a, %b, %a.step, %b.step
  // CHECK-NEXT: return %a.new, %b.new, %c.new, %d.new
  %a.step = aten.mul.Tensor %a.grad
    {other = 0.2 : f64, train.update = "a", spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}])>}
    : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %a.new = train.assign %a, %a.step
    {train.update = "a", spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}], [{"gpu"}, {}]) -> ([{"gpu"}, {}])>}
    : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %c.step = aten.mul.Tensor %c.grad
    {other = 0.3 : f64, train.update = "c", spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>}
    : (tensor<8xf32>) -> tensor<8xf32>
  %c.new = train.assign %c, %c.step
    {train.update = "c", spmd.signature = #spmd.sig<@mesh, ([{}], [{}]) -> ([{}])>}
    : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %d.step = aten.mul.Tensor %d.grad
    {other = 0.2 : f64, train.update = "d", spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>}
    : (tensor<8xf64>) -> tensor<8xf64>
  %d.new = train.assign %d, %d.step
    {train.update = "d", spmd.signature = #spmd.sig<@mesh, ([{}], [{}]) -> ([{}])>}
    : (tensor<8xf64>, tensor<8xf64>) -> tensor<8xf64>
  %b.step = aten.mul.Tensor %b.grad
    {other = 0.2 : f64, train.update = "b", spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>}
    : (tensor<8xf32>) -> tensor<8xf32>
  %b.new = train.assign %b, %b.step
    {train.update = "b", spmd.signature = #spmd.sig<@mesh, ([{}], [{}]) -> ([{}])>}
    : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  func.return %a.new, %b.new, %c.new, %d.new : tensor<4x8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf64>
}
