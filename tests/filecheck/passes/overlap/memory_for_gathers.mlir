// RUN: opt-tool %s --pass-pipeline='overlap{bucket_mb=0 memory=210}' --verify-numerics --mlir-print-debuginfo=false | filecheck %s
// RUN: opt-tool %s --pass-pipeline='overlap{bucket_mb=0}' --mlir-print-debuginfo=false | filecheck %s --check-prefix=AMPLE

// A gather starts early enough to end in time; if a rank would exceed its memory meanwhile, it starts after that.

#one = #spmd.sig<@mesh, ([{}]) -> ([{}])>
#both = #spmd.sig<@mesh, ([{}], [{}]) -> ([{}])>

spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @c on @mesh devices [#spmd.device<"a", flops = {float32 = 1.0e9}, bandwidth = 64.0, memory = 1.0e9, launch = 0.0>] placement [0, 0] links [#spmd.link<"gpu", alpha = 10.0, beta = 0.0>]

// CHECK-LABEL: func.func @step
// CHECK:         %a = aten.neg
// CHECK-NEXT:    %b = aten.add.Tensor
// CHECK-NEXT:    %c = aten.mul.Tensor
// CHECK-NEXT:    spmd.start
// CHECK-NEXT:    %d = aten.neg
// CHECK-NEXT:    %w.all = spmd.wait

// AMPLE-LABEL: func.func @step
// AMPLE:         spmd.start
// AMPLE-NEXT:    %a = aten.neg
func.func @step(%x: tensor<8xf32>, %w: tensor<16xf32> {train.param = "w", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> (tensor<8xf32>, tensor<16xf32>) {
  %a = aten.neg %x {spmd.signature = #one} : (tensor<8xf32>) -> tensor<8xf32>
  %b = aten.add.Tensor %a, %x {spmd.signature = #both} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %c = aten.mul.Tensor %a, %b {spmd.signature = #both} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %d = aten.neg %c {spmd.signature = #one} : (tensor<8xf32>) -> tensor<8xf32>
  %w.all = spmd.all_gather [{"gpu"}] %w out_sharding = <@mesh, [{}]> : tensor<16xf32>
  %e = aten.neg %w.all {spmd.signature = #one} : (tensor<16xf32>) -> tensor<16xf32>
  func.return %d, %e : tensor<8xf32>, tensor<16xf32>
}
