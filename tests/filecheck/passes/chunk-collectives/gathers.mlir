// RUN: opt-tool %s --pass-pipeline='chunk-collectives{parts=2}' --split-input-file --verify-numerics --mlir-print-debuginfo=false | filecheck %s

// A view merges the gathered batch with positions into rows, which are processed in parts. Other users of the full
// operand get the concatenation of the parts, after the products.
spmd.mesh @mesh = <["dp"=2, "tp"=2]>
// CHECK-LABEL: @positions
func.func @positions(%x: tensor<8x5x6xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{"dp", "tp"}, {}, {}]>},
    %w: tensor<6x4xf32> {train.param = "w", spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>}) -> (tensor<40x4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {"tp"}]>}, tensor<6x40xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"dp"}]>}) {
  // CHECK: %x.n.part0 = aten.slice.Tensor %x.n {dim = 1 : i64, start = 0 : i64, end = 2 : i64
  // CHECK-NEXT: %g.part0 = spmd.all_gather [{"tp"}, {}, {}] %x.n.part0 out_sharding = <@mesh, [{"dp"}, {}, {}]> method = "flat" : tensor<8x2x6xf32>
  // CHECK-NEXT: %x.n.part1 = aten.slice.Tensor %x.n
  // CHECK-NEXT: %g.part1 = spmd.all_gather [{"tp"}, {}, {}] %x.n.part1
  // CHECK: %h.part0 = aten.mm %g.part0.rows, %w {{.*}} -> tensor<16x4xf32>
  // CHECK-NEXT: %h.part0.apart = aten.view %h.part0 {{.*}} -> tensor<8x2x4xf32>
  // CHECK: %h.part1 = aten.mm %g.part1.rows, %w {{.*}} -> tensor<24x4xf32>
  // CHECK: %h.apart = aten.cat %h.part0.apart, %h.part1.apart {dim = 1 : i64
  // CHECK-NEXT: %h = aten.view %h.apart
  // CHECK-NEXT: %g = aten.cat %g.part0, %g.part1 {dim = 1 : i64
  // CHECK-NEXT: %r = aten.view %g
  // CHECK-NEXT: aten.t %r
  %x.n = aten.neg %x {spmd.signature = #spmd.sig<@mesh, ([{"dp", "tp"}, {}, {}]) -> ([{"dp", "tp"}, {}, {}])>} : (tensor<8x5x6xf32>) -> tensor<8x5x6xf32>
  %g = spmd.all_gather [{"tp"}, {}, {}] %x.n out_sharding = <@mesh, [{"dp"}, {}, {}]> method = "flat" : tensor<8x5x6xf32>
  %r = aten.view %g {size = [40 : i64, 6 : i64], spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}, {}]) -> ([{"dp"}, {}])>} : (tensor<8x5x6xf32>) -> tensor<40x6xf32>
  %h = aten.mm %r, %w {spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}], [{}, {"tp"}]) -> ([{"dp"}, {"tp"}])>} : (tensor<40x6xf32>, tensor<6x4xf32>) -> tensor<40x4xf32>
  %t = aten.t %r {spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {}]) -> ([{}, {"dp"}])>} : (tensor<40x6xf32>) -> tensor<6x40xf32>
  %y = aten.relu %h {spmd.signature = #spmd.sig<@mesh, ([{"dp"}, {"tp"}]) -> ([{"dp"}, {"tp"}])>} : (tensor<40x4xf32>) -> tensor<40x4xf32>
  %z = aten.relu %t {spmd.signature = #spmd.sig<@mesh, ([{}, {"dp"}]) -> ([{}, {"dp"}])>} : (tensor<6x40xf32>) -> tensor<6x40xf32>
  func.return %y, %z : tensor<40x4xf32>, tensor<6x40xf32>
}

// -----

// If there are only rows, they are cut within the part of each device.
spmd.mesh @mesh = <["tp"=2]>
// CHECK-LABEL: @rows
func.func @rows(%x: tensor<12x6xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
    %w: tensor<6x4xf32> {train.param = "w", spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
    %v: tensor<6x4xf32> {train.param = "v", spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>}) -> (tensor<12x4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>}) {
  // CHECK: %x.n.blocks = aten.view %x.n {{.*}}([{"tp"}, {}]) -> ([{"tp"}, {}, {}]){{.*}} -> tensor<2x6x6xf32>
  // CHECK-NEXT: %x.n.part0 = aten.slice.Tensor %x.n.blocks
  // CHECK: spmd.all_gather [{"tp"}, {}, {}]
  // CHECK: %h.part0 = aten.mm %g.part0.rows, %w
  // CHECK: %h = aten.view %h.apart {{.*}} -> tensor<12x4xf32>
  // CHECK: %k.part1 = aten.mm %g.part1.rows, %v
  %x.n = aten.neg %x {spmd.signature = #spmd.sig<@mesh, ([{"tp"}, {}]) -> ([{"tp"}, {}])>} : (tensor<12x6xf32>) -> tensor<12x6xf32>
  %g = spmd.all_gather [{"tp"}, {}] %x.n out_sharding = <@mesh, [{}, {}]> method = "flat" : tensor<12x6xf32>
  %h = aten.mm %g, %w {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}, {"tp"}]) -> ([{}, {"tp"}])>} : (tensor<12x6xf32>, tensor<6x4xf32>) -> tensor<12x4xf32>
  %k = aten.mm %g, %v {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}, {"tp"}]) -> ([{}, {"tp"}])>} : (tensor<12x6xf32>, tensor<6x4xf32>) -> tensor<12x4xf32>
  %y = aten.add.Tensor %h, %k {spmd.signature = #spmd.sig<@mesh, ([{}, {"tp"}], [{}, {"tp"}]) -> ([{}, {"tp"}])>} : (tensor<12x4xf32>, tensor<12x4xf32>) -> tensor<12x4xf32>
  func.return %y : tensor<12x4xf32>
}

// -----

// The summed dim is gathered from unequal parts, for one part of the rows at a time.
spmd.mesh @mesh = <["tp"=2]>
// CHECK-LABEL: @summed
func.func @summed(%x: tensor<7x6xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}], offsets={1: [0, 1, 6]}>},
    %w: tensor<6x4xf32> {train.param = "w"}) -> tensor<7x4xf32> {
  // CHECK: spmd.all_gather [{}, {"tp"}] %x.n.part0 out_sharding = <@mesh, [{}, {}]> method = "padded" : tensor<3x6xf32>
  // CHECK: aten.mm %g.part0, %w {{.*}} -> tensor<3x4xf32>
  // CHECK: aten.mm %g.part1, %w {{.*}} -> tensor<4x4xf32>
  // CHECK: aten.cat %h.part0, %h.part1 {dim = 0 : i64
  %x.n = aten.neg %x {spmd.signature = #spmd.sig<@mesh, ([{}, {"tp"}], offsets={1: [0, 1, 6]}) -> ([{}, {"tp"}], offsets={1: [0, 1, 6]})>} : (tensor<7x6xf32>) -> tensor<7x6xf32>
  %g = spmd.all_gather [{}, {"tp"}] %x.n out_sharding = <@mesh, [{}, {}]> method = "padded" : tensor<7x6xf32>
  %h = aten.mm %g, %w {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}, {}]) -> ([{}, {}])>} : (tensor<7x6xf32>, tensor<6x4xf32>) -> tensor<7x4xf32>
  %y = aten.relu %h {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>} : (tensor<7x4xf32>) -> tensor<7x4xf32>
  func.return %y : tensor<7x4xf32>
}
