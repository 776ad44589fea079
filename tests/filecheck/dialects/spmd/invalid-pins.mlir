// RUN: opt-tool %s --split-input-file --verify-diagnostics

spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{spmd.pin of argument 0 refers to the axis "gpus", expected one of the meshes': "gpu"}}
func.func @axis(%x: tensor<4xf32> {spmd.pin = #spmd.pin<{"gpus" = R}>}) { func.return }

// -----

spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{spmd.pin of argument 0 splits dim 1 of a value that has 1 dims}}
func.func @dim(%x: tensor<4xf32> {spmd.pin = #spmd.pin<{"gpu" = R | S(1)}>}) { func.return }

// -----

spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{spmd.pin of argument 0 has 2 dims, expected 1 as its value has}}
func.func @dims(%x: tensor<4xf32> {spmd.pin = #spmd.pin<([{"gpu"}, {}])>}) { func.return }

// -----

spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{spmd.pin of argument 0 refers to entry 0 of spmd.pins, which has 0}}
func.func @entry(%x: tensor<4xf32> {spmd.pin = #spmd.pin<{"gpu" = R}, by [0]>}) { func.return }

// -----

spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{spmd.pin of 'aten.relu' lists 2 operands, the op has 1}}
func.func @operands(%x: tensor<4xf32>) {
  %y = aten.relu %x {spmd.pin = #spmd.op_pin<"gpu" = (R, R) -> (R)>} : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{spmd.pin of 'aten.relu' pins result 1, the op has 1}}
func.func @result(%x: tensor<4xf32>) {
  %y = aten.relu %x {spmd.pin = #spmd.op_pin<result 1 working {"gpu" = R}>} : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

// expected-error@+1 {{spmd.pin of argument 0 is #spmd.sharding<@mesh, [{}]>, expected a #spmd.pin}}
func.func @kind(%x: tensor<4xf32> {spmd.pin = #spmd.sharding<@mesh, [{}]>}) { func.return }

// -----

// expected-error@+1 {{expected one sharding, one working copy, or both}}
"test.op"() {a = #spmd.pin<by [0]>} : () -> ()

// -----

// expected-error@+1 {{preset 'fsdp' is not one of dp, zero1, zero2, zero3, tp}}
"test.op"() {a = #spmd.pin_entry<preset "fsdp">} : () -> ()
