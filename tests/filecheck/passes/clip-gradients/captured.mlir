// RUN: opt-tool %s --pass-pipeline='clip-gradients{norm=2.0}' --mlir-print-debuginfo=false | filecheck %s

// The gradient of an update that is not a fused op is its operand from outside; every op that reads it gets it clipped.
// CHECK: %g.squared = aten.mul.Tensor %g, %g
// CHECK: %g.clipped = aten.mul.Tensor %g, %grad_scale
// CHECK: %square = aten.mul.Tensor %g.clipped, %g.clipped {train.update = "w"}
// CHECK: %step = aten.div.Tensor %g.clipped, %square {train.update = "w"}
// CHECK: %next = aten.add.Tensor %w, %step {train.update = "w"}
// CHECK: func.return %w.new, %g.clipped, %grad_norm

func.func @step(
  %w: tensor<8xf32> {train.param = "w"}, %x: tensor<8xf32> {train.batch = "0"}
) -> (tensor<8xf32> {train.updates = 0 : i64}, tensor<8xf32> {train.grad = "w"}) {
  %g = aten.neg %x {train.backward} : (tensor<8xf32>) -> tensor<8xf32>
  %square = aten.mul.Tensor %g, %g {train.update = "w"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %step = aten.div.Tensor %g, %square {train.update = "w"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %next = aten.add.Tensor %w, %step {train.update = "w"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %w.new = train.assign %w, %next {train.update = "w"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  func.return %w.new, %g : tensor<8xf32>, tensor<8xf32>
}
