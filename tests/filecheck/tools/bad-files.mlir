// RUN: printf '' | not opt-tool 2>&1 | filecheck %s --check-prefix=EMPTY
// RUN: grep -v '^}' %s | not opt-tool 2>&1 | filecheck %s --check-prefix=CUT
// RUN: sed 's/"fc",/"fc,/' %s | not opt-tool 2>&1 | filecheck %s --check-prefix=STRING
// RUN: sed 's/{"gpu"}/{"gpus"}/' %s | not opt-tool 2>&1 | filecheck %s --check-prefix=AXIS
// RUN: sed 's/"gpu"=2/"gpu"=8/' %s | not opt-tool 2>&1 | filecheck %s --check-prefix=PARTS
// RUN: sed 's/(\[{}\])>/([{"gpu"}])>/' %s | not opt-tool 2>&1 | filecheck %s --check-prefix=SIGNATURE
// RUN: opt-tool %s | filecheck %s

// A file with an error in one place is refused with a message at that place.
// CHECK: aten.relu

// EMPTY: error: the file is empty
// EMPTY-NEXT: hint: give a file with a module or at least one operation in it

// CUT: error: the text ends in the middle of an operation
// CUT: hint: the '{' of line {{[0-9]+}} is not closed; is the file cut off?

// STRING: error: this string is not closed on its line

// AXIS: error: 'func.func' op @f: spmd.sharding of argument 0: mesh @mesh has no axis "gpus"; its axes are "gpu"=2

// PARTS: error: 'func.func' op @f: spmd.sharding of argument 0: sharding [{"gpu"}] splits dim 0 of size 4 evenly into 8 parts;

// SIGNATURE: error: 'aten.relu' op %y: signature ([{}]) -> ([{"gpu"}]) is not one that the op's rule ([d0]) -> ([d0]) {d0=4} allows;
spmd.mesh @mesh = <["gpu"=2]>
func.func @f(%x: tensor<4xf32> {train.param = "fc", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> tensor<4xf32> {
  %y = aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>} : (tensor<4xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}
