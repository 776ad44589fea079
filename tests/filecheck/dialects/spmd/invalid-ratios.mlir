// RUN: opt-tool %s --split-input-file --verify-diagnostics

spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{spmd.ratios: the ratios [0.5, 0.6] of axis "gpu" sum to 1.1, expected 1}}
func.func @sum() attributes {spmd.ratios = [#spmd.ratios<@mesh, {"gpu" = [0.5, 0.6]}>]} {
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{spmd.ratios: axis "gpu" has a share of -0.5, expected a number of at least 0}}
func.func @negative() attributes {spmd.ratios = [#spmd.ratios<@mesh, {"gpu" = [1.5, -0.5]}>]} {
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{spmd.ratios: axis "gpu" has 2 parts, but 3 ratios: [0.5, 0.25, 0.25]}}
func.func @count() attributes {spmd.ratios = [#spmd.ratios<@mesh, {"gpu" = [0.5, 0.25, 0.25]}>]} {
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{spmd.ratios: mesh @mesh has no axis "node"; its axes are "gpu"=2}}
func.func @axis() attributes {spmd.ratios = [#spmd.ratios<@mesh, {"node" = [0.5, 0.5]}>]} {
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{there is no mesh @other; the module's meshes: @mesh}}
func.func @other_mesh() attributes {spmd.ratios = [#spmd.ratios<@other, {"gpu" = [0.5, 0.5]}>]} {
  func.return
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{expected a list of #spmd.ratios}}
func.func @list() attributes {spmd.ratios = #spmd.ratios<@mesh, {"gpu" = [0.5, 0.5]}>} {
  func.return
}
