"""Products of matrices."""

from __future__ import annotations

from collections.abc import Iterator

from ..rules import Rule, Value
from ..sharding import Reduction
from .common import rows
from .spec import OpInstance, OpSpec


def addmm(op: OpInstance) -> Rule:
    """
    bias + mat1 @ mat2; the bias broadcasts, and must be partial where k is split, so that it is added once.
    """
    (rows, inner), (_, columns) = op.operands[1], op.operands[2]
    result: Value = (("i",), ("j",))
    sizes = {"i": rows, "k": inner, "j": columns}
    bias = result[2 - len(op.operands[0]) :]
    bias = tuple(d if n == sizes[d[0]] else () for d, n in zip(bias, op.operands[0], strict=True))
    operands: tuple[Value, ...] = (bias, (("i",), ("k",)), (("k",), ("j",)))
    return Rule(operands, (result,), sizes, {"k": Reduction.SUM}, additive=frozenset({0}))


def baddbmm(op: OpInstance) -> Rule:
    """self + batch1 @ batch2, batched."""
    (batch, rows, inner), (_, _, columns) = op.operands[1], op.operands[2]
    result: Value = (("b",), ("i",), ("j",))
    sizes = {"b": batch, "i": rows, "k": inner, "j": columns}
    bias = result[3 - len(op.operands[0]) :]
    bias = tuple(d if n == sizes[d[0]] else () for d, n in zip(bias, op.operands[0], strict=True))
    operands: tuple[Value, ...] = (bias, (("b",), ("i",), ("k",)), (("b",), ("k",), ("j",)))
    return Rule(operands, (result,), sizes, {"k": Reduction.SUM}, additive=frozenset({0}))


_PLACES = {"start": "operand0.start[0]", "first": "operand1.start[0]"}


def contractions_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from rows(
        "mm", "self mat2", "([i, k], [k, j]) -> ([i, j]) reduction={k}", linear="self mat2", flops="2*i*j*k"
    )
    yield from rows("addmm", "self mat1 mat2", addmm, linear="self+mat1 self+mat2", flops="2*i*j*k")
    yield from rows(
        "bmm",
        "self mat2",
        "([b, i, k], [b, k, j]) -> ([b, i, j]) reduction={k}",
        linear="self mat2",
        flops="2*b*i*j*k",
    )
    yield from rows(
        "baddbmm", "self batch1 batch2", baddbmm, linear="self+batch1 self+batch2", flops="2*b*i*j*k"
    )
    yield from rows(
        "mv", "self vec", "([i, k], [k]) -> ([i]) reduction={k}", linear="self vec", flops="2*i*k"
    )
    # Of the rows that are sorted by group a device may hold some (s), of the groups' matrices too (e).
    yield from rows(
        "grouped_mm",
        "rows matrices ends",
        "([s, k], [e, k, n], [g]) -> ([s, n]) reduction={k, e} replicated={g}",
        linear="rows matrices",
        flops="2*s*k*n*e/g",
        localize=_PLACES,
    )
    yield from rows(
        "grouped_mm_backward",
        "rows matrices ends grad",
        "([s, k], [e, k, n], [g], [s, n]) -> ([s, k], [e, k, n]) reduction={s, n, e} replicated={g}",
        linear="grad",
        flops="4*s*k*n*e/g",
        localize=_PLACES,
        results=2,
    )
    yield from rows(
        "dot", "self tensor", "([k], [k]) -> ([]) reduction={k}", linear="self tensor", flops="2*k"
    )
