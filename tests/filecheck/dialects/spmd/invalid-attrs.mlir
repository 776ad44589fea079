// RUN: opt-tool %s --split-input-file --verify-diagnostics

// expected-error@+1 {{mesh axis "gpu" has size 0, expected at least 1}}
spmd.mesh @mesh = <["gpu"=0]>

// -----

// expected-error@+1 {{mesh @mesh names axis "gpu" twice}}
spmd.mesh @mesh = <["gpu"=2, "gpu"=4]>

// -----

// expected-error@+1 {{found 2 shardings, expected one}}
"test.op"() {a = #spmd.sharding<@mesh, [{}], [{}]>} : () -> ()

// -----

// expected-error@+1 {{rule '[i, k] -> [i]' is not of the form ([i, k], [k, j]) -> ([i, j]) reduction={k}}}
"test.op"() {a = #spmd.rule<"[i, k] -> [i]">} : () -> ()

// -----

// expected-error@+1 {{refers to factor j, which no operand or result has}}
"test.op"() {a = #spmd.rule<"([i, k]) -> ([i]) reduction={j}">} : () -> ()

// -----

// expected-error@+1 {{the positions of factor v are in operand 2, there are 2 operands}}
"test.op"() {a = #spmd.rule<"([v], [b]) -> ([b]) indexed={v: 2}">} : () -> ()

// -----

// expected-error@+1 {{a device needs the FLOP/s of at least one dtype}}
"test.op"() {a = #spmd.device<"cpu", flops = {}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>} : () -> ()

// -----

// expected-error@+1 {{found -1.0, expected 0 or a number from 1e-15 to 1e+06}}
"test.op"() {a = #spmd.link<"gpu", alpha = -1.0, beta = 1.0e-9>} : () -> ()
