"""What the rules of several families share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..rules import Rule, Value
from .spec import OpInstance, OpSpec, RuleFunction, Shape


def named(shape: Shape, prefix: str = "d") -> tuple[Value, dict[str, int]]:
    """One factor per dim of `shape`, and their sizes."""
    value = tuple((f"{prefix}{i}",) for i in range(len(shape)))
    return value, {dim[0]: size for dim, size in zip(value, shape, strict=True)}


def wrapped(dims: int | Iterable[int] | None, rank: int) -> tuple[int, ...]:
    """Dim arguments as non-negative numbers; none or an empty list means all."""
    listed = (dims,) if isinstance(dims, int) else tuple(dims or range(rank))
    return tuple(dim % rank for dim in listed) if rank else ()


def pointwise(op: OpInstance) -> Rule:
    """Element by element with broadcasting; all results have the first one's shape."""
    value, sizes = named(op.results[0])

    def operand(shape: Shape) -> Value:
        aligned = value[len(value) - len(shape) :]
        return tuple(d if s == sizes[d[0]] else () for d, s in zip(aligned, shape, strict=True))

    return Rule(tuple(map(operand, op.operands)), (value,) * len(op.results), sizes)


def wanted_results(op: OpInstance) -> tuple[bool, ...]:
    """Which results the `output_mask` asks for; the others are empty placeholders of no dims."""
    return tuple(op.argument("output_mask", (True,) * len(op.results)))


def rows(
    names: str,
    operands: str,
    rule: str | RuleFunction = pointwise,
    *,
    linear: str = "",
    flops: str = "",
    localize: dict[str, str] | None = None,
    view: bool = False,
    results: int = 1,
) -> Iterator[OpSpec]:
    """One row per name; operands and linear sets are given as words."""
    for name in names.split():
        yield OpSpec(
            name, tuple(operands.split()), rule, tuple(linear.split()), flops, localize, view, results
        )
