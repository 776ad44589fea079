// RUN: opt-tool %s --split-input-file --verify-diagnostics

// expected-error@+1 {{mesh <["gpu"=2]> of 2 devices is placed on ranks [0, 0]}}
spmd.mesh @stage0 = <["gpu"=2]> on [0, 0]

// -----

spmd.mesh @mesh = <["gpu"=2]>
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{there is no mesh @stage1; the module's meshes: @mesh}}
  %y = pipe.transfer "h" %x to @stage1 : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// -----

spmd.mesh @a = <["gpu"=2]>
spmd.mesh @b = <["gpu"=2]> on [2, 3]
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{is to @b, its sharding on @a}}
  %y = pipe.transfer "h" %x to @b out_sharding = <@a, [{}]> : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// -----

spmd.mesh @a = <["gpu"=2]>
spmd.mesh @b = <["gpu"=2]> on [2, 3]
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{asks for a value that is partial over "gpu"; reduce it before it is sent}}
  %y = pipe.transfer "h" %x to @b out_sharding = <@b, [{}], unreduced={"gpu"}> : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// -----

spmd.mesh @a = <["gpu"=2]>
spmd.mesh @b = <["gpu"=2]> on [2, 3]
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{of shape [4] has the impossible Task(part=0, slice=((0, 5),), sender=0, receivers=(2,))}}
  %y = pipe.transfer "h" %x to @b out_sharding = <@b, [{}]> tasks = [#pipe.task<part 0, [0:5], 0 to [2]>]
    : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{'pipe.fragment' "loop" has other results than its 'pipe.yield' hands on}}
  %y = pipe.fragment "loop" over "micro" -> tensor<8xf32> {
    pipe.yield %x : tensor<4xf32>
  }
  func.return %y : tensor<8xf32>
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
#sum = #spmd.sharding<@mesh, [{}], unreduced={"gpu"}>
func.func @f(%x: tensor<4xf32> {spmd.sharding = #sum}, %y: tensor<4xf32> {spmd.sharding = #sum}) -> tensor<4xf32> {
  // expected-error@+1 {{it reduces over temporal axes}}
  %z = spmd.accumulate %x, %y out_sharding = <@mesh, [{}]> : tensor<4xf32>
  func.return %z : tensor<4xf32>
}
