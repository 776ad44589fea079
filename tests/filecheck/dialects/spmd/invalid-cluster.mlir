// RUN: opt-tool %s --split-input-file --verify-diagnostics

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{there is no mesh @other; the module's meshes: @mesh}}
spmd.cluster @c on @other devices [#cpu] placement [0, 0] links [#link]

// -----

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{cluster @c places 3 devices, its mesh <["gpu"=2]> has 2}}
spmd.cluster @c on @mesh devices [#cpu] placement [0, 0, 0] links [#link]

// -----

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{cluster @c places a device of kind 1, it describes 1 kinds}}
spmd.cluster @c on @mesh devices [#cpu] placement [0, 1] links [#link]

// -----

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["gpu"=2]>
// expected-error@+1 {{cluster @c has no link for mesh axis "gpu"}}
spmd.cluster @c on @mesh devices [#cpu] placement [0, 0] links []

// -----

#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
spmd.mesh @mesh = <["gpu"=4]>
// expected-error@+1 {{cluster @c has hosts with 2 devices, its mesh <["gpu"=4]> has 4}}
spmd.cluster @c on @mesh devices [#cpu] placement [0, 0, 0, 0] links []
  topology <levels = [<"nic", latency = 0.0, bandwidth = 1.0e9>], hosts = [2 x <1, nic = "nic">]>

// -----

// expected-error@+1 {{a host of 2 devices needs the level between them (inside)}}
#hosts = #spmd.topology<levels = [<"nic", latency = 0.0, bandwidth = 1.0e9>], hosts = [2 x <2, nic = "nic">]>

// -----

// expected-error@+1 {{level "nic" is not described; levels: wire}}
#hosts = #spmd.topology<levels = [<"wire", latency = 0.0, bandwidth = 1.0e9>], hosts = [2 x <1, nic = "nic">]>

// -----

// expected-error@+1 {{found 0.0, expected a number from 1e-15 to 1e+06}}
#link = #spmd.link<"gpu", alpha = 0.0, beta = 1.0e-9, points = {"all_reduce" = [(1024.0, 0.0)]}>

// -----

// expected-error@+1 {{found 0.0, expected a number from 1e-06 to 1e+06}}
#slow = #spmd.interference<compute = 0.0, communication = 1.0>

// -----

// expected-error@+1 {{delays must be listed by increasing seconds of computing, none negative}}
#late = #spmd.interference<compute = 1.0, communication = 1.0, delays = [(2.0, 1.0), (1.0, 1.0)]>
