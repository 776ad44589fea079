// RUN: opt-tool %s --pass-pipeline='partition-stages{stages=2}' --split-input-file | filecheck %s

// Every stage that draws has the seed; a draw without other operands is made on the stage that uses it.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]

// CHECK: %seed: tensor<i64> {train.seed, pipe.stage = 0 : i64}
// CHECK-SAME: %seed.at1: tensor<i64> {train.seed, pipe.stage = 1 : i64}
func.func @step(%v: tensor<8xf32> {train.param = "a"}, %w: tensor<8xf32> {train.param = "b"}, %seed: tensor<i64> {train.seed})
    -> tensor<8xf32> {
  // CHECK: %u = aten.random_uniform %seed {{.*}}pipe.stage = 0
  // CHECK-NEXT: %u.at1 = aten.random_uniform %seed.at1 {{.*}}pipe.stage = 1
  %u = aten.random_uniform %seed {low = 0.0 : f64, high = 1.0 : f64, stream = 0 : i64, dtype = f32, size = [8],
    absent = ["like"]} : (tensor<i64>) -> tensor<8xf32>
  // CHECK-NEXT: %a = aten.mul.Tensor %u, %v {pipe.stage = 0 : i64}
  %a = aten.mul.Tensor %u, %v : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("fc1")
  // CHECK-NEXT: %a.at1 = pipe.transfer "a.at1" %a to @stage1
  // CHECK-NEXT: %d, %d.kept = aten.random_dropout %a.at1, %seed.at1 {{.*}}pipe.stage = 1
  %d, %d.kept = aten.random_dropout %a, %seed {p = 0.1 : f64, stream = 1 : i64}
    : (tensor<8xf32>, tensor<i64>) -> (tensor<8xf32>, tensor<8xi1>) loc("fc2")
  %b = aten.mul.Tensor %d, %w : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("fc2")
  // CHECK: aten.mul.Tensor %b, %u.at1 {pipe.stage = 1 : i64}
  %c = aten.mul.Tensor %b, %u : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("fc2")
  func.return %c : tensor<8xf32>
}

// -----

// Independent draws are made once, and sent.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]

// CHECK-LABEL: @independent
func.func @independent(%v: tensor<8xf32> {train.param = "a"}, %w: tensor<8xf32> {train.param = "b"}, %seed: tensor<i64> {train.seed})
    -> tensor<8xf32> {
  // CHECK: %u = aten.random_uniform %seed {{.*}}pipe.stage = 0
  // CHECK-NEXT: %u.at1 = pipe.transfer "u.at1" %u to @stage1
  %u = aten.random_uniform %seed {low = 0.0 : f64, high = 1.0 : f64, stream = 0 : i64, dtype = f32, size = [8],
    absent = ["like"], independent = true} : (tensor<i64>) -> tensor<8xf32> loc("fc1")
  %a = aten.mul.Tensor %u, %v : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("fc1")
  %b = aten.mul.Tensor %a, %w : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("fc2")
  %c = aten.mul.Tensor %b, %u : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("fc2")
  func.return %c : tensor<8xf32>
}
