// RUN: opt-tool %s --pass-pipeline=join-updates --mlir-print-debuginfo=false --verify-numerics | filecheck %s

// Interleaved updates are joined after the last op of any of them, and after its operands.

// CHECK-LABEL: func.func @step
func.func @step(
  %a: tensor<8xf32> {train.param = "a"}, %b: tensor<8xf32> {train.param = "b"}, %g: tensor<8xf32>, %h: tensor<8xf32>
) -> (tensor<8xf32> {train.updates = 0 : i64}, tensor<8xf32> {train.updates = 1 : i64}) {
  // CHECK-NEXT: %twice = aten.add.Tensor %h, %h
  // CHECK-NEXT: %more = aten.add.Tensor %twice, %h
  // CHECK-NEXT: %a.less, %b.less = train.foreach "aten.neg" in_place lists = ["self"] %a, %b
  // CHECK-NEXT: %a.new, %b.new = train.foreach "aten.add.Tensor" in_place lists = ["self", "other"]
  // CHECK-SAME:   %a.less, %b.less, %more, %twice
  // CHECK-NEXT: return %a.new, %b.new
  %a.less = aten.neg %a {train.update = "a"} : (tensor<8xf32>) -> tensor<8xf32>
  %twice = aten.add.Tensor %h, %h : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %b.less = aten.neg %b {train.update = "b"} : (tensor<8xf32>) -> tensor<8xf32>
  %b.next = aten.add.Tensor %b.less, %twice {train.update = "b"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %b.new = train.assign %b, %b.next {train.update = "b"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %more = aten.add.Tensor %twice, %h : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %a.next = aten.add.Tensor %a.less, %more {train.update = "a"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %a.new = train.assign %a, %a.next {train.update = "a"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  func.return %a.new, %b.new : tensor<8xf32>, tensor<8xf32>
}
