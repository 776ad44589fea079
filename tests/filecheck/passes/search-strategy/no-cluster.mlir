// RUN: opt-tool %s --split-input-file --verify-diagnostics --pass-pipeline=search-strategy

// expected-error@+1 {{the module has no mesh; add one, as `spmd.mesh @mesh = <["gpu"=4]>`}}
func.func @no_mesh() {
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=4]>
// expected-error@+1 {{the module has no spmd.cluster, so there are no costs to search with}}
func.func @no_cluster() {
  func.return
}
