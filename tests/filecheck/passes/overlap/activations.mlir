// RUN: opt-tool %s --pass-pipeline='overlap' | filecheck %s
// RUN: opt-tool %s --pass-pipeline='overlap{activations=false}' | filecheck %s --check-prefix=OFF

// In @work there is an op to run while %x.all is in flight; in @no_work the result is needed at once.

#op = #spmd.sig<@mesh, ([{"gpu"}]) -> ([{"gpu"}])>
#whole = #spmd.sig<@mesh, ([{}]) -> ([{}])>
#add = #spmd.sig<@mesh, ([{}], [{}]) -> ([{}])>

spmd.mesh @mesh = <["gpu"=2]>

// CHECK-LABEL: func.func @work
// CHECK-NEXT:    %a = aten.neg
// CHECK-NEXT:    %a.all.started = spmd.start "all_gather" %a
// CHECK-NEXT:    %b = aten.neg %y
// CHECK-NEXT:    %a.all = spmd.wait
// CHECK-NEXT:    %v = aten.view
// CHECK-NEXT:    %c = aten.add.Tensor

// OFF-LABEL: func.func @work
// OFF-NOT:     spmd.start
func.func @work(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}, %y: tensor<4xf32>) -> tensor<4xf32> {
  %a = aten.neg %x {spmd.signature = #op} : (tensor<4xf32>) -> tensor<4xf32>
  %a.all = spmd.all_gather [{"gpu"}] %a out_sharding = <@mesh, [{}]> : tensor<4xf32>
  %v = aten.view %a.all {size = [4 : i64], spmd.signature = #whole} : (tensor<4xf32>) -> tensor<4xf32>
  %b = aten.neg %y {spmd.signature = #whole} : (tensor<4xf32>) -> tensor<4xf32>
  %c = aten.add.Tensor %v, %b {spmd.signature = #add} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %c : tensor<4xf32>
}

// CHECK-LABEL: func.func @no_work
// CHECK-NEXT:    %a = aten.neg
// CHECK-NEXT:    %a.all = spmd.all_gather
// CHECK-NEXT:    %b = aten.neg %a.all
func.func @no_work(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> tensor<4xf32> {
  %a = aten.neg %x {spmd.signature = #op} : (tensor<4xf32>) -> tensor<4xf32>
  %a.all = spmd.all_gather [{"gpu"}] %a out_sharding = <@mesh, [{}]> : tensor<4xf32>
  %b = aten.neg %a.all {spmd.signature = #whole} : (tensor<4xf32>) -> tensor<4xf32>
  func.return %b : tensor<4xf32>
}
