"""Linear algebra on whole matrices, batch by batch, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Iterator

from ..rules import Rule, Value
from .common import named, rows, together, whole, wrapped
from .spec import OpInstance, OpSpec, RuleFunction, Shape


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


def solved(matrix: str, right: str) -> RuleFunction:
    """Return the rule of linear equations: columns of `right` (rows if not `left`) are independent."""

    def rule(op: OpInstance) -> Rule:
        shape, lead = op.operand(right), op.operand(matrix)[:-2]
        if len(shape) < 2 or op.results[0] != shape or lead not in ((), shape[:-2]):
            return batched(op)
        batch, sizes = named(shape[:-2], "b")
        sides, more = named(shape[-2:], "n")
        sizes |= more

        def value(index: int, name: str, shape: Shape) -> Value:
            if name == right:
                return (*batch, *sides)
            own, more = named(shape[len(lead) :], f"v{index}_")
            sizes.update(more)
            return (*batch[: len(lead)], *own)

        names = (*op.operand_names, right, *([""] * (len(op.results) - 1)))
        values = [value(*each) for each in zip(range(len(names)), names, (*op.operands, *op.results), strict=True)]
        solving = sides[0 if op.argument("left", True) else 1]
        fixed = frozenset(factor for factor in sizes if factor.startswith("v")) | {*solving}
        return Rule(tuple(values[: len(op.operands)]), tuple(values[len(op.operands) :]), sizes, replicated=fixed)

    return rule


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
    yield from rows("_linalg_solve_ex", "A B", solved("A", "B"), flops=_FACTORS, results=4)
    yield from rows("linalg_solve_triangular", "self B", solved("self", "B"), linear="B", flops="each*v0_0")
    yield from rows("cholesky_solve", "self input2", solved("input2", "self"), linear="self", flops="2*each*v0_0")
    yield from rows("linalg_lu_solve", "LU pivots B", solved("LU", "B"), linear="B", flops="2*each*v0_0")
    yield from rows("linalg_matrix_exp", "self", batched, flops="20*each*v0_0")
    yield from rows("_fft_r2c _fft_c2c _fft_c2r", "self", transformed, linear="self", flops="50*each")
