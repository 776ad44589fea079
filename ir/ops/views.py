"""Views: the same elements under another shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from ..rules import Rule
from .common import named, pointwise, rows, together, whole, wrapped
from .spec import OpInstance, OpSpec, RuleFunction, Shape

_SIZE = {"size": "result0"}


def reshape(op: OpInstance) -> Rule:
    """
    The rule of a view with other sizes: the dims' common factors (an even split of a dim on one side splits the other).

    From the first elements whose sizes on both sides have no common factor, dims stay whole, except equal last dims: a
    view of [8, 4, 9, 5] as [48, 6, 5] keeps its 8 rows and its 5 columns.
    """
    source, target = op.operands[0], op.results[0]
    sizes: dict[str, int] = {}
    before: list[list[str]] = [[] for _ in source]
    after: list[list[str]] = [[] for _ in target]
    i = j = 0
    left, right = _size(source, i), _size(target, j)
    while i < len(source) or j < len(target):
        if left == 1 and i < len(source):
            i, left = i + 1, _size(source, i + 1)
        elif right == 1 and j < len(target):
            j, right = j + 1, _size(target, j + 1)
        elif 0 in (left, right) or (step := math.gcd(left, right)) == 1:
            break
        else:
            factor = f"f{len(sizes)}"
            sizes[factor] = step
            before[i].append(factor)
            after[j].append(factor)
            left, right = left // step, right // step
    tail = _equal_last(source[i + 1 :], target[j + 1 :])
    fixed = {
        **_name_rest("s", source[i : len(source) - tail], left, before[i:]),
        **_name_rest("t", target[j : len(target) - tail], right, after[j:]),
    }
    for k in range(1, tail + 1):
        sizes[f"e{k}"] = source[-k]
        before[-k] = after[-k] = [f"e{k}"]
    operand, result = tuple(map(tuple, before)), tuple(map(tuple, after))
    return Rule((operand,), (result,), sizes | fixed, replicated=frozenset(fixed))


def _size(shape: Shape, index: int) -> int:
    return shape[index] if index < len(shape) else 1


def _equal_last(source: Shape, target: Shape) -> int:
    """Return the number of last dims that are equal."""
    pairs = zip(reversed(source), reversed(target), strict=False)
    return next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(source), len(target)))


def _name_rest(prefix: str, shape: Shape, first: int, dims: Sequence[list[str]]) -> dict[str, int]:
    """Append a factor to each dim of `shape`, of size `first` to the first one; return the sizes of the factors."""
    sizes = {f"{prefix}{k}": size for k, size in enumerate((first, *shape[1:]) if shape else ())}
    for factor, dim in zip(sizes, dims, strict=False):
        dim.append(factor)
    return sizes


def permuted(order: Callable[[OpInstance, int], Sequence[int]]) -> RuleFunction:
    """Return the rule of a reordering of dims; `order` gives, per result dim, the operand's dim."""

    def rule(op: OpInstance) -> Rule:
        value, sizes = named(op.operands[0])
        return Rule((value,), (tuple(value[d] for d in order(op, len(value))),), sizes)

    return rule


def swap(op: OpInstance, rank: int) -> list[int]:
    """Return the order of `transpose.int` (dim0, dim1) and of `t`."""
    order = list(range(rank))
    if rank >= 2:
        a, b = op.argument("dim0", 0) % rank, op.argument("dim1", 1) % rank
        order[a], order[b] = order[b], order[a]
    return order


def permutation(op: OpInstance, rank: int) -> list[int]:
    """Return the order of `permute` (dims)."""
    return [d % rank for d in op.argument("dims")]


def unsqueeze(op: OpInstance) -> Rule:
    """The rule of a new dim of size 1 at `dim`."""
    value, sizes = named(op.operands[0])
    at = op.argument("dim") % len(op.results[0])
    return Rule((value,), ((*value[:at], (), *value[at:]),), sizes)


def squeeze(op: OpInstance) -> Rule:
    """The rule of removing the dims of size 1 in `dim`, or all of them if the argument is missing."""
    value, sizes = named(op.operands[0])
    # An empty list refers to no dim.
    dims = set(wrapped(op.argument("dim"), len(value))) if op.argument("dim") != [] else set[int]()
    kept = tuple(d for i, d in enumerate(value) if not (i in dims and sizes[d[0]] == 1))
    return Rule((value,), (kept,), sizes)


def as_real(op: OpInstance) -> Rule:
    """The rule of complex numbers that become pairs along a new last dim."""
    value, sizes = named(op.operands[0])
    return Rule((value,), ((*value, ("two",)),), {**sizes, "two": 2}, replicated=frozenset({"two"}))


def as_complex(op: OpInstance) -> Rule:
    """The rule of pairs along the last dim that become complex numbers."""
    value, sizes = named(op.results[0])
    return Rule(((*value, ("two",)),), (value,), {**sizes, "two": 2}, replicated=frozenset({"two"}))


def rotated(op: OpInstance) -> Rule:
    """The rule of `rot90`: the plane of `dims` is not split."""
    return together(op, wrapped(op.argument("dims", (0, 1)), len(op.operands[0])))


def views_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from rows("view _unsafe_view", "self", reshape, linear="self", localize=_SIZE, view=True)
    yield from rows("reshape", "self", reshape, linear="self", localize={"shape": "result0"}, view=True)
    yield from rows("permute", "self", permuted(permutation), linear="self", view=True)
    yield from rows("t transpose.int", "self", permuted(swap), linear="self", view=True)
    yield from rows("expand", "self", pointwise, linear="self", localize=_SIZE, view=True)
    yield from rows("unsqueeze", "self", unsqueeze, linear="self", view=True)
    # Runs as a reshape to the local size, since a rank may hold one element of a larger dim.
    yield from rows("squeeze squeeze.dim squeeze.dims", "self", squeeze, linear="self", localize=_SIZE, view=True)
    yield from rows("view_as_real", "self", as_real, linear="self", view=True)
    yield from rows("view_as_complex", "self", as_complex, linear="self", view=True, ordered=True)
    yield from rows("rot90", "self", rotated, linear="self")
    # Global strides do not apply to parts: import turns these ops into reads and writes by position.
    yield from rows("as_strided", "self", whole, view=True)
    yield from rows("as_strided_scatter", "self src", whole)
