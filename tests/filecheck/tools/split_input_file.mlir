// RUN: opt-tool %s --split-input-file --pass-pipeline=dce | filecheck %s

// CHECK-LABEL: func.func @first
// CHECK-NOT:     arith.constant
// CHECK:       // -----
// CHECK-LABEL: func.func @second
// CHECK-NOT:   // -----
func.func @first() {
  %dead = arith.constant 1 : i32
  func.return
}

// -----

func.func @second() {
  func.return
}
