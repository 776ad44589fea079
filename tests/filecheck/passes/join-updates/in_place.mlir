// RUN: opt-tool %s --pass-pipeline=join-updates --mlir-print-debuginfo=false --verify-numerics | filecheck %s

// New values are written over the old ones by the ops that make them; if an old or an intermediate value is read
// afterwards, the new values are assigned instead.

// CHECK-LABEL: func.func @over_the_old_ones
func.func @over_the_old_ones(
  %a: tensor<8xf32> {train.param = "a"}, %b: tensor<8xf32> {train.param = "b"}, %g: tensor<8xf32>, %h: tensor<8xf32>
) -> (tensor<8xf32> {train.updates = 0 : i64}, tensor<8xf32> {train.updates = 1 : i64}, tensor<8xf32>) {
  // CHECK-NEXT: %twice = aten.add.Tensor %a, %a
  // CHECK-NEXT: %a.new, %b.new = train.foreach "aten.add.Tensor" in_place lists = ["self", "other"] %a, %b, %g, %h
  // CHECK-NEXT: return %a.new, %b.new, %twice
  %twice = aten.add.Tensor %a, %a : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %a.next = aten.add.Tensor %a, %g {train.update = "a"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %a.new = train.assign %a, %a.next {train.update = "a"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %b.next = aten.add.Tensor %b, %h {train.update = "b"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %b.new = train.assign %b, %b.next {train.update = "b"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  func.return %a.new, %b.new, %twice : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}

// CHECK-LABEL: func.func @read_again
func.func @read_again(
  %a: tensor<8xf32> {train.param = "a"}, %b: tensor<8xf32> {train.param = "b"}, %g: tensor<8xf32>, %h: tensor<8xf32>
) -> (tensor<8xf32> {train.updates = 0 : i64}, tensor<8xf32> {train.updates = 1 : i64}) {
  // CHECK-NEXT: %a.one, %b.one = train.foreach "aten.add.Tensor" lists = ["self", "other"] %a, %b, %g, %h
  // CHECK-NEXT: %a.next, %b.next = train.foreach "aten.mul.Tensor" lists = ["self", "other"] %a.one, %b.one, %a, %b
  // CHECK-NEXT: %a.new, %b.new = train.foreach "train.assign" lists = ["old", "new"] %a, %b, %a.next, %b.next
  %a.one = aten.add.Tensor %a, %g {train.update = "a"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %a.next = aten.mul.Tensor %a.one, %a {train.update = "a"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %a.new = train.assign %a, %a.next {train.update = "a"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %b.one = aten.add.Tensor %b, %h {train.update = "b"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %b.next = aten.mul.Tensor %b.one, %b {train.update = "b"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %b.new = train.assign %b, %b.next {train.update = "b"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  func.return %a.new, %b.new : tensor<8xf32>, tensor<8xf32>
}
