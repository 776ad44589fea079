// RUN: opt-tool %s --split-input-file --verify-diagnostics

func.func @an_op_without_attributes(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{'aten.relu' has dim = 7 : i64, expected the attributes of its schema: none}}
  %y = aten.relu %x {dim = 7 : i64, nonsense = "q"} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return
}

// -----

func.func @a_misspelt_one(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{has keep_dim = true, expected the attributes of its schema: dim (a list of whole numbers), keepdim (true or false), dtype (an element type, as f32)}}
  %y = aten.sum.dim_IntList %x {dim = [1], keep_dim = true} : (tensor<4x6xf32>) -> tensor<4x1xf32>
  func.return
}

// -----

func.func @text_for_a_number(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{'aten.softplus' has beta = "q", expected a number}}
  %y = aten.softplus %x {beta = "q"} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return
}

// -----

func.func @a_fraction_for_a_dim(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{'aten.flip' has dims = [0 : i64, 1.500000e+00 : f64], expected a list of whole numbers}}
  %y = aten.flip %x {dims = [0, 1.5]} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return
}

// -----

func.func @a_number_for_a_flag(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{'aten.amax' has keepdim = 1 : i64, expected true or false}}
  %y = aten.amax %x {dim = [1], keepdim = 1 : i64} : (tensor<4x6xf32>) -> tensor<4x1xf32>
  func.return
}

// -----

func.func @a_shape_for_a_dtype(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{'aten._to_copy' has dtype = tensor<4xf32>, expected an element type, as f32}}
  %y = aten._to_copy %x {dtype = tensor<4xf32>} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return
}

// -----

func.func @no_such_word(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{'aten.gelu' has approximate = "banana", expected one of "none", "tanh"}}
  %y = aten.gelu %x {approximate = "banana"} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return
}

// -----

func.func @lacking_one(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{'aten.cumsum' lacks its attribute `dim`, a whole number}}
  %y = aten.cumsum %x : (tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return
}

// -----

func.func @a_tensor_that_cannot_be_none(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{'aten.native_layer_norm' lists 'input' in `absent`, expected tensors that may be None: weight, bias}}
  %y, %mean, %rstd = aten.native_layer_norm %x, %x, %x {normalized_shape = [6], eps = 1.0e-05 : f64, absent = ["input"]}
    : (tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>) -> (tensor<4x6xf32>, tensor<4x1xf32>, tensor<4x1xf32>)
  func.return
}

// -----

func.func @where_a_tensor_lies_in_memory(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{'aten.clone' has memory_format = 0 : i64; the runtime decides the memory layout of tensors: remove the attribute}}
  %y = aten.clone %x {memory_format = 0 : i64} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return
}

// -----

func.func @of_an_op_that_is_none_of_torchs(%q: tensor<2x4x8x16xf32>) {
  // expected-error@+1 {{'aten.attention' has dropout_p = 5.000000e-01 : f64, expected the attributes of its schema: is_causal (true or false), scale (a number)}}
  %o, %l = aten.attention %q, %q, %q {dropout_p = 0.5, absent = ["attn_mask"]}
    : (tensor<2x4x8x16xf32>, tensor<2x4x8x16xf32>, tensor<2x4x8x16xf32>) -> (tensor<2x4x8x16xf32>, tensor<2x4x8xf32>)
  func.return
}
