// RUN: opt-tool %s --pass-pipeline=insert-resharding | filecheck %s

// A partial value that one user needs replicated and another split is summed once: two sums of the same numbers may
// be rounded differently, and no row would have an element that equals its largest.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
#sums = #spmd.sharding<@mesh, [{}, {}], unreduced={"gpu"}>
spmd.mesh @mesh = <["gpu"=4]>
spmd.cluster @four on @mesh devices [#cpu] placement [0, 0, 0, 0] links [#link]

// CHECK-LABEL: func.func @split_first
func.func @split_first(%h: tensor<8x16xf32> {spmd.sharding = #sums}) -> tensor<8x16xi1> {
  // CHECK-NEXT: %h.reduce_scatter = spmd.reshard %h to <@mesh, [{"gpu"}, {}]>
  // CHECK-NEXT: %m = aten.amax %h.reduce_scatter
  %m = aten.amax %h {dim = [1], keepdim = true, spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}])>}
    : (tensor<8x16xf32>) -> tensor<8x1xf32>
  // CHECK-NEXT: %h.all_gather = spmd.reshard %h.reduce_scatter to <@mesh, [{}, {}]>
  // CHECK-NEXT: %m.all_gather = spmd.reshard %m to <@mesh, [{}, {}]>
  // CHECK-NEXT: %e = aten.eq.Tensor %h.all_gather, %m.all_gather
  %e = aten.eq.Tensor %h, %m {spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}, {}]) -> ([{}, {}])>}
    : (tensor<8x16xf32>, tensor<8x1xf32>) -> tensor<8x16xi1>
  func.return %e : tensor<8x16xi1>
}

// CHECK-LABEL: func.func @whole_first
func.func @whole_first(%h: tensor<8x16xf32> {spmd.sharding = #sums}) -> tensor<8x16xf32> {
  // CHECK-NEXT: %h.all_reduce = spmd.reshard %h to <@mesh, [{}, {}]>
  // CHECK-NEXT: %a = aten.exp %h.all_reduce
  %a = aten.exp %h {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  // CHECK-NEXT: %h.slice = spmd.reshard %h.all_reduce to <@mesh, [{"gpu"}, {}]>
  // CHECK-NEXT: %b = aten.exp %h.slice
  %b = aten.exp %h {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}])>}
    : (tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %b : tensor<8x16xf32>
}
