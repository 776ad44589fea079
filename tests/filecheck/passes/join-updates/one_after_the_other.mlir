// RUN: opt-tool %s --pass-pipeline=join-updates --mlir-print-debuginfo=false --verify-numerics | filecheck %s

// Ops without a multi-tensor function in torch run parameter by parameter, at their place in the sequence. An update
// that needs the result of another is not joined with it; users of an update come after it.

// CHECK-LABEL: func.func @step
func.func @step(
  %a: tensor<8xf32> {train.param = "a"}, %b: tensor<8xf32> {train.param = "b"}, %c: tensor<8xf32> {train.param = "c"},
  %a.grad: tensor<8xf32>, %b.grad: tensor<8xf32>
) -> (
  tensor<8xf32> {train.updates = 0 : i64}, tensor<8xf32> {train.updates = 1 : i64},
  tensor<8xf32> {train.updates = 2 : i64}, tensor<8xf32>
) {
  // CHECK-NEXT: %a.size, %b.size = train.foreach "aten.abs" lists = ["self"] %a.grad, %b.grad
  // CHECK-NEXT: %a.flag = aten.gt.Scalar %a.size
  // CHECK-NEXT: %a.next = aten.where.self %a.flag
  // CHECK-NEXT: %b.flag = aten.gt.Scalar %b.size
  // CHECK-NEXT: %b.next = aten.where.self %b.flag
  // CHECK-NEXT: %a.new, %b.new = train.foreach "train.assign"
  // CHECK-NEXT: %twice = aten.mul.Tensor %a.new
  // CHECK-NEXT: %c.size = aten.abs %twice
  // CHECK-NEXT: %c.flag = aten.gt.Scalar %c.size
  // CHECK-NEXT: %c.next = aten.where.self
  // CHECK-NEXT: %c.new = train.assign %c, %c.next
  %a.size = aten.abs %a.grad {train.update = "a"} : (tensor<8xf32>) -> tensor<8xf32>
  %a.flag = aten.gt.Scalar %a.size {other = 0.5 : f64, train.update = "a"} : (tensor<8xf32>) -> tensor<8xi1>
  %a.next = aten.where.self %a.flag, %a.size, %a {train.update = "a"}
    : (tensor<8xi1>, tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %a.new = train.assign %a, %a.next {train.update = "a"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %twice = aten.mul.Tensor %a.new {other = 2.0 : f64} : (tensor<8xf32>) -> tensor<8xf32>
  %c.size = aten.abs %twice {train.update = "c"} : (tensor<8xf32>) -> tensor<8xf32>
  %c.flag = aten.gt.Scalar %c.size {other = 0.5 : f64, train.update = "c"} : (tensor<8xf32>) -> tensor<8xi1>
  %c.next = aten.where.self %c.flag, %c.size, %c {train.update = "c"}
    : (tensor<8xi1>, tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %c.new = train.assign %c, %c.next {train.update = "c"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %b.size = aten.abs %b.grad {train.update = "b"} : (tensor<8xf32>) -> tensor<8xf32>
  %b.flag = aten.gt.Scalar %b.size {other = 0.5 : f64, train.update = "b"} : (tensor<8xf32>) -> tensor<8xi1>
  %b.next = aten.where.self %b.flag, %b.size, %b {train.update = "b"}
    : (tensor<8xi1>, tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %b.new = train.assign %b, %b.next {train.update = "b"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  func.return %a.new, %b.new, %c.new, %twice : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}
