// RUN: opt-tool %s --pass-pipeline='chunk-collectives{parts=2}' --split-input-file --verify-numerics --mlir-print-debuginfo=false | filecheck %s

// Rows that a mesh axis splits stay whole: columns are cut, and the bias with them, which is added once.
spmd.mesh @mesh = <["dp"=2, "tp"=2]>
// CHECK-LABEL: @columns
func.func @columns(%b: tensor<5xf32> {train.param = "b"},
    %x: tensor<8x6xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {"tp"}]>},
    %w: tensor<6x5xf32> {train.param = "w", spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>}) -> (tensor<8x5xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>}) {
  %p = spmd.partial [{"tp"}] %b out_sharding = <@mesh, [{}], unreduced={"tp"}> : tensor<5xf32>
  // CHECK: %p.part0 = aten.slice.Tensor %p {dim = 0 : i64, start = 0 : i64, end = 2 : i64
  // CHECK-NEXT: %w.part0 = aten.slice.Tensor %w {dim = 1 : i64, start = 0 : i64, end = 2 : i64
  // CHECK-NEXT: %h.part0 = aten.addmm %p.part0, %x, %w.part0
  // CHECK-NEXT: %p.part1 = aten.slice.Tensor %p {dim = {{[01]}} : i64, start = 2 : i64, end = 5 : i64
  // CHECK-NEXT: %w.part1 = aten.slice.Tensor %w
  // CHECK-NEXT: %h.part1 = aten.addmm %p.part1, %x, %w.part1
  // CHECK-NEXT: %s.part0 = spmd.all_reduce [{"tp"}] %h.part0 out_sharding = <@mesh, [{"dp"}, {}]> method = "flat" : tensor<8x2xf32>
  // CHECK-NEXT: %s.part1 = spmd.all_reduce [{"tp"}] %h.part1 out_sharding = <@mesh, [{"dp"}, {}]> method = "flat" : tensor<8x3xf32>
  // CHECK-NEXT: %s = aten.cat %s.part0, %s.part1 {dim = 1 : i64
  %h = aten.addmm %p, %x, %w {spmd.signature = #spmd.sig<@mesh, ([{}], unreduced={"tp"}, [{"dp"}, {"tp"}], [{"tp"}, {}]) -> ([{"dp"}, {}], unreduced={"tp"})>}
    : (tensor<5xf32>, tensor<8x6xf32>, tensor<6x5xf32>) -> tensor<8x5xf32>
  %s = spmd.all_reduce [{"tp"}] %h out_sharding = <@mesh, [{"dp"}, {}]> method = "flat" : tensor<8x5xf32>
  %y = aten.relu %s {spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}]) -> ([{"dp"}, {}])>} : (tensor<8x5xf32>) -> tensor<8x5xf32>
  func.return %y : tensor<8x5xf32>
}

// -----

// Each device gets different rows of a reduce-scatter, unequal ones here: columns are cut.
spmd.mesh @mesh = <["tp"=2]>
// CHECK-LABEL: @scattered
func.func @scattered(%x: tensor<8x6xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
    %w: tensor<6x4xf32> {train.param = "w", spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>}) -> (tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}], offsets={0: [0, 3, 8]}>}) {
  // CHECK: spmd.reduce_scatter [{"tp"}, {}] %h.part0 out_sharding = <@mesh, [{"tp"}, {}], offsets={0: [0, 3, 8]}> method = "padded" : tensor<8x2xf32>
  // CHECK-NEXT: spmd.reduce_scatter [{"tp"}, {}] %h.part1
  // CHECK-NEXT: %s = aten.cat %s.part0, %s.part1 {dim = 1 : i64
  %h = aten.mm %x, %w {spmd.signature = #spmd.sig<@mesh, ([{}, {"tp"}], [{"tp"}, {}]) -> ([{}, {}], unreduced={"tp"})>}
    : (tensor<8x6xf32>, tensor<6x4xf32>) -> tensor<8x4xf32>
  %s = spmd.reduce_scatter [{"tp"}, {}] %h out_sharding = <@mesh, [{"tp"}, {}], offsets={0: [0, 3, 8]}> method = "padded" : tensor<8x4xf32>
  %y = aten.relu %s {spmd.signature = #spmd.sig<@mesh, ([{"tp"}, {}], offsets={0: [0, 3, 8]}) -> ([{"tp"}, {}], offsets={0: [0, 3, 8]})>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  func.return %y : tensor<8x4xf32>
}

// -----

// The batch dim of products is cut if no axis splits it.
spmd.mesh @mesh = <["tp"=2]>
// CHECK-LABEL: @batched
func.func @batched(%x: tensor<3x8x6xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{}, {}, {"tp"}]>},
    %w: tensor<3x6x4xf32> {train.param = "w", spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}, {}]>}) -> tensor<3x8x4xf32> {
  // CHECK: aten.bmm %x.part0, %w.part0 {{.*}} -> tensor<1x8x4xf32>
  // CHECK: aten.bmm %x.part1, %w.part1 {{.*}} -> tensor<2x8x4xf32>
  // CHECK: aten.cat %s.part0, %s.part1 {dim = 0 : i64
  %h = aten.bmm %x, %w {spmd.signature = #spmd.sig<@mesh, ([{}, {}, {"tp"}], [{}, {"tp"}, {}]) -> ([{}, {}, {}], unreduced={"tp"})>}
    : (tensor<3x8x6xf32>, tensor<3x6x4xf32>) -> tensor<3x8x4xf32>
  %s = spmd.all_reduce [{"tp"}] %h out_sharding = <@mesh, [{}, {}, {}]> method = "flat" : tensor<3x8x4xf32>
  %y = aten.relu %s {spmd.signature = #spmd.sig<@mesh, ([{}, {}, {}]) -> ([{}, {}, {}])>} : (tensor<3x8x4xf32>) -> tensor<3x8x4xf32>
  func.return %y : tensor<3x8x4xf32>
}
