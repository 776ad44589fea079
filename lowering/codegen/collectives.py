"""Write collectives as calls of the communicator on local tensors, or as local calls if they are over time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise

from xdsl.ir import Operation, SSAValue

from ...dialects.compute import shape_of
from ...dialects.placed import parts_of
from ...dialects.spmd import CollectiveOp, StartOp
from ...dialects.step import sharding_of
from ...ir.collectives import CollectiveKind, Step, find_step
from ...ir.mesh import Mesh
from ...ir.sharding import DimSharding, Reduction, Sharding, even_offsets
from .errors import EmitError
from .layout import Doc, Group, call, keyword, literal, repeated_tuple, tuple_of
from .names import Names
from .sizes import PART, Sizes
from .where import Where


@dataclass(frozen=True)
class _Parts:
    """
    An argument of a kind of collective that takes the sizes of the parts of a dim.

    keyword    the argument's name
    made       whether these are the parts that it creates (of `Step.target`) or joins (of `Step.source`)
    """

    keyword: str
    made: bool


_PARTS: Mapping[CollectiveKind, tuple[_Parts, ...]] = {
    CollectiveKind.ALL_REDUCE: (),
    CollectiveKind.PARTIAL: (),
    CollectiveKind.ALL_GATHER: (_Parts("sizes", made=False),),
    CollectiveKind.REDUCE_SCATTER: (_Parts("sizes", made=True),),
    CollectiveKind.SLICE: (_Parts("sizes", made=True),),
    CollectiveKind.ALL_TO_ALL: (_Parts("split_sizes", made=True), _Parts("concat_sizes", made=False)),
}

_USUAL = "flat"
"""The method that is not passed to the communicator, which then uses its backend's default."""

HIERARCHICAL = "hierarchical"


class Collectives:
    """A writer of collectives, which records their axes in `groups`, in order of first use."""

    def __init__(self, where: Where, names: Names, sizes: Sizes, groups: dict[tuple[str, ...], None]) -> None:
        self._where, self._names, self._sizes, self._groups = where, names, sizes, groups

    def expression(self, op: CollectiveOp, key: str, *, donate: bool) -> Group:
        """Write a collective, `comm.all_reduce(x, axes=("dp",))`; `donate` lets it reuse the operand's memory."""
        step = self._step(op, op.KIND, op.operand, op.sharding)
        if self._where.temporal.issuperset(step.axes):
            return self._over_time(op, step, key)
        keywords = self._keywords(op, [(step, shape_of(op.operand))], key, donate=donate)
        text = call(f"comm.{step.kind}", [self._names[op.operand], *keywords])
        # Some torch kernels read statistics as if they were contiguous, but a slice of an inner dim is not.
        inner = step.kind is CollectiveKind.SLICE and step.dim
        return replace(text, closing=").contiguous()") if inner else text

    def start(self, op: StartOp, key: str, *, donate: Collection[int]) -> Group:
        """
        Write `comm.start("all_reduce", (g, h), axes=("dp",))`, with a tuple for an argument that differs by operand.

        Args:
            donate: the operands whose memory the collective may reuse.
        """
        steps = [
            (self._step(op, op.collective, arg, out.sharding), shape_of(arg))
            for arg, out in zip(op.args, op.out_shardings, strict=True)
        ]
        if len({(step.axes, step.reduction) for step, _ in steps}) > 1:
            raise EmitError(op, "its operands have different axes or reductions; one collective has one of each")
        taken = len(donate) == len(op.args) or tuple(sorted(donate))
        keywords = self._keywords(op, steps, key, donate=taken)
        return call("comm.start", [f'"{op.collective}"', tuple_of(self._names.listed(op.args)), *keywords])

    def _over_time(self, op: CollectiveOp, step: Step, key: str) -> Group:
        """Write the slice of a value for one part, `rt.part_of(x, 0, part, 4)`, or the concatenation of all parts."""
        source = self._names[op.operand]
        if step.kind is CollectiveKind.ALL_GATHER:
            return call("torch.cat", [source, literal(step.dim)])
        if step.kind is not CollectiveKind.SLICE or len(step.axes) != 1:
            raise EmitError(op, f"is a {step.kind} over a temporal axis; only all_gather and slice are possible there")
        [axis] = step.axes
        part = literal(parts_of(op)[axis]) if axis in parts_of(op) else PART
        sizes = self._parts(op, _PARTS[step.kind][0], step, shape_of(op.operand), f"{key}.sizes")
        count = literal(self._where.grid.parts(step.axes))
        return call("rt.part_of", [source, literal(step.dim), part, sizes if sizes != "None" else count])

    def _step(self, op: CollectiveOp | StartOp, kind: CollectiveKind, source: SSAValue, target: Sharding) -> Step:
        """Return the step of a collective for one operand, and record its groups."""
        spread = sharding_of(source)
        if (step := find_step(kind, spread, target, self._where.grid)) is None:
            raise EmitError(op, f"does not convert {spread} to {target}")
        if not kind.is_local and self._where.temporal.isdisjoint(step.axes):
            self._groups[step.axes] = None
        # A hierarchical collective runs along its last axis and along the others.
        if op.method is not None and op.method.data == HIERARCHICAL:
            self._groups |= {step.axes[:-1]: None, step.axes[-1:]: None}
        return step

    def _keywords(
        self,
        op: CollectiveOp | StartOp,
        steps: Sequence[tuple[Step, Sequence[int]]],
        key: str,
        *,
        donate: bool | tuple[int, ...],
    ) -> list[Doc]:
        """Return the keyword arguments of steps of one kind, given with the shapes of their operands."""
        kind = steps[0][0].kind
        keywords: dict[str, Doc] = {}
        if kind is CollectiveKind.ALL_TO_ALL:
            keywords["split_dim"] = _joint(literal(step.to_dim) for step, _ in steps)
            keywords["concat_dim"] = _joint(literal(step.dim) for step, _ in steps)
        elif steps[0][0].dim is not None:
            keywords["dim"] = _joint(literal(step.dim) for step, _ in steps)
        keywords["axes"] = literal(steps[0][0].axes)
        for parts in _PARTS[kind]:
            listed = [self._parts(op, parts, step, shape, f"{key}.{parts.keyword}") for step, shape in steps]
            if any(doc != "None" for doc in listed):
                keywords[parts.keyword] = _joint(listed)
        if (reduction := steps[0][0].reduction) is not Reduction.SUM:
            keywords["reduction"] = f'"{reduction}"'
        method = _USUAL if op.method is None else op.method.data
        # An all-to-all handles unequal parts in the same way as equal parts.
        if method != _USUAL and (kind is not CollectiveKind.ALL_TO_ALL or method == HIERARCHICAL):
            keywords["method"] = f'"{method}"'
        if donate:
            keywords["donate"] = literal(donate)
        return [keyword(name, doc) for name, doc in keywords.items()]

    def _parts(self, op: Operation, parts: _Parts, step: Step, shape: Sequence[int], key: str) -> Doc:
        """Return the sizes of the parts that a step creates or joins; "None" if the communicator's default is right."""
        dim = step.to_dim if parts.made and step.to_dim is not None else step.dim
        assert dim is not None, f"{step.kind} is along a dim"
        if step.dim == step.to_dim:
            moved = _moved_sizes(step, shape[dim], self._where.grid, made=parts.made)
            return self._sizes.entry(key, moved, self._where.devices(op))
        spread = (step.target if parts.made else step.source).dims[dim]
        rows = _part_sizes(shape[dim], spread, step.axes, self._where.grid, made=parts.made)
        return "None" if rows is None else self._sizes.entry(key, rows, self._where.devices(op))


def _joint(docs: Iterable[Doc]) -> Doc:
    """Return the common item if all items are equal, else a tuple of the items."""
    listed = list(docs)
    return listed[0] if all(doc == listed[0] for doc in listed) else repeated_tuple(listed)


@lru_cache(maxsize=65536)
def _part_sizes(
    size: int, dim: DimSharding, axes: tuple[str, ...], mesh: Mesh, *, made: bool
) -> tuple[tuple[int, ...], ...] | None:
    """
    Return, for each device, the sizes that the members of its group along `axes` hold in a dim of `size`.

    The result is None if it equals the communicator's default: an even split if `made`, else equal parts.
    """
    sizes = [end - begin for begin, end in pairwise(dim.boundaries(size, mesh))]
    by_rank: dict[int, tuple[int, ...]] = {}
    for group in mesh.groups(axes):
        row = tuple(sizes[mesh.part(rank, dim.axes)] for rank in group)
        by_rank |= dict.fromkeys(group, row)
    if all(
        (0, *accumulate(row)) == even_offsets(sum(row), len(row)) if made else len(set(row)) == 1
        for row in set(by_rank.values())
    ):
        return None
    return tuple(by_rank[rank] for rank in range(mesh.device_count))


def _moved_sizes(step: Step, size: int, mesh: Mesh, *, made: bool) -> list[tuple[int, ...]]:
    """
    Return, for each device, the elements that move to the members of its group (`made`) or from them (not `made`).

    The source and target shardings split a dim of `size` at different boundaries.
    """
    assert step.dim is not None
    sides = [step.source.dims[step.dim], step.target.dims[step.dim]]
    bounds = [side.boundaries(size, mesh) for side in sides]

    def interval(side: int, rank: int) -> tuple[int, int]:
        part = mesh.part(rank, sides[side].axes)
        return bounds[side][part], bounds[side][part + 1]

    def common(sender: int, receiver: int) -> int:
        (a, b), (c, d) = interval(0, sender), interval(1, receiver)
        return max(min(b, d) - max(a, c), 0)

    groups = [(rank, mesh.group(rank, step.axes)) for rank in range(mesh.device_count)]
    return [tuple(common(rank, m) if made else common(m, rank) for m in group) for rank, group in groups]
