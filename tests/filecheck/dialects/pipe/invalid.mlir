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

spmd.mesh @a = <["gpu"=2]>
spmd.mesh @b = <["gpu"=2]> on [2, 3]
func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@a, [{"gpu"}]>}) -> tensor<4xf32> {
  // expected-error@+1 {{has Task(part=0, slice=((0, 2),), sender=0, receivers=(2, 3)) twice}}
  %y = pipe.transfer "h" %x to @b out_sharding = <@b, [{}]> tasks = [#pipe.task<part 0, [0:2], 0 to [2, 3]>, #pipe.task<part 0, [0:2], 0 to [2, 3]>]
    order = <[0]: [0, 1], [2, 3]: [0, 1]> : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// -----

spmd.mesh @a = <["gpu"=2]>
spmd.mesh @b = <["gpu"=2]> on [2, 3]
func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@a, [{"gpu"}]>}) -> tensor<4xf32> {
  // expected-error@+1 {{in its order ranks [2, 3] lack task 1}}
  %y = pipe.transfer "h" %x to @b out_sharding = <@b, [{}]> tasks = [#pipe.task<part 0, [0:2], 0 to [2, 3]>, #pipe.task<part 0, [2:4], 1 to [2, 3]>]
    order = <[0, 1]: [0, 1], [2, 3]: [0]> : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// -----

spmd.mesh @a = <["gpu"=2]>
spmd.mesh @b = <["gpu"=2]> on [2, 3]
func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@a, [{"gpu"}]>}) -> tensor<4xf32> {
  // expected-error@+1 {{in its order ranks [2, 3] have task 0 twice}}
  %y = pipe.transfer "h" %x to @b out_sharding = <@b, [{}]> tasks = [#pipe.task<part 0, [0:2], 0 to [2, 3]>, #pipe.task<part 0, [2:4], 1 to [2, 3]>]
    order = <[0, 1]: [0, 1], [2, 3]: [0, 1, 0]> : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// -----

spmd.mesh @a = <["gpu"=2]>
spmd.mesh @b = <["gpu"=2]> on [2, 3]
func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@a, [{"gpu"}]>}) -> tensor<4xf32> {
  // expected-error@+1 {{in its order ranks [0] have task 1, but none of them takes part in it}}
  %y = pipe.transfer "h" %x to @b out_sharding = <@b, [{}]> tasks = [#pipe.task<part 0, [0:2], 0 to [2, 3]>, #pipe.task<part 0, [2:4], 1 to [2, 3]>]
    order = <[0]: [0, 1], [1]: [1], [2, 3]: [0, 1]> : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// -----

spmd.mesh @a = <["gpu"=2]>
spmd.mesh @b = <["gpu"=2]> on [2, 3]
func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@a, [{"gpu"}]>}) -> tensor<4xf32> {
  // expected-error@+1 {{in its order ranks [0] have task 0, but none of them takes part in it}}
  %y = pipe.transfer "h" %x to @b out_sharding = <@b, [{}]>
    order = <[0]: [0]> : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// -----

spmd.mesh @a = <["gpu"=2]>
spmd.mesh @b = <["gpu"=2]> on [2, 3]
func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@a, [{"gpu"}]>}) -> tensor<4xf32> {
  // expected-error@+1 {{in its order rank 3 takes part in task 0 and is in no list}}
  %y = pipe.transfer "h" %x to @b out_sharding = <@b, [{}]> tasks = [#pipe.task<part 0, [0:2], 0 to [2, 3]>, #pipe.task<part 0, [2:4], 1 to [2, 3]>]
    order = <[0, 1]: [0, 1], [2]: [0, 1]> : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// -----

spmd.mesh @a = <["gpu"=2]>
spmd.mesh @b = <["gpu"=2]> on [2, 3]
func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@a, [{"gpu"}]>}) -> tensor<4xf32> {
  // expected-error@+1 {{in its order ranks [3] do task 1 before task 0 and ranks [2] do task 0 before task 1: each would wait for the other}}
  %y = pipe.transfer "h" %x to @b out_sharding = <@b, [{}]> tasks = [#pipe.task<part 0, [0:2], 0 to [2, 3]>, #pipe.task<part 0, [2:4], 1 to [2, 3]>]
    order = <[0]: [0], [1]: [1], [2]: [0, 1], [3]: [1, 0]> : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{'pipe.fragment' "loop" has results of other types than its 'pipe.yield'}}
  %y = pipe.fragment "loop" over "micro" -> tensor<8xf32> {
    pipe.yield %x : tensor<4xf32>
  }
  func.return %y : tensor<8xf32>
}

// -----

spmd.mesh @mesh = <["gpu"=2]>
#sum = #spmd.sharding<@mesh, [{}], unreduced={"gpu"}>
func.func @f(%x: tensor<4xf32> {spmd.sharding = #sum}, %y: tensor<4xf32> {spmd.sharding = #sum}) -> tensor<4xf32> {
  // expected-error@+1 {{its operands must be partial over temporal axes}}
  %z = spmd.accumulate %x, %y out_sharding = <@mesh, [{}]> : tensor<4xf32>
  func.return %z : tensor<4xf32>
}
