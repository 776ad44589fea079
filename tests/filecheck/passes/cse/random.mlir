// RUN: opt-tool %s --pass-pipeline=cse --mlir-print-debuginfo=false | filecheck %s

// Equal draws of one stream are one draw; two streams are two dropouts, even if all else is equal.

// CHECK-LABEL: func.func @step
func.func @step(%x: tensor<8xf32> {train.batch = "0"}, %seed: tensor<i64> {train.seed}) -> tensor<8xf32> {
  // CHECK-NEXT: %a, %a.kept = aten.random_dropout {{.*}} stream = 0
  %a, %a.kept = aten.random_dropout %x, %seed {p = 0.1 : f64, stream = 0 : i64}
    : (tensor<8xf32>, tensor<i64>) -> (tensor<8xf32>, tensor<8xi1>)
  // CHECK-NEXT: %b, %b.kept = aten.random_dropout {{.*}} stream = 1
  %b, %b.kept = aten.random_dropout %x, %seed {p = 0.1 : f64, stream = 1 : i64}
    : (tensor<8xf32>, tensor<i64>) -> (tensor<8xf32>, tensor<8xi1>)
  %c, %c.kept = aten.random_dropout %x, %seed {p = 0.1 : f64, stream = 0 : i64}
    : (tensor<8xf32>, tensor<i64>) -> (tensor<8xf32>, tensor<8xi1>)
  // CHECK-NEXT: %d = aten.add.Tensor %a, %b
  %d = aten.add.Tensor %a, %b : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  // CHECK-NEXT: %e = aten.add.Tensor %d, %a
  %e = aten.add.Tensor %d, %c : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  func.return %e : tensor<8xf32>
}
