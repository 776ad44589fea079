// RUN: opt-tool %s --pass-pipeline=decompose-mean | filecheck %s

// Both ops have the location of the mean.
// CHECK: aten.sum %x : (tensor<4xf32>) -> tensor<f32> loc("loss"("train.py":7:3))
// CHECK: aten.div.Scalar %m.sum {{.*}} loc("loss"("train.py":7:3))
func.func @f(%x: tensor<4xf32>) -> tensor<f32> {
  %m = aten.mean %x : (tensor<4xf32>) -> tensor<f32> loc("loss"("train.py":7:3))
  func.return %m : tensor<f32>
}
