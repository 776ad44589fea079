// RUN: opt-tool %s --pass-pipeline=detach-factories | filecheck %s

// Each op that adds into shared zeros gets its own zeros; zeros with other users, and other constants, stay.
// CHECK-LABEL: func.func @f
func.func @f(%i: tensor<8xi64>, %g: tensor<8x4xf32>)
    -> (tensor<16x4xf32>, tensor<16x4xf32>, tensor<16x4xf32>, tensor<16x4xf32>, tensor<16x4xf32>) {
  // CHECK-NEXT: %z = aten.zeros
  // CHECK-NEXT: %z_1 = aten.zeros
  // CHECK-NEXT: %a = aten.index_add %z_1, %i, %g
  // CHECK-NEXT: %z_2 = aten.zeros
  // CHECK-NEXT: %b = aten.index_put %z_2, %i, %g
  // CHECK-NEXT: %c = aten.exp %z
  %z = aten.zeros {size = [16 : i64, 4 : i64], dtype = f32} : () -> tensor<16x4xf32>
  %a = aten.index_add %z, %i, %g {dim = 0 : i64} : (tensor<16x4xf32>, tensor<8xi64>, tensor<8x4xf32>) -> tensor<16x4xf32>
  %b = aten.index_put %z, %i, %g {accumulate = true} : (tensor<16x4xf32>, tensor<8xi64>, tensor<8x4xf32>) -> tensor<16x4xf32>
  %c = aten.exp %z : (tensor<16x4xf32>) -> tensor<16x4xf32>
  // CHECK-NEXT: %o = aten.full
  // CHECK-NEXT: %d = aten.index_add %o, %i, %g
  // CHECK-NEXT: %e = aten.index_add %o, %i, %g
  %o = aten.full {size = [16 : i64, 4 : i64], dtype = f32, fill_value = 1.0 : f64} : () -> tensor<16x4xf32>
  %d = aten.index_add %o, %i, %g {dim = 0 : i64} : (tensor<16x4xf32>, tensor<8xi64>, tensor<8x4xf32>) -> tensor<16x4xf32>
  %e = aten.index_add %o, %i, %g {dim = 0 : i64} : (tensor<16x4xf32>, tensor<8xi64>, tensor<8x4xf32>) -> tensor<16x4xf32>
  func.return %a, %b, %c, %d, %e : tensor<16x4xf32>, tensor<16x4xf32>, tensor<16x4xf32>, tensor<16x4xf32>, tensor<16x4xf32>
}
