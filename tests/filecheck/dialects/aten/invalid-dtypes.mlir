// RUN: opt-tool %s --split-input-file --verify-diagnostics

func.func @a_cast_to_another_dtype(%x: tensor<4x6xf16>) {
  // expected-error@+1 {{result 0 of 'aten._to_copy' is of float32, torch gives int64 for self of float16; change its type, or cast by aten._to_copy}}
  %y = aten._to_copy %x {dtype = i64} : (tensor<4x6xf16>) -> tensor<4x6xf32>
  func.return
}

// -----

func.func @operands_exchanged(%x: tensor<8xf32>, %mask: tensor<8xi1>) {
  // expected-error@+1 {{result 0 of 'aten.masked_fill.Scalar' is of float32, torch gives bool for self of bool, mask of float32}}
  %y = aten.masked_fill.Scalar %mask, %x {value = 0.0 : f64} : (tensor<8xi1>, tensor<8xf32>) -> tensor<8xf32>
  func.return
}

// -----

func.func @numbers_without_dims_do_not_widen(%x: tensor<8xbf16>, %scale: tensor<f32>, %t: tensor<bf16>) {
  %y = aten.mul.Tensor %x, %scale : (tensor<8xbf16>, tensor<f32>) -> tensor<8xbf16>
  // expected-error@+1 {{result 0 of 'aten.mul.Tensor' is of bfloat16, torch gives float32 for self of bfloat16, other of float32}}
  %z = aten.mul.Tensor %t, %scale : (tensor<bf16>, tensor<f32>) -> tensor<bf16>
  func.return
}

// -----

func.func @products_of_two_dtypes(%x: tensor<4x6xf32>, %y: tensor<6x4xbf16>) {
  // expected-error@+1 {{'aten.mm' takes operands of one dtype, found self of float32, mat2 of bfloat16}}
  %z = aten.mm %x, %y : (tensor<4x6xf32>, tensor<6x4xbf16>) -> tensor<4x4xf32>
  func.return
}

// -----

// The quotient of whole numbers has torch's default dtype, which a user may set.
func.func @whole_numbers(%x: tensor<4xi64>) {
  %y = aten.div.Scalar %x {other = 2 : i64} : (tensor<4xi64>) -> tensor<4xf32>
  %z = aten.div.Scalar %x {other = 2 : i64} : (tensor<4xi64>) -> tensor<4xf64>
  %b = aten.eq.Scalar %x {other = 2 : i64} : (tensor<4xi64>) -> tensor<4xi1>
  // expected-error@+1 {{result 0 of 'aten.sum' is of int32, torch gives int64 for self of bool}}
  %n = aten.sum %b : (tensor<4xi1>) -> tensor<i32>
  func.return
}
