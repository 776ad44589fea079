// RUN: opt-tool %s --pass-pipeline=draw-independently --mlir-print-debuginfo=false | filecheck %s

// Every random op draws from torch's own generator; its users are not changed.

// CHECK-LABEL: func.func @step
func.func @step(%x: tensor<8x4xf32> {train.batch = "0"}, %seed: tensor<i64> {train.seed}) -> tensor<8x4xf32> {
  // CHECK-NEXT: aten.random_dropout %x, %seed {p = 1.000000e-01 : f64, stream = 0 : i64, independent = true}
  %y, %kept = aten.random_dropout %x, %seed {p = 0.1 : f64, stream = 0 : i64}
    : (tensor<8x4xf32>, tensor<i64>) -> (tensor<8x4xf32>, tensor<8x4xi1>)
  // CHECK-NEXT: aten.random_uniform %y, %seed {{{.*}}, independent = true}
  %u = aten.random_uniform %y, %seed {low = 0.0 : f64, high = 1.0 : f64, stream = 1 : i64, dtype = f32, size = [8, 4]}
    : (tensor<8x4xf32>, tensor<i64>) -> tensor<8x4xf32>
  // CHECK-NEXT: aten.native_dropout_backward %u, %kept {scale = 1.100000e+00 : f64} :
  %z = aten.native_dropout_backward %u, %kept {scale = 1.1 : f64}
    : (tensor<8x4xf32>, tensor<8x4xi1>) -> tensor<8x4xf32>
  func.return %z : tensor<8x4xf32>
}
