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
