// RUN: opt-tool %s --split-input-file --verify-diagnostics --pass-pipeline=duplex

spmd.mesh @mesh = <["micro"=1 temporal, "gpu"=2]>
// expected-error@+1 {{axis "micro" has 1 parts; duplex needs 2 to 26: split-batch{parts=2}, or accumulate}}
func.func @one(%x: tensor<8xf32>) -> tensor<8xf32> {
  func.return %x : tensor<8xf32>
}

// -----

spmd.mesh @mesh = <["micro"=2 temporal, "half"=2 temporal]>
// expected-error@+1 {{expected one temporal axis, or the name of one; the temporal axes of mesh <["micro"=2 temporal, "half"=2 temporal]> are: "micro", "half"; run split-batch first}}
func.func @two(%x: tensor<8xf32>) -> tensor<8xf32> {
  func.return %x : tensor<8xf32>
}
