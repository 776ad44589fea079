// RUN: opt-tool %s --verify-diagnostics --split-input-file

// An op uses only values of its own stage; transfers send values between stages.

spmd.mesh @stage0 = <["gpu"=1]> on [0]
spmd.mesh @stage1 = <["gpu"=1]> on [1]
// expected-error@+1 {{'aten.exp' of stage 1 uses %x of stage 0; transfer it with a 'pipe.transfer'}}
func.func @step(%x: tensor<8xf32> {pipe.stage = 0 : i64}) -> tensor<8xf32> attributes {pipe.stages = ["stage0", "stage1"]} {
  %y = aten.exp %x {pipe.stage = 1 : i64} : (tensor<8xf32>) -> tensor<8xf32>
  func.return %y : tensor<8xf32>
}

// -----

spmd.mesh @stage0 = <["gpu"=1]> on [0]
// expected-error@+1 {{argument %x has no stage, expected one of the 1 of pipe.stages}}
func.func @step(%x: tensor<8xf32>) -> tensor<8xf32> attributes {pipe.stages = ["stage0"]} {
  func.return %x : tensor<8xf32>
}

// -----

spmd.mesh @stage0 = <["gpu"=1]> on [0]
// expected-error@+1 {{there is no mesh @stage1; the module's meshes: @stage0}}
func.func @step(%x: tensor<8xf32> {pipe.stage = 0 : i64}) -> tensor<8xf32> attributes {pipe.stages = ["stage0", "stage1"]} {
  func.return %x : tensor<8xf32>
}

// -----

spmd.mesh @stage0 = <["gpu"=1]> on [0]
// expected-error@+1 {{'aten.exp' has stage 2, expected one of the 1 of pipe.stages}}
func.func @step(%x: tensor<8xf32> {pipe.stage = 0 : i64}) -> tensor<8xf32> attributes {pipe.stages = ["stage0"]} {
  %y = aten.exp %x {pipe.stage = 2 : i64} : (tensor<8xf32>) -> tensor<8xf32>
  func.return %y : tensor<8xf32>
}
