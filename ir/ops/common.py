"""Helpers that the rules of several families share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps

from ..rules import Rule, Value, replicated_rule
from .spec import OpInstance, OpSpec, RuleFunction, Shape


def named(shape: Shape, prefix: str = "d") -> tuple[Value, dict[str, int]]:
    """Return one factor per dim of `shape`, and the sizes of the factors."""
    value = tuple((f"{prefix}{i}",) for i in range(len(shape)))
    return value, {dim[0]: size for dim, size in zip(value, shape, strict=True)}


def wrapped(dims: int | Iterable[int] | None, rank: int) -> tuple[int, ...]:
    """Return dim arguments as non-negative numbers; all dims for None or an empty list."""
    listed = (dims,) if isinstance(dims, int) else tuple(dims or range(rank))
    return tuple(dim % rank for dim in listed) if rank else ()


def broadcast(shape: Shape, value: Value, sizes: Mapping[str, int]) -> Value:
    """Return the dims of a tensor of `shape` that broadcasts to `value`; a dim that is broadcast has no factor."""
    aligned = value[len(value) - len(shape) :]
    return tuple(dim if size == sizes[dim[0]] else () for dim, size in zip(aligned, shape, strict=True))


def broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    """Return the shape that results from broadcasting all shapes."""
    rank = max(map(len, shapes))
    padded = [(*(1 for _ in range(rank - len(shape))), *shape) for shape in shapes]
    return tuple(next((size for size in column if size != 1), 1) for column in zip(*padded, strict=True))


def pointwise(op: OpInstance) -> Rule:
    """Return the elementwise rule with broadcasting; all results have the first result's shape."""
    value, sizes = named(op.results[0])
    operands = tuple(broadcast(shape, value, sizes) for shape in op.operands)
    return Rule(operands, (value,) * len(op.results), sizes)


def along(argument: str, default: int | None = None) -> RuleFunction:
    """
    Return the elementwise rule, except that the dims that `argument` names must not be split (softmax, cumsum, flip).

    `default` stands for a missing argument; None means all dims.
    """

    def rule(op: OpInstance) -> Rule:
        base = pointwise(op)
        fixed = wrapped(op.argument(argument, default), len(op.results[0]))
        return Rule(base.operands, base.results, base.sizes, replicated=frozenset(f"d{d}" for d in fixed))

    return rule


def together(op: OpInstance, apart: Collection[int]) -> Rule:
    """Return the rule of values of equally many dims, which share factors except for the dims `apart`, never split."""
    sizes: dict[str, int] = {}

    def value(index: int, shape: Shape) -> Value:
        names = tuple(f"w{index}_{i}" if i in apart else f"d{i}" for i in range(len(shape)))
        sizes.update(zip(names, shape, strict=True))
        return tuple((name,) for name in names)

    values = tuple(value(i, shape) for i, shape in enumerate((*op.operands, *op.results)))
    whole = frozenset(name for name in sizes if name.startswith("w"))
    return Rule(values[: len(op.operands)], values[len(op.operands) :], sizes, replicated=whole)


def windows(count: int) -> RuleFunction:
    """Return the rule of windows over the last `count` dims, which are not split; batch and channels share factors."""

    def rule(op: OpInstance) -> Rule:
        rank = len(op.operands[0])
        return together(op, range(rank - count, rank))

    return rule


def whole(op: OpInstance) -> Rule:
    """Return the rule under which nothing may be split."""
    return replicated_rule(op.operands, op.results)


def linear_where_zero(rule: RuleFunction, argument: str, default: float | None = None) -> RuleFunction:
    """Return `rule`, linear in the first operand if the number that `argument` gives is zero."""

    def linear(op: OpInstance) -> Rule:
        zero = op.argument(argument, default) == 0
        return replace(rule(op), linear=(frozenset({0}),) if zero else ())

    return linear


def unsplit(rule: RuleFunction) -> RuleFunction:
    """Return `rule` for ops that the runtime cannot run on a part of an indexed factor."""

    @wraps(rule)
    def whole_rule(op: OpInstance) -> Rule:
        original = rule(op)
        return replace(original, replicated=original.replicated | {*original.indexed}, indexed={})

    return whole_rule


def wanted_results(op: OpInstance) -> tuple[bool, ...]:
    """Return for each result whether `output_mask` asks for it; others are empty placeholders of no dims."""
    return tuple(op.argument("output_mask", (True,) * len(op.results)))


def wanted_part(op: OpInstance) -> float:
    """Return the fraction of a product's backward that is asked for: the gradient of input, weight or both."""
    return sum(wanted_results(op)[:2]) / 2


def rows(
    names: str,
    operands: str,
    rule: str | RuleFunction = pointwise,
    *,
    linear: str = "",
    flops: str = "",
    scale: Callable[[OpInstance], float] | None = None,
    reads: dict[str, str] | None = None,
    passes: float = 1.0,
    localize: dict[str, str] | None = None,
    decides: bool = False,
    view: bool = False,
    results: int = 1,
    ordered: bool = False,
    arguments: str | None = None,
) -> Iterator[OpSpec]:
    """Yield one row per name; operands and linear sets are lists of words."""
    for name in names.split():
        yield OpSpec(
            name,
            tuple(operands.split()),
            rule,
            tuple(linear.split()),
            flops,
            scale,
            reads,
            passes,
            localize,
            decides,
            view,
            results,
            ordered,
            arguments,
        )
