// RUN: opt-tool %s --verify-diagnostics --split-input-file

// The parser takes the name to be the argument of the function below.
"builtin.module"() ({
  // expected-error@+1 {{operand 0 is a value of the function @step; move the op into it}}
  %a = "aten.exp"(%h) : (tensor<8xf32>) -> tensor<8xf32>
  "func.func"() <{function_type = (tensor<8xf32>) -> tensor<8xf32>, sym_name = "step"}> ({
  ^bb0(%h: tensor<8xf32>):
    "func.return"(%h) : (tensor<8xf32>) -> ()
  }) : () -> ()
}) : () -> ()
