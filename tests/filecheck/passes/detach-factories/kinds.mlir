// RUN: opt-tool %s --pass-pipeline=detach-factories | filecheck %s

// A new factory keeps sizes, dtype and number; an op that reads its operand stays.
// CHECK-LABEL: func.func @f
func.func @f(%x: tensor<8x4xf32>, %n: tensor<f32>)
    -> (tensor<2x3xf64>, tensor<8x4xf32>, tensor<8x4xi64>, tensor<8x4xf32>, tensor<8x4xf32>) {
  // CHECK-NEXT: %a = aten.full {size = [2 : i64, 3 : i64], dtype = f64, fill_value = 2 : i64} : () -> tensor<2x3xf64>
  %a = aten.new_full %x {size = [2 : i64, 3 : i64], fill_value = 2 : i64, dtype = f64} : (tensor<8x4xf32>) -> tensor<2x3xf64>
  // CHECK-NEXT: %b = aten.ones {size = [8 : i64, 4 : i64], dtype = f32} : () -> tensor<8x4xf32>
  %b = aten.ones_like %x : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: %c = aten.empty.memory_format {size = [8 : i64, 4 : i64], dtype = i64} : () -> tensor<8x4xi64>
  %c = aten.empty_like %x {dtype = i64} : (tensor<8x4xf32>) -> tensor<8x4xi64>
  // CHECK-NEXT: %d = aten.full {size = [8 : i64, 4 : i64], dtype = f32, fill_value = 5.000000e-01 : f64} : () -> tensor<8x4xf32>
  %d = aten.fill.Scalar %x {value = 5.0e-01 : f64} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: %e = aten.clone %x
  %e = aten.clone %x : (tensor<8x4xf32>) -> tensor<8x4xf32>
  func.return %a, %b, %c, %d, %e : tensor<2x3xf64>, tensor<8x4xf32>, tensor<8x4xi64>, tensor<8x4xf32>, tensor<8x4xf32>
}
