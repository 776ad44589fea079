// RUN: opt-tool %s --pass-pipeline='overlap{bucket_mb=0}' | filecheck %s
// RUN: opt-tool %s --pass-pipeline='overlap{bucket_mb=0 prefetch=0}' | filecheck %s --check-prefix=LAZY
// RUN: opt-tool %s --pass-pipeline='overlap{bucket_mb=0 prefetch=2}' | filecheck %s --check-prefix=EAGER
// RUN: opt-tool %s --pass-pipeline='overlap{bucket_mb=1}' | filecheck %s --check-prefix=LARGE
// RUN: opt-tool %s --pass-pipeline='overlap{gathers=false}' | filecheck %s --check-prefix=OFF

// The parameters of a block are gathered together, one block ahead: at the first use of the previous block. Backward
// gathers again, except values that forward still needs at that point. Small blocks share a bucket, but blocks of
// forward and backward do not.

#mm = #spmd.sig<@mesh, ([{"gpu"}, {}], [{}, {}]) -> ([{"gpu"}, {}])>
#view = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>

spmd.mesh @mesh = <["gpu"=2]>

// CHECK-LABEL: func.func @step
// CHECK-NEXT:    spmd.start "all_gather" %h.0.a, %h.0.b
// CHECK-NEXT:    spmd.start "all_gather" %h.1.a out
// CHECK-NEXT:    %a0, %b0 = spmd.wait
// CHECK-NEXT:    %x0 = aten.mm
// CHECK-NEXT:    %x1 = aten.mm
// CHECK-NEXT:    %a1 = spmd.wait
// CHECK-NEXT:    %x2 = aten.mm
// CHECK-NEXT:    spmd.start "all_gather" %h.0.a out
// CHECK-NEXT:    %t = aten.t %a1 {
// CHECK-NEXT:    %x3 = aten.mm
// CHECK-NEXT:    %a0.again = spmd.wait
// CHECK-NEXT:    %x4 = aten.mm

// LAZY-LABEL: func.func @step
// LAZY-NEXT:    spmd.start "all_gather" %h.0.a, %h.0.b
// LAZY-NEXT:    %a0, %b0 = spmd.wait
// LAZY-NEXT:    %x0 = aten.mm
// LAZY-NEXT:    %x1 = aten.mm
// LAZY-NEXT:    spmd.start "all_gather" %h.1.a out
// LAZY-NEXT:    %a1 = spmd.wait
// LAZY-NEXT:    %x2 = aten.mm
// LAZY-NEXT:    spmd.start "all_gather" %h.1.a out

// EAGER-LABEL: func.func @step
// EAGER-NEXT:    spmd.start "all_gather" %h.0.a, %h.0.b
// EAGER-NEXT:    spmd.start "all_gather" %h.1.a out
// EAGER-NEXT:    %a0, %b0 = spmd.wait
// EAGER-NEXT:    %x0 = aten.mm
// EAGER-NEXT:    %x1 = aten.mm
// EAGER-NEXT:    spmd.start "all_gather" %h.0.a out

// LARGE-LABEL: func.func @step
// LARGE-NEXT:    spmd.start "all_gather" %h.0.a, %h.0.b, %h.1.a
// LARGE-NEXT:    %a0, %b0, %a1 = spmd.wait
// LARGE-NOT:     spmd.start

// OFF-LABEL: func.func @step
// OFF-NOT:     spmd.start
func.func @step(%x: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>},
    %h.0.a: tensor<4x4xf32> {train.param = "h.0.a", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>},
    %h.0.b: tensor<4x4xf32> {train.param = "h.0.b", spmd.sharding = #spmd.sharding<@mesh, [{}, {"gpu"}]>},
    %h.1.a: tensor<4x4xf32> {train.param = "h.1.a", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>}) -> tensor<4x4xf32> {
  %a0 = spmd.all_gather [{"gpu"}, {}] %h.0.a out_sharding = <@mesh, [{}, {}]> : tensor<4x4xf32>
  %x0 = aten.mm %x, %a0 {spmd.signature = #mm} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %b0 = spmd.all_gather [{}, {"gpu"}] %h.0.b out_sharding = <@mesh, [{}, {}]> : tensor<4x4xf32>
  %x1 = aten.mm %x0, %b0 {spmd.signature = #mm} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %a1 = spmd.all_gather [{"gpu"}, {}] %h.1.a out_sharding = <@mesh, [{}, {}]> : tensor<4x4xf32>
  %x2 = aten.mm %x1, %a1 {spmd.signature = #mm} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %a1.again = spmd.all_gather [{"gpu"}, {}] %h.1.a out_sharding = <@mesh, [{}, {}]> regather {train.backward} : tensor<4x4xf32>
  %t = aten.t %a1.again {train.backward, spmd.signature = #view} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %x3 = aten.mm %x2, %t {train.backward, spmd.signature = #mm} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %a0.again = spmd.all_gather [{"gpu"}, {}] %h.0.a out_sharding = <@mesh, [{}, {}]> regather {train.backward} : tensor<4x4xf32>
  %x4 = aten.mm %x3, %a0.again {train.backward, spmd.signature = #mm} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  func.return %x4 : tensor<4x4xf32>
}
