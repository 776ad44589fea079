// RUN: shardwright theory mm | filecheck %s --check-prefix=PRODUCT
// RUN: shardwright theory collectives | filecheck %s --check-prefix=COLLECTIVES
// RUN: not shardwright theory matmul 2>&1 | filecheck %s --check-prefix=UNKNOWN

// The theory of HAP's search: figure 9 and section 4.4, derived from the op table and from the steps between shardings.

// PRODUCT: {e1 | Identity, e2 | Identity} MatMul(e1, e2) {e3 | Identity}
// PRODUCT-NEXT: {e1 | All-Gather(0), e2 | Identity} MatMul(e1, e2) {e3 | All-Gather(0)}
// PRODUCT-NEXT: {e1 | All-Gather(1), e2 | All-Gather(0)} MatMul(e1, e2) {e3 | All-Reduce}
// PRODUCT-NEXT: {e1 | Identity, e2 | All-Gather(1)} MatMul(e1, e2) {e3 | All-Gather(1)}
// PRODUCT-NEXT: 2 more are not in the paper: --all prints them

// COLLECTIVES: {e | All-Reduce} All-Reduce(e) {e | Identity}
// COLLECTIVES-NEXT: {e | All-Reduce} Reduce-Scatter(e, 0) {e | All-Gather(0)}
// COLLECTIVES-NEXT: {e | All-Reduce} Reduce-Scatter(e, 1) {e | All-Gather(1)}
// COLLECTIVES-NEXT: {e | All-Gather(0)} All-Gather(e, 0) {e | Identity}
// COLLECTIVES-NEXT: {e | All-Gather(0)} Grouped-Broadcast(e, 0) {e | Identity}
// COLLECTIVES-NEXT: {e | All-Gather(0)} All-To-All(e, 0, 1) {e | All-Gather(1)}

// UNKNOWN: error: the op table has no 'matmul'; expected the name of an ATen overload, such as mm or sum.dim_IntList
// UNKNOWN-NEXT: hint: the nearest names are

func.func @product(%e1: tensor<64x32xf32>, %e2: tensor<32x16xf32>) -> tensor<64x16xf32> {
  %e3 = aten.mm %e1, %e2 : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  func.return %e3 : tensor<64x16xf32>
}
