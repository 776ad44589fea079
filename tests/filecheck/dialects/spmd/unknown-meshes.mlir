// RUN: opt-tool %s --split-input-file --verify-diagnostics

// The verifier looks up every name of a mesh in the module.

spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{spmd.sharding of argument 0: there is no mesh @other; the module's meshes: @mesh}}
func.func @of_an_argument(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@other, [{}]>}) {
  func.return
}

// -----

// expected-error@+1 {{spmd.working of argument 0: there is no mesh @mesh; the module's meshes: none}}
func.func @of_a_working_copy(%x: tensor<4xf32> {spmd.working = #spmd.sharding<@mesh, [{}]>}) {
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @of_a_working_copy_of_a_result(%x: tensor<4xf32>) {
  // expected-error@+1 {{spmd.working of result 0: there is no mesh @other; the module's meshes: @mesh}}
  %y = aten.neg %x {spmd.working = [#spmd.sharding<@other, [{}]>]} : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @of_a_signature(%x: tensor<4xf32>) {
  // expected-error@+1 {{there is no mesh @other; the module's meshes: @mesh}}
  %y = aten.neg %x {spmd.signature = #spmd.sig<@other, ([{}]) -> ([{}])>} : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

spmd.mesh @a = <["gpu"=2]>
spmd.mesh @b = <["gpu"=2]>
func.func @of_a_transfer(%x: tensor<4xf32>) {
  // expected-error@+1 {{there is no mesh @c; the module's meshes: @a, @b}}
  %y = pipe.transfer "x" %x to @c : tensor<4xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{there is no mesh @other; the module's meshes: @mesh}}
func.func @of_a_stage() attributes {pipe.stages = ["other"]} {
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{there is no mesh @other; the module's meshes: @mesh}}
func.func @of_ratios() attributes {spmd.ratios = [#spmd.ratios<@other, {"gpu" = [0.5, 0.5]}>]} {
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @text_is_no_symbol(%x: tensor<4xf32>) {
  // expected-error@+1 {{expected SymbolRefAttr with no nested symbols}}
  %y = "pipe.transfer"(%x) <{label = "x", mesh = "mesh"}> : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}
