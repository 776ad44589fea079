// RUN: opt-tool %s --mlir-print-debuginfo=false | opt-tool --mlir-print-debuginfo=false | filecheck %s

// The body of a fragment without results must not parse as a dictionary of attributes.
// CHECK: pipe.fragment "f" over "micro" -> {
spmd.mesh @mesh = <["micro"=2 temporal]>
func.func @step(%x: tensor<4xf32>) {
  pipe.fragment "f" over "micro" -> {
    %y = aten.neg %x : (tensor<4xf32>) -> tensor<4xf32>
    pipe.yield
  }
  func.return
}
