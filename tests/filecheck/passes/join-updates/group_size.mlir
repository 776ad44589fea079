// RUN: opt-tool %s --pass-pipeline='join-updates{group-mb=0.01}' --mlir-print-debuginfo=false | filecheck %s

// Two parameters of 4 KiB fit into a group; a single remaining parameter keeps its op.

// CHECK-LABEL: func.func @step
func.func @step(
  %a: tensor<1024xf32> {train.param = "a"}, %b: tensor<1024xf32> {train.param = "b"},
  %c: tensor<1024xf32> {train.param = "c"}, %next: tensor<1024xf32>
) -> (
  tensor<1024xf32> {train.updates = 0 : i64}, tensor<1024xf32> {train.updates = 1 : i64},
  tensor<1024xf32> {train.updates = 2 : i64}
) {
  // CHECK-NEXT: %a.new, %b.new = train.foreach "train.assign" lists = ["old", "new"] %a, %b, %next, %next :
  // CHECK-NEXT: %c.new = train.assign %c, %next
  %a.new = train.assign %a, %next {train.update = "a"} : (tensor<1024xf32>, tensor<1024xf32>) -> tensor<1024xf32>
  %b.new = train.assign %b, %next {train.update = "b"} : (tensor<1024xf32>, tensor<1024xf32>) -> tensor<1024xf32>
  %c.new = train.assign %c, %next {train.update = "c"} : (tensor<1024xf32>, tensor<1024xf32>) -> tensor<1024xf32>
  func.return %a.new, %b.new, %c.new : tensor<1024xf32>, tensor<1024xf32>, tensor<1024xf32>
}
