// RUN: opt-tool %s --verify-diagnostics --pass-pipeline=schedule-pipeline

spmd.mesh @mesh = <["micro"=2 temporal, "gpu"=1]>
// expected-error@+1 {{has no stages; run partition-stages first}}
func.func @step(%x: tensor<8xf32>) -> tensor<8xf32> {
  func.return %x : tensor<8xf32>
}
