// RUN: opt-tool %s --split-input-file --verify-diagnostics

func.func @unknown(%x: i32) {
  // expected-error@+2 {{operation arith.adi is not registered}}
  // expected-note@+1 {{did you mean 'arith.andi'?}}
  %y = arith.adi %x, %x : i32
  func.return
}

// -----

// expected-error@below {{value %z is used but not defined}}
"test.op"(%z) : (i32) -> ()

// -----

func.func @other_type(%x: i32) -> i64 {
  func.return %x : i32 // expected-error {{expected arguments to have the same types}}
}

// -----

func.func @too_early(%x: i32) -> i32 {
  // expected-error@+1 {{'arith.addi' op %y from "fc1" (model.py:3:4): operand 1 is defined only further down}}
  %y = arith.addi %x, %z : i32 loc("fc1"("model.py":3:4))
  %z = arith.addi %x, %x : i32
  func.return %y : i32
}

// -----

func.func @valid() {
  func.return
}
