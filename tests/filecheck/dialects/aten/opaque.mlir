// RUN: opt-tool %s --mlir-print-debuginfo=false | filecheck %s

spmd.mesh @mesh = <["gpu"=2]>

// CHECK-LABEL: func.func @an_op_that_nobody_knows
func.func @an_op_that_nobody_knows(%x: tensor<4x6xf32>) -> tensor<4xf32> {
  // CHECK: %y = aten.opaque "my::op.default" %x {scale = 2.000000e+00 : f32} : (tensor<4x6xf32>) -> tensor<4xf32>
  %y = aten.opaque "my::op.default" %x {scale = 2.0 : f32} : (tensor<4x6xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// An opaque op with a rule can be split.
// CHECK-LABEL: func.func @a_rule_of_its_own
func.func @a_rule_of_its_own(%x: tensor<4x6xf32>) -> tensor<4xf32> {
  // CHECK: {spmd.rule = #spmd.rule<"([b, k]) -> ([b])">, spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}])>}
  %y = aten.opaque "my::op.default" %x {spmd.rule = #spmd.rule<"([b, k]) -> ([b])">, spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}])>} : (tensor<4x6xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}
