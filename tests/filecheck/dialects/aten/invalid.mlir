// RUN: opt-tool %s --split-input-file --verify-diagnostics

func.func @not_in_the_table(%x: tensor<4x6xf32>) {
  // expected-error@+2 {{operation aten.rellu is not registered}}
  // expected-note@+1 {{did you mean 'aten.relu'?}}
  %y = aten.rellu %x : (tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return
}

// -----

func.func @operand_missing(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{'aten.mm' has 1 operands, its schema has tensors (self, mat2); list tensors that are None in `absent`}}
  %y = aten.mm %x : (tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return
}

// -----

func.func @sizes_differ(%x: tensor<4x6xf32>, %w: tensor<5x8xf32>) {
  // expected-error@+1 {{do not fit 'mm': rule '([i, k], [k, j]) -> ([i, j]) reduction={k}': factor k is 6 in one dim, 5 in another}}
  %y = aten.mm %x, %w : (tensor<4x6xf32>, tensor<5x8xf32>) -> tensor<4x8xf32>
  func.return
}

// -----

func.func @result_of_another_shape(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{operand 0 has shape [4, 6], the op's rule ([d0, 1]) -> ([d0, d1]) {d0=4, d1=5} expects [4, 1]}}
  %y = aten.relu %x : (tensor<4x6xf32>) -> tensor<4x5xf32>
  func.return
}

// -----

func.func @argument_missing(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{'aten.permute' lacks its attribute `dims`, a list of whole numbers}}
  %y = aten.permute %x : (tensor<4x6xf32>) -> tensor<6x4xf32>
  func.return
}

// -----

func.func @rule_of_another_rank(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{rule '([b]) -> ([b])': [[b]] does not fit shape [4, 6]}}
  %y = aten.opaque "my::op.default" %x {spmd.rule = #spmd.rule<"([b]) -> ([b])">} : (tensor<4x6xf32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @looked_up_in_parts(%x: tensor<4xf32>, %i: tensor<6xi64>) {
  // expected-error@+1 {{only ops of the table can look up parts of an indexed factor; write replicated={v}}}
  %y = aten.opaque "my::op.default" %x, %i {spmd.rule = #spmd.rule<"([v], [b]) -> ([b]) indexed={v: 1}">}
    : (tensor<4xf32>, tensor<6xi64>) -> tensor<6xf32>
  func.return
}

// -----

func.func @no_stream(%x: tensor<4x6xf32>, %seed: tensor<i64>) {
  // expected-error@+1 {{'aten.random_dropout' lacks its attribute `stream`, a whole number}}
  %y, %kept = aten.random_dropout %x, %seed {p = 0.1 : f64} : (tensor<4x6xf32>, tensor<i64>) -> (tensor<4x6xf32>, tensor<4x6xi1>)
  func.return
}

// -----

func.func @seed_is_no_seed(%x: tensor<4x6xf32>, %seed: tensor<4xi64>) {
  // expected-error@+1 {{'aten.random_uniform' has a seed of type tensor<4xi64>, expected tensor<i64>}}
  %y = aten.random_uniform %x, %seed {low = 0.0 : f64, high = 1.0 : f64, stream = 0 : i64, dtype = f32, size = [4, 6]}
    : (tensor<4x6xf32>, tensor<4xi64>) -> tensor<4x6xf32>
  func.return
}
