// RUN: opt-tool %s --pass-pipeline=dce --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s --pass-pipeline=canonicalize --mlir-print-debuginfo=false | filecheck %s

spmd.mesh @mesh = <["gpu"=2]>

// Unused ops and reshardings are removed; an update stays, because its result is returned.
// CHECK-LABEL: func.func @step
func.func @step(%w: tensor<4xf32>, %g: tensor<4xf32>, %count: tensor<f32>, %lr: tensor<f32>) -> tensor<4xf32> {
  // CHECK-NEXT: %w.new = train.sgd
  // CHECK-NEXT: func.return %w.new
  %unused = aten.exp %w : (tensor<4xf32>) -> tensor<4xf32>
  %split = spmd.reshard %unused to <@mesh, [{"gpu"}]> : tensor<4xf32>
  %w.new = train.sgd %w, %g, %count, %lr {absent = ["momentum_buffer"]} : (tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>) -> tensor<4xf32>
  func.return %w.new : tensor<4xf32>
}

// The halves of a collective are not pure ops: a started collective keeps its wait.
// CHECK-LABEL: func.func @halves
func.func @halves(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) {
  // CHECK-NEXT: spmd.start
  // CHECK-NEXT: spmd.wait
  %t = spmd.start "all_gather" %x out_shardings = [#spmd.sharding<@mesh, [{}]>] : tensor<4xf32>
  %y = spmd.wait %t : tensor<4xf32>
  func.return
}
