// RUN: opt-tool %s --split-input-file --verify-diagnostics --pass-pipeline=strip-resharding

// The value of a later part is used directly, and not summed with the value of the first part.

spmd.mesh @mesh = <["micro"=2 temporal, "gpu"=2]>
func.func @step(%x: tensor<8xf32> {train.batch = "0"}) -> tensor<8xf32> {
  // expected-error@+1 {{belongs to a later part of an unrolled loop, but its result has other uses than the sum with the first part, so the unrolling cannot be undone; strip the step as it was before duplex}}
  %y = aten.exp %x {spmd.at = {micro = 1 : i64}} : (tensor<8xf32>) -> tensor<8xf32>
  func.return %y : tensor<8xf32>
}

// -----

// expected-error@+1 {{@mesh has no axis of devices, only of time; give it one: "gpu"=1}}
spmd.mesh @mesh = <["micro"=2 temporal]>
func.func @step(%x: tensor<8xf32> {train.batch = "0"}) -> tensor<8xf32> {
  func.return %x : tensor<8xf32>
}
