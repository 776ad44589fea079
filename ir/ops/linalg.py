"""Linear algebra on whole matrices, batch by batch, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Iterator

from ..rules import Rule, Value
from .common import named, rows, together, whole, wrapped
from .spec import OpInstance, OpSpec, Shape


def batched(op: OpInstance) -> Rule:
    """Matrices that no split may cut: what goes together is the batch that leads all operands and results."""
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
    """A Fourier transform over `dim`, which stays whole."""
    return together(op, wrapped(op.argument("dim"), len(op.operands[0])))


def linalg_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from rows("linalg_inv_ex", "A", batched, results=2)
    yield from rows("linalg_cholesky_ex", "self", batched, results=2)
    yield from rows("linalg_qr", "A", batched, results=2)
    yield from rows("_linalg_eigh", "A", batched, results=2)
    yield from rows("_linalg_svd linalg_lu_factor_ex", "A", batched, results=3)
    yield from rows("_linalg_det", "A", batched, results=3, ordered=True)
    yield from rows("_linalg_slogdet", "A", batched, results=4, ordered=True)
    yield from rows("_linalg_solve_ex", "A B", batched, results=4)
    yield from rows("linalg_solve_triangular", "self B", batched, linear="B")
    yield from rows("cholesky_solve", "self input2", batched, linear="self")
    yield from rows("linalg_lu_solve", "LU pivots B", batched, linear="B")
    yield from rows("linalg_matrix_exp", "self", batched)
    yield from rows("_fft_r2c _fft_c2c _fft_c2r", "self", transformed, linear="self")
