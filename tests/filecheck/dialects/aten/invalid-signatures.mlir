// RUN: opt-tool %s --split-input-file --verify-diagnostics

func.func @no_mesh(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{there is no mesh @mesh; the module's meshes: none}}
  %y = aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}])>} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @not_a_signature(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{'spmd.signature' must be a #spmd.sig, found #spmd.sharding<@mesh, [{"gpu"}, {}]>}}
  %y = aten.relu %x {spmd.signature = #spmd.sharding<@mesh, [{"gpu"}, {}]>} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @axis_that_does_not_exist(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{'aten.relu' op %y: mesh @mesh has no axis "gpus"; its axes are "gpu"=2}}
  %y = aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{"gpus"}, {}]) -> ([{"gpus"}, {}])>} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=8]>
func.func @more_parts_than_elements(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{splits dim 0 of size 4 evenly into 8 parts; an even split needs a size of at least 8 (explicit offsets may leave parts empty)}}
  %y = aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}])>} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @axis_used_twice(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{sharding [{"gpu"}, {"gpu"}] uses axis "gpu" 2 times, expected once}}
  %y = aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {"gpu"}]) -> ([{"gpu"}, {"gpu"}])>} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @split_changes_the_dim(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{is not one that the op's rule ([d0, d1]) -> ([d0, d1]) {d0=4, d1=6} allows; the nearest that it allows is ([{}, {"gpu"}]) -> ([{}, {"gpu"}])}}
  %y = aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{}, {"gpu"}])>} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @relu_of_partial_sums(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{the nearest that it allows is ([{}, {}]) -> ([{}, {}])}}
  %y = aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{}, {}], unreduced={"gpu"}) -> ([{}, {}], unreduced={"gpu"})>} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @softmax_along_the_split(%x: tensor<4x6xf32>) {
  // expected-error@+1 {{replicated={d1} allows; the nearest that it allows is ([{}, {}]) -> ([{}, {}])}}
  %y = aten._softmax %x {dim = 1 : i64, half_to_float = false, spmd.signature = #spmd.sig<@mesh, ([{}, {"gpu"}]) -> ([{}, {"gpu"}])>} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @bias_added_twice(%b: tensor<8xf32>, %x: tensor<4x6xf32>, %w: tensor<6x8xf32>) {
  // expected-error@+1 {{the nearest that it allows is ([{}], unreduced={"gpu"}, [{}, {"gpu"}], [{"gpu"}, {}]) -> ([{}, {}], unreduced={"gpu"})}}
  %y = aten.addmm %b, %x, %w {spmd.signature = #spmd.sig<@mesh, ([{}], [{}, {"gpu"}], [{"gpu"}, {}]) -> ([{}, {}], unreduced={"gpu"})>} : (tensor<8xf32>, tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @one_operand_left_out(%x: tensor<4x6xf32>, %w: tensor<6x8xf32>) {
  // expected-error@+1 {{is of 1 operands and 1 results, the op has 2 and 1}}
  %y = aten.mm %x, %w {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>} : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
  func.return
}
