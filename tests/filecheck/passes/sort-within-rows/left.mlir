// RUN: opt-tool %s --split-input-file --pass-pipeline=sort-within-rows,dce | filecheck %s

// A sort stays if its users depend on the row of an element.

// The first elements of all rows together.
// CHECK-LABEL: func.func @first
func.func @first(%x: tensor<8xf32> {train.batch = "0"}) -> tensor<f32> {
  // CHECK-NEXT: aten.sort %x {descending = true} : (tensor<8xf32>) -> (tensor<8xf32>, tensor<8xi64>)
  // CHECK-NEXT: aten.slice.Tensor
  // CHECK-NEXT: aten.sum
  // CHECK-NEXT: func.return
  %y, %order = aten.sort %x {descending = true} : (tensor<8xf32>) -> (tensor<8xf32>, tensor<8xi64>)
  %first = aten.slice.Tensor %y {end = 2 : i64} : (tensor<8xf32>) -> tensor<2xf32>
  %s = aten.sum %first : (tensor<2xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// -----

// The sorted elements are combined with elements in their original order.
// CHECK-LABEL: func.func @beside
func.func @beside(%x: tensor<8xf32> {train.batch = "0"}, %z: tensor<8xf32> {train.batch = "1"}) -> tensor<f32> {
  // CHECK-NEXT: aten.sort %x : (tensor<8xf32>)
  // CHECK-NEXT: aten.mul.Tensor
  %y, %order = aten.sort %x : (tensor<8xf32>) -> (tensor<8xf32>, tensor<8xi64>)
  %p = aten.mul.Tensor %y, %z : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %s = aten.sum %p : (tensor<8xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// -----

// The positions are used as numbers.
// CHECK-LABEL: func.func @places
func.func @places(%x: tensor<8xf32> {train.batch = "0"}) -> tensor<i64> {
  // CHECK-NEXT: aten.sort %x : (tensor<8xf32>)
  %y, %order = aten.sort %x : (tensor<8xf32>) -> (tensor<8xf32>, tensor<8xi64>)
  %p = aten.mul.Tensor %order, %order : (tensor<8xi64>, tensor<8xi64>) -> tensor<8xi64>
  %s = aten.sum %p : (tensor<8xi64>) -> tensor<i64>
  func.return %s : tensor<i64>
}

// -----

// Groups that do not follow the keys.
// CHECK-LABEL: func.func @others
func.func @others(%x: tensor<8x6xf32> {train.batch = "0"}, %e: tensor<8xi64> {train.batch = "1"}, %w: tensor<4x6x5xf32>,
    %ends: tensor<4xi64>) -> tensor<f32> {
  // CHECK-NEXT: aten.sort %e : (tensor<8xi64>)
  // CHECK: aten.grouped_mm
  %keys, %order = aten.sort %e : (tensor<8xi64>) -> (tensor<8xi64>, tensor<8xi64>)
  %sent = aten.index.Tensor %x, %order : (tensor<8x6xf32>, tensor<8xi64>) -> tensor<8x6xf32>
  %y = aten.grouped_mm %sent, %w, %ends : (tensor<8x6xf32>, tensor<4x6x5xf32>, tensor<4xi64>) -> tensor<8x5xf32>
  %s = aten.sum %y : (tensor<8x5xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// -----

// A sum of all sorted elements does not depend on the order.
// CHECK-LABEL: func.func @sum
func.func @sum(%x: tensor<4x2xf32> {train.batch = "0"}) -> tensor<f32> {
  // CHECK: aten.sort {{.*}} {dim = 1 : i64, train.by_row} : (tensor<4x2xf32>)
  %flat = aten.view %x {size = [8 : i64]} : (tensor<4x2xf32>) -> tensor<8xf32>
  %y, %order = aten.sort %flat : (tensor<8xf32>) -> (tensor<8xf32>, tensor<8xi64>)
  %e = aten.exp %y : (tensor<8xf32>) -> tensor<8xf32>
  %s = aten.sum %e : (tensor<8xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}
