// RUN: opt-tool %s --pass-pipeline=select-collectives | filecheck %s

// The collective keeps the attributes of the resharding: `regather`, its phase, its location, its name.

spmd.mesh @mesh = <["gpu"=2]>
func.func @step(%r: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> tensor<8xf32> {
  // CHECK: %r.again = spmd.all_gather [{"gpu"}] %r out_sharding = <@mesh, [{}]> method = "flat" regather {train.backward} : tensor<8xf32> loc("fc1"("model.py":3:4))
  %r.again = spmd.reshard %r to <@mesh, [{}]> regather {train.backward} : tensor<8xf32> loc("fc1"("model.py":3:4))
  func.return %r.again : tensor<8xf32>
}
