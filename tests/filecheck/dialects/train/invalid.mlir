// RUN: opt-tool %s --split-input-file --verify-diagnostics

func.func @buffer_neither_given_nor_absent(%w: tensor<4xf32>, %g: tensor<4xf32>, %count: tensor<f32>, %lr: tensor<f32>) {
  // expected-error@+1 {{'train.sgd' has 4 operands, expected (param, grad, momentum_buffer, step, lr)}}
  %w.new = train.sgd %w, %g, %count, %lr : (tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @gradient_of_another_shape(%w: tensor<4xf32>, %g: tensor<5xf32>, %count: tensor<f32>, %lr: tensor<f32>) {
  // expected-error@+1 {{operand 1 has shape [5], the op's rule}}
  %w.new = train.sgd %w, %g, %count, %lr {absent = ["momentum_buffer"]}
    : (tensor<4xf32>, tensor<5xf32>, tensor<f32>, tensor<f32>) -> tensor<4xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @update_from_partial_sums(%w: tensor<4xf32>, %g: tensor<4xf32>, %count: tensor<f32>, %lr: tensor<f32>) {
  // expected-error@+1 {{the nearest that it allows is ([{}], [{}], [], []) -> ([{}])}}
  %w.new = train.sgd %w, %g, %count, %lr
    {absent = ["momentum_buffer"],
     spmd.signature = #spmd.sig<@mesh, ([{}], [{}], unreduced={"gpu"}, [], []) -> ([{}])>}
    : (tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @assign_of_another_shape(%w: tensor<4xf32>, %new: tensor<5xf32>) {
  // expected-error@+1 {{operand 1 has shape [5], the op's rule}}
  %w.new = train.assign %w, %new : (tensor<4xf32>, tensor<5xf32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @lists_of_other_lengths(%a: tensor<4xf32>, %b: tensor<4xf32>, %c: tensor<4xf32>) {
  // expected-error@+1 {{'train.foreach' has 3 operands, expected the same number of each of (self, other)}}
  %x = train.foreach "aten.add.Tensor" lists = ["self", "other"] %a, %b, %c
    : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @no_such_function(%a: tensor<4xf32>, %b: tensor<4xf32>) {
  // expected-error@+1 {{the multi-tensor form of 'aten.relu' does not exist}}
  %x, %y = train.foreach "aten.relu" lists = ["self"] %a, %b
    : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  func.return
}

// -----

func.func @a_tensor_for_all_that_is_none(%a: tensor<4xf32>, %b: tensor<4xf32>, %c: tensor<f32>) {
  // expected-error@+1 {{the multi-tensor form of 'aten.sub.Tensor' takes no tensor for all members as 'other'}}
  %x, %y = train.foreach "aten.sub.Tensor" lists = ["self"] shared = ["other"] %a, %b, %c
    : (tensor<4xf32>, tensor<4xf32>, tensor<f32>) -> (tensor<4xf32>, tensor<4xf32>)
  func.return
}

// -----

func.func @an_option_beside_a_number(%a: tensor<4xf32>, %b: tensor<4xf32>) {
  // expected-error@+1 {{the multi-tensor form of 'aten.add.Tensor' takes no 'alpha' together with a number}}
  %x, %y = train.foreach "aten.add.Tensor" lists = ["self"] %a, %b {other = 1.0 : f64, alpha = 2.0 : f64}
    : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  func.return
}

// -----

func.func @a_member_of_two_shapes(%a: tensor<4xf32>, %b: tensor<f32>) {
  // expected-error@+1 {{has a member of shapes [4], [], [4], expected one shape, and [] for shared operands}}
  %x = train.foreach "aten.add.Tensor" lists = ["self", "other"] %a, %b
    : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @a_member_of_partial_sums(%a: tensor<4xf32>, %b: tensor<4xf32>) {
  // expected-error@+1 {{the nearest that it allows is ([{}]) -> ([{}])}}
  %x, %y = train.foreach "aten.sqrt" lists = ["self"] %a, %b
    {spmd.signature = #spmd.sig<@mesh, ([{}], [{}], unreduced={"gpu"}) -> ([{}], [{}])>}
    : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  func.return
}

// -----

// expected-error@+1 {{train.lr of argument 0 is an unknown attribute there, expected train.param, train.state}}
func.func @a_role_that_does_not_exist(%lr: tensor<f32> {train.lr}) {
  func.return
}

// -----

func.func @a_role_of_an_argument_on_an_op(%x: tensor<4xf32>) {
  // expected-error@+1 {{train.param is an unknown attribute there, expected spmd.signature}}
  %y = aten.neg %x {train.param = "w"} : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}
