"""
Signatures: the ways in which one op can run on a mesh, derived from its rule.

On each axis an op makes one choice: run replicated, split one factor, or pass partial operands
through if it is linear in them. A signature is one choice per axis; the product over the axes gives all signatures
(HiDup's op forms, HAP's Hoare triples, AutoDDL's S/B/P signatures).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .interned import Interned
from .mesh import AxisKind, Mesh
from .ratios import EVEN, Ratios, Splits
from .rules import Dim, Rule, Value
from .sharding import (
    DimSharding,
    Offsets,
    Reduction,
    Sharding,
    dim_sharding,
    even_offsets,
    largest_part,
    local_shape,
)


@dataclass(frozen=True, eq=False)
class Signature(metaclass=Interned):
    """The shardings that one op requires of its operands and gives its results."""

    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.operands))}) -> ({', '.join(map(str, self.results))})"


@dataclass(frozen=True)
class Split:
    """
    The choice to split a factor on one axis.

    Args:
        minor: whether the axis is minor to all other axes that split the factor, whatever their order in the mesh.
    """

    factor: str
    minor: bool = False


@dataclass(frozen=True)
class Linear:
    """The choice to pass partial sums of a set of operands through to the results, on one axis."""

    operands: frozenset[int]


Choice = Split | Linear | None
"""The choice of an op on one axis, or None to run replicated."""


def choices(rule: Rule) -> tuple[Choice, ...]:
    """Return all choices of an op on an axis, the replicated choice first."""
    return (None, *map(Split, rule.splittable()), *map(Linear, rule.linear))


def signature(
    rule: Rule, mesh: Mesh, chosen: Sequence[Choice], offsets: Mapping[str, Offsets] | None = None
) -> Signature | None:
    """
    Return the signature of one choice per mesh axis, or None if a factor has fewer elements than parts, or a device
    would lack a part that it needs.

    `offsets` gives the boundaries of the factors that are not split evenly (they may leave parts empty).
    """
    uneven = offsets or {}
    axes = split_axes(mesh, chosen)
    passed = [
        (axis.name, choice.operands)
        for axis, choice in zip(mesh.axes, chosen, strict=True)
        if isinstance(choice, Linear)
    ]
    if any(mesh.parts(split) > rule.sizes[f] and f not in uneven for f, split in axes.items()):
        return None
    if any(needs_all_parts(rule, f) and _has_empty_part(uneven[f]) for f in axes if f in uneven):
        return None
    reduced = {axis: rule.reductions[f] for f, split in axes.items() if f in rule.reductions for axis in split}

    def spread(value: Value, partial: dict[str, Reduction]) -> Sharding:
        dims = tuple(_dim(rule, mesh, dim, axes, uneven) for dim in value)
        return Sharding(dims, tuple((axis, partial[axis]) for axis in mesh.in_order(partial)))

    def operand(index: int, value: Value) -> Sharding:
        partial = {axis: Reduction.SUM for axis, group in passed if index in group}
        return spread(value, partial | (reduced if index in rule.additive else {}))

    def result(value: Value) -> Sharding:
        present = {axis for dim in value for factor in dim for axis in axes.get(factor, ())}
        partial = {axis: kind for axis, kind in reduced.items() if axis not in present}
        return spread(value, partial | {axis: Reduction.SUM for axis, _ in passed})

    return Signature(
        tuple(operand(i, value) for i, value in enumerate(rule.operands)), tuple(map(result, rule.results))
    )


def split_axes(mesh: Mesh, chosen: Sequence[Choice]) -> dict[str, tuple[str, ...]]:
    """Return the axes that split each factor, major to minor."""
    axes: dict[str, tuple[str, ...]] = {}
    for minor in (False, True):
        for axis, choice in zip(mesh.axes, chosen, strict=True):
            if isinstance(choice, Split) and choice.minor is minor:
                axes[choice.factor] = (*axes.get(choice.factor, ()), axis.name)
    return axes


def needs_all_parts(rule: Rule, factor: str) -> bool:
    """
    Whether some result is independent of `factor`: a device with an empty part of it must still compute that result.

    An example is the gradient of the bias of a convolution that is split by input channels.
    """
    apart = any(all(factor not in dim for dim in value) for value in rule.results)
    return apart and factor not in rule.reductions


def _has_empty_part(offsets: Offsets) -> bool:
    return any(a == b for a, b in itertools.pairwise(offsets))


def _dim(
    rule: Rule, mesh: Mesh, dim: Dim, axes: Mapping[str, tuple[str, ...]], uneven: Mapping[str, Offsets]
) -> DimSharding:
    lead = rule.leading(dim)
    if lead is None or lead not in axes:
        return DimSharding()
    inner = math.prod(rule.sizes[factor] for factor in dim) // rule.sizes[lead]
    if not (boundaries := uneven.get(lead)):
        return _even_dim(axes[lead], rule.sizes[lead], inner, mesh)
    return dim_sharding(axes[lead], tuple(boundary * inner for boundary in boundaries), rule.sizes[lead] * inner, mesh)


@lru_cache(maxsize=65536)
def _even_dim(axes: tuple[str, ...], lead: int, inner: int, mesh: Mesh) -> DimSharding:
    """Return the split of a dim of `lead * inner` elements whose leading factor is split evenly."""
    scaled = tuple(boundary * inner for boundary in even_offsets(lead, mesh.parts(axes)))
    return dim_sharding(axes, scaled, lead * inner, mesh)


def signatures(rule: Rule, mesh: Mesh, splits: Splits | None = None) -> tuple[Signature, ...]:
    """
    Return every signature of an op on `mesh`, without repetition, the replicated one first.

    On a temporal axis an op runs once. `splits` gives the division of the rule's factors, or None for even splits.
    """
    options = choices(rule)
    usual = itertools.product(*(options if a.kind is AxisKind.SPATIAL else (None,) for a in mesh.axes))
    every = (ordered for chosen in usual for ordered in _orders(mesh, chosen))
    candidates = (signature(rule, mesh, chosen, factor_offsets(rule, mesh, chosen, splits)) for chosen in every)
    return tuple(dict.fromkeys(s for s in candidates if s is not None))


def _orders(mesh: Mesh, chosen: Sequence[Choice]) -> Iterator[tuple[Choice, ...]]:
    """Yield one choice per axis with each order of the axes that split a factor (`Mesh.orders`)."""
    yield tuple(chosen)
    for factor, axes in split_axes(mesh, chosen).items():
        for *_, minor in mesh.orders(axes)[1:]:
            pairs = zip(mesh.names, chosen, strict=True)
            yield tuple(Split(factor, minor=True) if name == minor else choice for name, choice in pairs)


def factor_splits(rule: Rule, counts: Mapping[str, int], ratios: Ratios = EVEN) -> Splits:
    """Return the division of a rule's factors; factors that `counts` does not list are divided by single elements."""
    sizes = tuple(rule.sizes[factor] for factor in rule.factors)
    return Splits(sizes, tuple(counts.get(f, n) for f, n in zip(rule.factors, sizes, strict=True)), ratios)


def factor_offsets(
    rule: Rule, mesh: Mesh, chosen: Sequence[Choice], splits: Splits | None
) -> dict[str, Offsets] | None:
    """Return the boundaries, by `splits`, of the factors that one choice per axis splits."""
    if splits is None:
        return None
    return {
        factor: splits.boundaries(rule.factors.index(factor), split, mesh)
        for factor, split in split_axes(mesh, chosen).items()
        if rule.sizes[factor] >= mesh.parts(split) or splits.ratios.split(split)
    }


def local_sizes(rule: Rule, given: Signature, mesh: Mesh) -> dict[str, int]:
    """Return the size of each factor on the device with the largest share, for the work of the slowest device."""
    sizes = dict(rule.sizes)
    for value, sharding in _pairs(rule, given):
        for dim, spread in zip(value, sharding.dims, strict=True):
            if spread.axes and (lead := rule.leading(dim)) is not None:
                inner = math.prod(rule.sizes[factor] for factor in dim) // rule.sizes[lead]
                sizes[lead] = -(-largest_part(rule.sizes[lead] * inner, spread, mesh) // inner)
    return sizes


def rank_sizes(rule: Rule, given: Signature, mesh: Mesh, rank: int) -> dict[str, int]:
    """Return the size of each factor on one rank."""
    sizes = dict(rule.sizes)
    for value, sharding in _pairs(rule, given):
        shape = [math.prod(rule.sizes[factor] for factor in dim) for dim in value]
        for dim, spread, local in zip(value, sharding.dims, local_shape(shape, sharding, mesh, rank), strict=True):
            if spread.axes and (lead := rule.leading(dim)) is not None:
                sizes[lead] = local * rule.sizes[lead] // math.prod(rule.sizes[factor] for factor in dim)
    return sizes


def explain_mismatch(rule: Rule, given: Signature, mesh: Mesh) -> str | None:
    """Return why `given` is no signature of `rule` on `mesh`, with the value at fault, or None if it is one."""
    if (len(given.operands), len(given.results)) != (len(rule.operands), len(rule.results)):
        return (
            f"signature {given} is of {len(given.operands)} operands and {len(given.results)} results,"
            f" the op has {len(rule.operands)} and {len(rule.results)}"
        )
    try:
        for value, sharding in _pairs(rule, given):
            sharding.verify(mesh, [math.prod(rule.sizes[f] for f in dim) for dim in value])
    except ValueError as error:
        return str(error)
    chosen, offsets = choices_of(rule, given, mesh)
    allowed = signature(rule, mesh, chosen, offsets)
    if allowed == given:
        return None
    hint = f"; the nearest that it allows is {allowed}" if allowed is not None else ""
    return f"signature {given} is not one that the op's rule {rule} allows{hint}"


def _pairs(rule: Rule, given: Signature) -> Iterator[tuple[Value, Sharding]]:
    return zip((*rule.operands, *rule.results), (*given.operands, *given.results), strict=True)


def choices_of(rule: Rule, given: Signature, mesh: Mesh) -> tuple[list[Choice], dict[str, Offsets]]:
    """Return the choice per axis that a signature seems to make, and the boundaries of its uneven factors."""
    factors: dict[str, Split] = {}
    offsets: dict[str, Offsets] = {}
    for value, sharding in _pairs(rule, given):
        for dim, spread in zip(value, sharding.dims, strict=True):
            if not spread.axes or (lead := rule.leading(dim)) is None:
                continue
            factors |= {
                axis: Split(lead, minor=mesh.in_order(spread.axes[: at + 1])[-1] != axis)
                for at, axis in enumerate(spread.axes)
            }
            inner = math.prod(rule.sizes[f] for f in dim) // rule.sizes[lead]
            if spread.offsets is not None and all(offset % inner == 0 for offset in spread.offsets):
                offsets[lead] = tuple(offset // inner for offset in spread.offsets)

    def choice(axis: str) -> Choice:
        if axis in factors:
            return factors[axis] if factors[axis].factor in rule.splittable() else None
        passed = frozenset(i for i, sharding in enumerate(given.operands) if axis in sharding.partial_axes)
        summed = passed or any(axis in sharding.partial_axes for sharding in given.results)
        return Linear(passed) if summed and passed in rule.linear else None

    return [choice(axis) for axis in mesh.names], offsets
