// RUN: opt-tool %s --split-input-file --verify-diagnostics

func.func @no_such_setting(%w: tensor<4xf32>, %g: tensor<4xf32>, %n: tensor<f32>, %lr: tensor<f32>) {
  // expected-error@+1 {{'train.sgd' has betas = [], expected the attributes of its schema: momentum (a number), dampening (a number), nesterov (true or false), weight_decay (a number), maximize (true or false)}}
  %w.new = train.sgd %w, %g, %n, %lr {betas = [], absent = ["momentum_buffer"]}
    : (tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @a_setting_of_another_kind(%w: tensor<4xf32>, %g: tensor<4xf32>, %n: tensor<f32>, %lr: tensor<f32>) {
  // expected-error@+1 {{'train.sgd' has nesterov = 1 : i64, expected true or false}}
  %w.new = train.sgd %w, %g, %n, %lr {nesterov = 1 : i64, absent = ["momentum_buffer"]}
    : (tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @half_of_the_betas(%w: tensor<4xf32>, %n: tensor<f32>) {
  // expected-error@+1 {{'train.adamw' has one of beta1 and beta2, expected both or none}}
  %w.new, %m, %v = train.adamw %w, %w, %w, %w, %n, %n {beta1 = 0.9 : f64}
    : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)
  func.return
}

// -----

func.func @no_such_tensor(%w: tensor<4xf32>, %n: tensor<f32>) {
  // expected-error@+1 {{'train.sgd' lists 'velocity' in `absent`, expected some of its tensors: param, grad, momentum_buffer, step, lr}}
  %w.new = train.sgd %w, %w, %w, %n, %n {absent = ["velocity"]}
    : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @without_settings(%n: tensor<f32>) {
  // expected-error@+1 {{'train.increment' has by = 2 : i64, expected the attributes of its schema: none}}
  %next = train.increment %n {by = 2 : i64} : (tensor<f32>) -> tensor<f32>
  func.return
}

// -----

func.func @of_several(%a: tensor<4xf32>, %b: tensor<4xf32>) {
  // expected-error@+1 {{'train.foreach' of 'aten.add.Tensor' has alpha = "two", expected a number}}
  %x, %y = train.foreach "aten.add.Tensor" lists = ["self", "other"] %a, %b, %a, %b {alpha = "two"}
    : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  func.return
}
