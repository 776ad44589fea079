// RUN: opt-tool %s --split-input-file --verify-diagnostics --pass-pipeline=strip-resharding
// RUN: opt-tool %s --split-input-file --verify-diagnostics --pass-pipeline=search-strategy

// Where parts of the batch were written out nothing is stripped, and nothing searched.

spmd.mesh @mesh = <["micro"=2 temporal, "gpu"=2]>
func.func @accumulated(%x: tensor<8xf32>) -> tensor<8xf32> {
  %a = spmd.partial [{"micro"}] %x out_sharding = <@mesh, [{}], unreduced={"micro"}> : tensor<8xf32>
  %b = spmd.partial [{"micro"}] %x out_sharding = <@mesh, [{}], unreduced={"micro"}> : tensor<8xf32>
  // expected-error@+1 {{'spmd.accumulate' op %t: is of one part of the batch: accumulate, duplex or schedule-pipeline has written out the parts, which nothing undoes; begin with the step before these passes}}
  %t = spmd.accumulate %a, %b out_sharding = <@mesh, [{}]> : tensor<8xf32>
  func.return %t : tensor<8xf32>
}

// -----

spmd.mesh @mesh = <["micro"=2 temporal, "gpu"=2]>
func.func @duplex(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{is of one part of the batch}}
  %t = aten.relu %a {spmd.at = {micro = 1 : i64}} : (tensor<8xf32>) -> tensor<8xf32>
  func.return %t : tensor<8xf32>
}
