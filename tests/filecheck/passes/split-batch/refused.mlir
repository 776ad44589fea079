// RUN: opt-tool %s --split-input-file --verify-diagnostics --pass-pipeline=split-batch

// An op inside the loop that needs the whole batch is refused by name.

spmd.mesh @mesh = <["gpu"=1]>
func.func @whole(%x: tensor<8x4xf32> {train.batch = "0"}, %w: tensor<4xf32>) -> tensor<f32> {
  %h = aten.add.Tensor %x, %w {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}]) -> ([{}, {}])>}
    : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  // expected-error@+1 {{'aten._softmax' op %p from "norm" (model.py:3:4): it needs all 8 rows of the batch at once, so they cannot be split into 2 parts along "micro": it needs dim 0 of %h [8, 4] whole; do not split the batch}}
  %p = aten._softmax %h {dim = 0 : i64, half_to_float = false, spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>}
    : (tensor<8x4xf32>) -> tensor<8x4xf32> loc("norm"("model.py":3:4))
  %s = aten.sum %p {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([])>} : (tensor<8x4xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// -----

spmd.mesh @mesh = <["gpu"=1]>
func.func @sum(%x: tensor<8x4xf32> {train.batch = "0"}, %w: tensor<4xf32>) -> tensor<f32> {
  %h = aten.add.Tensor %x, %w {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}]) -> ([{}, {}])>}
    : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  %m = aten.sum.dim_IntList %h {dim = [0 : i64], spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}])>}
    : (tensor<8x4xf32>) -> tensor<4xf32>
  // expected-error@+1 {{it needs %m, which is complete only after all 2 parts of the batch along "micro", for each of the parts; do not split the batch, or unroll two parts}}
  %c = aten.sub.Tensor %h, %m {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}]) -> ([{}, {}])>}
    : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  %s = aten.sum %c {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([])>} : (tensor<8x4xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// -----

// For a user of a sum over the batch, the sum is named too.

spmd.mesh @mesh = <["gpu"=1]>
func.func @of_sum(%x: tensor<8x4xf32> {train.batch = "0"}, %w: tensor<4xf32>) -> tensor<f32> {
  %h = aten.add.Tensor %x, %w {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}]) -> ([{}, {}])>}
    : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  %m = aten.sum.dim_IntList %h {dim = [0 : i64], spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}])>}
    : (tensor<8x4xf32>) -> tensor<4xf32> loc("norm"("model.py":3:4))
  %e = aten.exp %m {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>} : (tensor<4xf32>) -> tensor<4xf32>
  // expected-error@+1 {{it needs %e, which is complete only after all 2 parts of the batch along "micro" (the sum over them is 'aten.sum.dim_IntList' op %m from "norm" (model.py:3:4)), for each of the parts; do not split the batch, or unroll two parts}}
  %c = aten.sub.Tensor %h, %e {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}]) -> ([{}, {}])>}
    : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  %s = aten.sum %c {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([])>} : (tensor<8x4xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// -----

spmd.mesh @mesh = <["gpu"=4]>
func.func @small(%x: tensor<6xf32> {train.batch = "0"}) -> tensor<f32> {
  // expected-error@+1 {{the batch of 6 rows is too small to be split into 8 parts, 2 of them over time; use fewer parts, or a batch of 8 rows}}
  %h = aten.neg %x {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}]) -> ([{"gpu"}])>} : (tensor<6xf32>) -> tensor<6xf32>
  %s = aten.sum %h {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([])>} : (tensor<6xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// -----

spmd.mesh @mesh = <["gpu"=1]>
// expected-error@+1 {{the batch of 1 rows is too small for 2 parts; use at most 1}}
func.func @single(%x: tensor<1xf32> {train.batch = "0"}) -> tensor<1xf32> {
  func.return %x : tensor<1xf32>
}

// -----

spmd.mesh @mesh = <["gpu"=1]>
func.func @returned(%x: tensor<8xf32> {train.batch = "0"}) -> tensor<8xf32> {
  // expected-error@+1 {{a result of the step is split along the batch; only sums over the batch can be returned}}
  %h = aten.neg %x {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>} : (tensor<8xf32>) -> tensor<8xf32>
  func.return %h : tensor<8xf32>
}

// -----

spmd.mesh @mesh = <["gpu"=1]>
func.func @norm(%x: tensor<8x4x3xf32> {train.batch = "0"}, %w: tensor<3xf32>) -> tensor<f32> {
  %h = aten.add.Tensor %x, %w {spmd.signature = #spmd.sig<@mesh, ([{}, {}, {}], [{}]) -> ([{}, {}, {}])>}
    : (tensor<8x4x3xf32>, tensor<3xf32>) -> tensor<8x4x3xf32>
  // expected-error@+1 {{'aten._native_batch_norm_legit.no_stats' op %y, %m, %i from "bn" (model.py:3:4): it needs all 8 rows of the batch at once, so they cannot be split into 2 parts along "micro": its statistics are computed over dim 0 of %h [8, 4, 3]; synchronise its statistics, by decompose-batch-norm first}}
  %y, %m, %i = aten._native_batch_norm_legit.no_stats %h {training = true, momentum = 1.0 : f64, eps = 1.0 : f64,
    absent = ["weight", "bias"],
    spmd.signature = #spmd.sig<@mesh, ([{}, {}, {}]) -> ([{}, {}, {}], [{}], [{}])>}
    : (tensor<8x4x3xf32>) -> (tensor<8x4x3xf32>, tensor<4xf32>, tensor<4xf32>) loc("bn"("model.py":3:4))
  %s = aten.sum %y {spmd.signature = #spmd.sig<@mesh, ([{}, {}, {}]) -> ([])>} : (tensor<8x4x3xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// -----

// A dim with time before the batch: the advice is the pass that puts the batch first.

spmd.mesh @mesh = <["gpu"=1]>
func.func @merged(%x: tensor<8x4xf32> {train.batch = "0"}, %w: tensor<4xf32>) -> tensor<f32> {
  %h = aten.add.Tensor %x, %w {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}]) -> ([{}, {}])>}
    : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  %t = aten.t %h {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>} : (tensor<8x4xf32>) -> tensor<4x8xf32>
  // expected-error@+1 {{'aten.view' op %v from "mha" (model.py:3:4): it needs all 8 rows of the batch at once, so they cannot be split into 2 parts along "micro": dim 1 of %t [4, 8] is behind another factor, 4 x 8, in dim 0 of %v [32], as 'aten.exp' op %e from "net" (model.py:4:4) takes it; run make-batch-major before search-strategy}}
  %v = aten.view %t {size = [32 : i64], spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}])>}
    : (tensor<4x8xf32>) -> tensor<32xf32> loc("mha"("model.py":3:4))
  %e = aten.exp %v {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>}
    : (tensor<32xf32>) -> tensor<32xf32> loc("net"("model.py":4:4))
  %s = aten.sum %e {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([])>} : (tensor<32xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// -----

spmd.mesh @mesh = <["gpu"=1]>
func.func @gram(%x: tensor<8x4xf32> {train.batch = "0"}, %w: tensor<4xf32>) -> tensor<f32> {
  %h = aten.add.Tensor %x, %w {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}]) -> ([{}, {}])>}
    : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  %t = aten.t %h {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>} : (tensor<8x4xf32>) -> tensor<4x8xf32>
  // expected-error@+1 {{it combines rows with one another, by dim 0 of %h [8, 4] and dim 1 of %t [4, 8]; do not split the batch}}
  %g = aten.mm %h, %t {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}, {}]) -> ([{}, {}])>}
    : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32> loc("gram"("model.py":3:4))
  %s = aten.sum %g {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([])>} : (tensor<8x8xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// -----

spmd.mesh @mesh = <["gpu"=1]>
func.func @sorted(%x: tensor<8xf32> {train.batch = "0"}, %w: tensor<1xf32>) -> tensor<f32> {
  %h = aten.mul.Tensor %x, %w {spmd.signature = #spmd.sig<@mesh, ([{}], [{}]) -> ([{}])>} : (tensor<8xf32>, tensor<1xf32>) -> tensor<8xf32>
  // expected-error@+1 {{it sorts the elements of all rows together, along dim 0 of %h [8]; run sort-within-rows before search-strategy or, where that was done, do not split the batch: later ops depend on which row each of the sorted elements is from}}
  %y, %i = aten.sort %h {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}], [{}])>} : (tensor<8xf32>) -> (tensor<8xf32>, tensor<8xi64>)
  %s = aten.sum %y {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([])>} : (tensor<8xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// -----

spmd.mesh @mesh = <["gpu"=1]>
func.func @made(%x: tensor<8xf32> {train.batch = "0"}, %w: tensor<1xf32>) -> tensor<f32> {
  %h = aten.mul.Tensor %x, %w {spmd.signature = #spmd.sig<@mesh, ([{}], [{}]) -> ([{}])>} : (tensor<8xf32>, tensor<1xf32>) -> tensor<8xf32>
  // expected-error@+1 {{it takes %h [8] but does not read its elements; run detach-factories before search-strategy}}
  %z = aten.new_zeros %h {size = [8 : i64, 2 : i64], spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}, {}])>} : (tensor<8xf32>) -> tensor<8x2xf32>
  %s = aten.sum %z {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([])>} : (tensor<8x2xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}
