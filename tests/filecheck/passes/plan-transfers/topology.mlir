// RUN: opt-tool %s --pass-pipeline=plan-transfers | filecheck %s

// The hosts of the cluster replace the rows of the mesh: ranks 0 to 2 are on one host, rank 3 on another.
// So rank 3 sends the second of two slices that two ranks hold.

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["gpu"=6]>
spmd.cluster @c on @mesh devices [#cpu] placement [0, 0, 0, 0, 0, 0] links []
  topology <levels = [<"bus", latency = 1.0e-6, bandwidth = 1.0e10>, <"nic", latency = 1.0e-5, bandwidth = 1.0e9>],
    hosts = [2 x <3, inside = "bus", nic = "nic", nics = 1>]>
spmd.mesh @stage0 = <["row"=2, "gpu"=2]> on [0, 1, 2, 3]
spmd.mesh @stage1 = <["gpu"=2]> on [4, 5]
func.func @step(%x: tensor<4xf32> {pipe.stage = 0 : i64, spmd.sharding = #spmd.sharding<@stage0, [{"gpu"}]>})
    -> tensor<4xf32> attributes {pipe.stages = ["stage0", "stage1"]} {
  // CHECK: tasks = [#pipe.task<part 0, [0:2], 0 to [4, 5]>, #pipe.task<part 0, [2:4], 3 to [4, 5]>]
  %h = pipe.transfer "h" %x to @stage1 out_sharding = <@stage1, [{}]> : tensor<4xf32>
  func.return %h : tensor<4xf32>
}
