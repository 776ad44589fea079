// RUN: not opt-tool %s --pass-pipeline='add-cluster{file=h100-8x9}' 2>&1 | filecheck %s --check-prefix=NAME
// RUN: not opt-tool %s --pass-pipeline='add-cluster{file="%S/Inputs/negative.toml"}' 2>&1 | filecheck %s --check-prefix=FIELD

// NAME: pass 'add-cluster' failed: {{.*}}h100-8x9
// FIELD: pass 'add-cluster' failed: {{.*}}negative.toml:11: [link.gpu] latency: is -1, expected a non-negative number
func.func @f() {
  func.return
}
