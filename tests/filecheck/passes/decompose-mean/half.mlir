// RUN: opt-tool %s --pass-pipeline=decompose-mean --mlir-print-debuginfo=false | filecheck %s

// A sum of 100,000 numbers is beyond float16, and so is their count: both are in float32, as in torch.
// CHECK-LABEL: func.func @mean
func.func @mean(%x: tensor<100000xf16>) -> tensor<f16> {
  // CHECK-NEXT: %m.sum = aten.sum %x {dtype = f32} : (tensor<100000xf16>) -> tensor<f32>
  // CHECK-NEXT: %m = aten.div.Scalar %m.sum {other = 1.000000e+05 : f64} : (tensor<f32>) -> tensor<f32>
  // CHECK-NEXT: %m_1 = aten._to_copy %m {dtype = f16} : (tensor<f32>) -> tensor<f16>
  // CHECK-NEXT: func.return %m_1
  %m = aten.mean %x : (tensor<100000xf16>) -> tensor<f16>
  func.return %m : tensor<f16>
}

// CHECK-LABEL: func.func @asked_for
func.func @asked_for(%x: tensor<4x6xf32>) -> tensor<4xbf16> {
  // CHECK-NEXT: aten.sum.dim_IntList %x {dim = [1 : i64], dtype = f32} : (tensor<4x6xf32>) -> tensor<4xf32>
  // CHECK: aten._to_copy %m {dtype = bf16} : (tensor<4xf32>) -> tensor<4xbf16>
  %m = aten.mean.dim %x {dim = [1 : i64], dtype = bf16} : (tensor<4x6xf32>) -> tensor<4xbf16>
  func.return %m : tensor<4xbf16>
}

// CHECK-LABEL: func.func @cross_entropy
func.func @cross_entropy(%x: tensor<100000x3xf16>, %labels: tensor<100000xi64>, %one: tensor<f16>) -> (tensor<f16>, tensor<100000x3xf16>) {
  // CHECK: %count = aten._to_copy %labels.counted {dtype = f32} : (tensor<i64>) -> tensor<f32>
  // CHECK: %l.sum, %n = aten.nll_loss_forward %l.wide, %labels {{.*}} : (tensor<100000x3xf32>, tensor<100000xi64>) -> (tensor<f32>, tensor<f32>)
  // CHECK-NEXT: %l = aten.div.Tensor %l.sum, %count : (tensor<f32>, tensor<f32>) -> tensor<f32>
  // CHECK-NEXT: aten._to_copy %l {dtype = f16}
  // CHECK-NEXT: %one.mean = aten.div.Tensor %one, %count : (tensor<f16>, tensor<f32>) -> tensor<f32>
  // CHECK-NEXT: %one.mean_1 = aten._to_copy %one.mean {dtype = f16}
  // CHECK: aten.nll_loss_backward %one.mean_1, %x
  %l, %n = aten.nll_loss_forward %x, %labels {reduction = 1 : i64, ignore_index = -100 : i64, absent = ["weight"]}
    : (tensor<100000x3xf16>, tensor<100000xi64>) -> (tensor<f16>, tensor<f16>)
  %g = aten.nll_loss_backward %one, %x, %labels, %n {reduction = 1 : i64, ignore_index = -100 : i64, absent = ["weight"]}
    : (tensor<f16>, tensor<100000x3xf16>, tensor<100000xi64>, tensor<f16>) -> tensor<100000x3xf16>
  func.return %l, %g : tensor<f16>, tensor<100000x3xf16>
}
