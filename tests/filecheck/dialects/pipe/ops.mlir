// RUN: opt-tool %s --mlir-print-debuginfo=false | filecheck %s

spmd.mesh @stage0 = <["gpu"=2, "micro"=2 temporal]> on [0, 1]
spmd.mesh @stage1 = <["gpu"=1, "micro"=2 temporal]> on [2]

// CHECK: spmd.mesh @stage0 = <["gpu"=2, "micro"=2 temporal]> on [0, 1]

#rows = #spmd.sharding<@stage0, [{"gpu", "micro"}, {}]>

func.func @step(%x: tensor<8x4xf32> {spmd.sharding = #rows, pipe.stage = 0 : i64}) -> tensor<4xf32> attributes {
  pipe.stages = ["stage0", "stage1"],
  pipe.schedule = [
    [#pipe.slot<run "forward0" 0>, #pipe.slot<start "h" 0>, #pipe.slot<run "forward0" 1>, #pipe.slot<start "h" 1>],
    [#pipe.slot<start "h" 0>, #pipe.slot<wait "h" 0>, #pipe.slot<run "forward1" 0>,
     #pipe.slot<start "h" 1>, #pipe.slot<wait "h" 1>, #pipe.slot<run "forward1" 1>]]
} {
  %h = pipe.fragment "forward0" stage 0 : i64 over "micro" -> tensor<8x4xf32> {
    %r = aten.relu %x {spmd.signature = #spmd.sig<@stage0, ([{"gpu", "micro"}, {}]) -> ([{"gpu", "micro"}, {}])>}
      : (tensor<8x4xf32>) -> tensor<8x4xf32>
    pipe.yield %r : tensor<8x4xf32>
  }
  %h.1 = pipe.transfer "h" %h to @stage1 out_sharding = <@stage1, [{"micro"}, {}]>
    tasks = [#pipe.task<part 0, [0:2, 0:4], 0 to [2]>, #pipe.task<part 0, [4:6, 0:4], 1 to [2]>] : tensor<8x4xf32>
  %s = pipe.fragment "forward1" stage 1 : i64 over "micro" -> tensor<4xf32> {
    %t = aten.sum.dim_IntList %h.1 {dim = [0 : i64],
      spmd.signature = #spmd.sig<@stage1, ([{"micro"}, {}]) -> ([{}], unreduced={"micro"})>
    } : (tensor<8x4xf32>) -> tensor<4xf32>
    pipe.yield %t : tensor<4xf32>
  }
  %a = aten.neg %s {spmd.at = {"micro" = 0 : i64},
    spmd.signature = #spmd.sig<@stage1, ([{}], unreduced={"micro"}) -> ([{}], unreduced={"micro"})>
  } : (tensor<4xf32>) -> tensor<4xf32>
  %b = aten.neg %s {spmd.at = {"micro" = 1 : i64},
    spmd.signature = #spmd.sig<@stage1, ([{}], unreduced={"micro"}) -> ([{}], unreduced={"micro"})>
  } : (tensor<4xf32>) -> tensor<4xf32>
  %c = spmd.accumulate %a, %b out_sharding = <@stage1, [{}]> : tensor<4xf32>
  func.return %c : tensor<4xf32>
}

// CHECK: pipe.schedule = {{\[\[}}#pipe.slot<run "forward0" 0>, #pipe.slot<start "h" 0>, #pipe.slot<run "forward0" 1>, #pipe.slot<start "h" 1>], [#pipe.slot<start "h" 0>, #pipe.slot<wait "h" 0>
// CHECK: %h = pipe.fragment "forward0" stage 0 : i64 over "micro" -> tensor<8x4xf32> {
// CHECK: pipe.yield %r : tensor<8x4xf32>
// CHECK: %h.1 = pipe.transfer "h" %h to @stage1 out_sharding = <@stage1, [{"micro"}, {}]> tasks = [#pipe.task<part 0, [0:2, 0:4], 0 to [2]>, #pipe.task<part 0, [4:6, 0:4], 1 to [2]>] : tensor<8x4xf32>
// CHECK: %s = pipe.fragment "forward1" stage 1 : i64 over "micro" -> tensor<4xf32> {
// CHECK: aten.neg %s {spmd.at = {micro = 0 : i64}
// CHECK: %c = spmd.accumulate %a, %b out_sharding = <@stage1, [{}]> : tensor<4xf32>
