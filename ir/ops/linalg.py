"""Linear algebra on whole matrices, batch by batch, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Iterator

from ..rules import Rule, Value
from .common import named, rows, together, whole, wrapped
from .spec import OpInstance, OpSpec, Shape


def batched(op: OpInstance) -> Rule:
    """The rule of whole matrices: operands and results share only the batch dims that lead all of them."""
    lead = op.operands[0][:-2]
    shapes = (*op.operands, *op.results)
    if any(shape[: len(lead)] != lead for shape in shapes):
        return whole(op)
    batch, sizes = named(lead, "b")

    def value(index: int, shape: Shape) -> Value:
        own, more = named(shape[len(lead) :], f"v{index}_")
        sizes.update(more)
        return (*batch, *own)

    values = tuple(value(i, shape) for i, shape in enumerate(shapes))
    fixed = frozenset(factor for factor in sizes if factor.startswith("v"))
    return Rule(values[: len(op.operands)], values[len(op.operands) :], sizes, replicated=fixed)


def transformed(op: OpInstance) -> Rule:
    """The rule of a Fourier transform over `dim`, which is not split."""
    return together(op, wrapped(op.argument("dim"), len(op.operands[0])))


_FACTORS = "2*each*v0_0/3"
"""Operations of Gaussian elimination (Golub and Van Loan, Matrix Computations, 3.2)."""


def linalg_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    # v0_0 is the number of rows of a matrix, so each*v0_0 is the cube of its size.
    yield from rows("linalg_inv_ex", "A", batched, flops="2*each*v0_0", results=2)
    yield from rows("linalg_cholesky_ex", "self", batched, flops="each*v0_0/3", results=2)
    yield from rows("linalg_qr", "A", batched, flops="2*each*v0_0", results=2)
    yield from rows("_linalg_eigh", "A", batched, flops="9*each*v0_0", results=2)
    yield from rows("_linalg_svd", "A", batched, flops="20*each*v0_0", results=3)
    yield from rows("linalg_lu_factor_ex", "A", batched, flops=_FACTORS, results=3)
    yield from rows("_linalg_solve_ex", "A B", batched, flops=_FACTORS, results=4)
    yield from rows("linalg_solve_triangular", "self B", batched, linear="B", flops="each*v0_0")
    yield from rows("cholesky_solve", "self input2", batched, linear="self", flops="2*each*v0_0")
    yield from rows("linalg_lu_solve", "LU pivots B", batched, linear="B", flops="2*each*v0_0")
    yield from rows("linalg_matrix_exp", "self", batched, flops="20*each*v0_0")
    yield from rows("_fft_r2c _fft_c2c _fft_c2r", "self", transformed, linear="self", flops="50*each")
