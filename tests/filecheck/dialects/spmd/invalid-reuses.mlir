// RUN: opt-tool %s --split-input-file --verify-diagnostics

func.func @read_after_it_was_written_over(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %a = aten.relu %x : (tensor<4xf32>) -> tensor<4xf32>
  %b = aten.add.Tensor %a, %x {spmd.reuses = array<i64: 0>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  // expected-error@+1 {{uses %a after 'aten.add.Tensor' wrote over its memory; run reuse-buffers last}}
  %c = aten.exp %a : (tensor<4xf32>) -> tensor<4xf32>
  func.return %b, %c : tensor<4xf32>, tensor<4xf32>
}

// -----

func.func @a_view_is_read_after(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<2x2xf32>) {
  %a = aten.relu %x : (tensor<4xf32>) -> tensor<4xf32>
  %v = aten.view %a {size = [2, 2]} : (tensor<4xf32>) -> tensor<2x2xf32>
  %b = aten.add.Tensor %a, %x {spmd.reuses = array<i64: 0>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  // expected-error@+1 {{uses %v after 'aten.add.Tensor' wrote over its memory}}
  func.return %b, %v : tensor<4xf32>, tensor<2x2xf32>
}

// -----

func.func @too_few_entries(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = aten.relu %x : (tensor<4xf32>) -> tensor<4xf32>
  // expected-error@+1 {{spmd.reuses has 0 entries, expected one for each of 1 results}}
  %b = aten.add.Tensor %a, %x {spmd.reuses = array<i64>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %b : tensor<4xf32>
}

// -----

func.func @no_such_operand(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = aten.relu %x : (tensor<4xf32>) -> tensor<4xf32>
  // expected-error@+1 {{spmd.reuses has operand 2 for entry 0, expected -1 or 0}}
  %b = aten.add.Tensor %a, %x {spmd.reuses = array<i64: 2>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %b : tensor<4xf32>
}

// -----

func.func @an_op_that_cannot(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = aten.relu %x : (tensor<4xf32>) -> tensor<4xf32>
  // expected-error@+1 {{spmd.reuses has operand 0 for entry 0, expected -1}}
  %b = aten.exp %a {spmd.reuses = array<i64: 0>} : (tensor<4xf32>) -> tensor<4xf32>
  func.return %b : tensor<4xf32>
}

// -----

func.func @the_smaller_operand_of_a_sum(%x: tensor<4xf32>, %y: tensor<f32>) -> tensor<4xf32> {
  %a = aten.relu %y : (tensor<f32>) -> tensor<f32>
  // expected-error@+1 {{spmd.reuses has operand 0 for entry 0, expected -1}}
  %b = aten.add.Tensor %a, %x {spmd.reuses = array<i64: 0>} : (tensor<f32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %b : tensor<4xf32>
}

// -----

func.func @numbers_that_are_no_positions(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = aten.relu %x : (tensor<4xf32>) -> tensor<4xf32>
  // expected-error@+1 {{spmd.reuses is array<f32: 5.000000e-01>, expected array<i64: ...>}}
  %b = aten.add.Tensor %a, %x {spmd.reuses = array<f32: 0.5>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %b : tensor<4xf32>
}

// -----

func.func @one_of_two(%x: tensor<8xf32>, %y: tensor<4xf32>) -> (tensor<8xf32>, tensor<4xf32>) {
  %a = aten.neg %x : (tensor<8xf32>) -> tensor<8xf32>
  %c = aten.neg %y : (tensor<4xf32>) -> tensor<4xf32>
  // expected-error@+1 {{spmd.reuses is [0, -1], expected memory of an operand for all results or for none}}
  %b, %d = train.foreach "aten.add.Tensor" lists = ["self", "other"] %a, %c, %x, %y {spmd.reuses = array<i64: 0, -1>} : (tensor<8xf32>, tensor<4xf32>, tensor<8xf32>, tensor<4xf32>) -> (tensor<8xf32>, tensor<4xf32>)
  func.return %b, %d : tensor<8xf32>, tensor<4xf32>
}
