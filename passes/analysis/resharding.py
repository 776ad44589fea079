"""
Find the cheapest way to change a value's sharding, and its cost: shortest paths among collectives (AutoDDL 4.3).

The shardings of a value are the nodes of a graph. Its edges are single collectives, weighted by their cost on the
cluster. Evenly split values of one rank (number of dims) share a graph, and many of its edges cost the same at any
size: they are priced once per size, and all pairs are solved at once. Values with uneven shares, or with elements that
must stay together, have graphs of their shapes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...ir.cluster import Cluster
from ...ir.collective_cost import handled_share, has_methods, has_offsets
from ...ir.collectives import CollectiveKind, Step, single_step, steps_from
from ...ir.mesh import Mesh
from ...ir.ratios import Splits
from ...ir.sharding import Reduction, Sharding, major, with_dim
from .step_prices import Axes, Pricing, StepPrices, stream_of

Matrix = NDArray[np.float64]

DETOUR = 0.1
"""
The fraction of its time that several collectives must save to replace a single one. Measured times of an all-reduce
differ by chance from its reduce-scatter and all-gather, and values with the same change of sharding share buckets.
"""


class ReshardingError(ValueError):
    """No collectives lead from one sharding to another."""


def even_shardings(
    rank: int, mesh: Mesh, *, partial: bool = True, time: Sharding | None = None
) -> tuple[Sharding, ...]:
    """
    Return every even sharding of a value of `rank` dims whose split dims list their axes in an order of the mesh.

    The first is the replicated one. `partial` includes partial sums. Over temporal axes all are placed as in `time`,
    by default replicated.
    """
    time = time if time is not None else Sharding.replicated(rank)
    placements = [None, *range(rank), *(["sum"] if partial else [])]
    shardings: list[Sharding] = []
    for chosen in itertools.product(placements, repeat=len(mesh.spatial)):
        pairs = list(zip(mesh.spatial, chosen, strict=True))
        orders = (mesh.orders(axis.name for axis, place in pairs if place == dim) for dim in range(rank))
        sums = {axis.name: Reduction.SUM for axis, place in pairs if place == "sum"} | dict(time.partial)
        for axes in itertools.product(*orders):
            dims = [mesh.merged(order, dim.axes) for order, dim in zip(axes, time.dims, strict=True)]
            shardings.append(Sharding.of(dims, {axis: sums[axis] for axis in mesh.in_order(sums)}))
    return tuple(shardings)


def all_shardings(
    splits: Splits, mesh: Mesh, *, partial: bool = True, time: Sharding | None = None
) -> tuple[Sharding, ...]:
    """Return every sharding of a value whose dims are divided as in `splits`; see `even_shardings`."""
    even = even_shardings(len(splits.sizes), mesh, partial=partial, time=time)
    candidates = even if splits.is_even(mesh) else (splits.sharding(sharding, mesh) for sharding in even)
    return tuple(sharding for sharding in candidates if fits(sharding, splits.sizes, mesh))


def fits(sharding: Sharding, shape: Sequence[int], mesh: Mesh) -> bool:
    """Return whether every evenly split dim has at least one element per part."""
    return all(
        d.offsets is not None or not d.axes or mesh.parts(d.axes) <= n
        for d, n in zip(sharding.dims, shape, strict=True)
    )


@dataclass(frozen=True)
class _ShardingGraph:
    """
    All shardings that a value can have, and the single steps between them.

    samples  one step of each sort; all steps of a sort cost the same
    sorts    number of the sort of the step from a source (rows) to a target (columns); `len(samples)` without a step
    """

    states: tuple[Sharding, ...]
    index: dict[Sharding, int]
    splits: Splits | None
    samples: tuple[Step, ...]
    sorts: NDArray[np.int32]


@lru_cache(maxsize=128)
def _graph(mesh: Mesh, time: Sharding, splits: Splits | None) -> _ShardingGraph:
    """Return the graph of a value that is divided as in `splits`, or evenly."""
    states = even_shardings(len(time.dims), mesh, time=time)
    if splits is not None:
        states = all_shardings(splits, mesh, time=time)
    index = {state: i for i, state in enumerate(states)}
    sorts: dict[object, tuple[int, Step]] = {}
    edges: list[tuple[int, int, int]] = []
    for i, state in enumerate(states):
        for step in steps_from(state, mesh, splits):
            if (j := index.get(step.target)) is not None:
                # The cost of a step depends on these properties and on the bytes of the value.
                shares = (handled_share(step, mesh), handled_share(step, mesh, "grouped_broadcast"))
                moves = step.dim is not None and step.dim == step.to_dim
                number, _ = sorts.setdefault(
                    (step.kind, step.axes, has_methods(step), has_offsets(step), moves, shares), (len(sorts), step)
                )
                edges.append((i, j, number))
    sort_of = np.full((len(states), len(states)), len(sorts), np.int32)
    for i, j, number in edges:
        sort_of[i, j] = number
    return _ShardingGraph(states, index, splits, tuple(step for _, step in sorts.values()), sort_of)


@dataclass(frozen=True)
class _Paths:
    """The cheapest paths between all shardings of one shape: their seconds, and the next node on each path."""

    seconds: Matrix
    following: NDArray[np.int64]


class ReshardCosts:
    """
    Costs and paths between shardings on one cluster, cached by shape.

    A value is described by the division of its dims (`Splits`), or just by its shape if the division is even.
    """

    def __init__(self, cluster: Cluster, pricing: Pricing = Pricing()) -> None:
        self.cluster, self.mesh = cluster, cluster.mesh
        self.prices = StepPrices(cluster, pricing)
        self._shapes: dict[tuple[Splits, float, Sharding], _Paths] = {}
        self._solutions: dict[tuple[Sharding, Splits | None, float, tuple[int, ...]], _Paths] = {}
        self._ways: dict[tuple[Splits, float, Sharding, Sharding], tuple[Step, ...]] = {}

    def step_seconds(self, step: Step, global_bytes: float) -> float:
        """Return the cost of one collective on a value of `global_bytes` bytes, by its cheapest method."""
        return self.prices.weighted(step, global_bytes)

    def streams(
        self, value: Splits | tuple[int, ...], element_bytes: float, source: Sharding, target: Sharding
    ) -> dict[Axes, float]:
        """
        Return the seconds of the steps of `path` by the axes of each step, without the factors of the pricing.

        Steps that a device does by itself are under `()`.
        """
        splits = _splits(value)
        size = float(math.prod(splits.sizes) * element_bytes)
        seconds: dict[Axes, float] = {}
        for step in self.path(splits, element_bytes, source, target):
            stream = stream_of(step)
            seconds[stream] = seconds.get(stream, 0.0) + self.prices.seconds(step, size)
        return seconds

    def matrix(
        self,
        value: Splits | tuple[int, ...],
        element_bytes: float,
        sources: Sequence[Sharding],
        targets: Sequence[Sharding],
    ) -> Matrix:
        """
        Return the seconds from each of `sources` to each of `targets`, or inf if there is no path.
        """
        splits = _splits(value)
        whole = Sharding.replicated(len(splits.sizes))
        graph, paths = self._graph(splits, whole), self._solved(splits, element_bytes, whole)
        rows = [graph.index.get(s, -1) for s in sources]
        columns = [graph.index.get(t, -1) for t in targets]
        if min(rows, default=0) >= 0 and min(columns, default=0) >= 0:
            return paths.seconds[np.ix_(rows, columns)]
        size = float(math.prod(splits.sizes) * element_bytes)
        leaving = np.array([self._leaving(graph, paths, s, splits, size) for s in sources])
        table = np.array([self._arriving(graph, leaving, t, size) for t in targets]).T
        for i, j in itertools.product(range(len(sources)), range(len(targets))):
            if rows[i] < 0 and columns[j] < 0:
                table[i, j] = min(table[i, j], self._direct(sources[i], targets[j], size))
        return table

    def _direct(self, source: Sharding, target: Sharding, size: float) -> float:
        """Return the seconds of the single step between two shardings outside of the graph, or inf without a step."""
        if source == target:
            return 0.0
        step = single_step(source, target, self.mesh)
        return self.step_seconds(step, size) if step is not None else math.inf

    def _leaving(self, graph: _ShardingGraph, paths: _Paths, source: Sharding, splits: Splits, size: float) -> Matrix:
        """Return the seconds from `source`, inside or outside of the graph, to every sharding of the graph."""
        if source in graph.index:
            return paths.seconds[graph.index[source]]
        best = np.full(len(graph.states), np.inf)
        for step in steps_from(source, self.mesh, graph.splits):
            if step.target in graph.index and fits(step.target, splits.sizes, self.mesh):
                best = np.minimum(best, self.step_seconds(step, size) + paths.seconds[graph.index[step.target]])
        return best

    def _arriving(self, graph: _ShardingGraph, leaving: Matrix, target: Sharding, size: float) -> Matrix:
        """Return the seconds from each source (a row of `leaving`) to `target`, inside or outside of the graph."""
        if target in graph.index:
            return leaving[:, graph.index[target]]
        best = np.full(len(leaving), np.inf)
        for i, state in enumerate(graph.states):
            if (step := single_step(state, target, self.mesh)) is not None:
                best = np.minimum(best, leaving[:, i] + self.step_seconds(step, size))
        return best

    def cheapest_reduced(self, value: Splits | tuple[int, ...], element_bytes: float, source: Sharding) -> Sharding:
        """Return the sharding without partial spatial axes that is cheapest to reach from `source`."""
        splits, time = _splits(value), source.over_time(self.mesh)
        graph = self._graph(splits, time)
        if source not in graph.index:
            return replace(source, partial=time.partial)
        seconds = self._solved(splits, element_bytes, time).seconds[graph.index[source]]
        reduced = (i for i, state in enumerate(graph.states) if state.partial == time.partial)
        return graph.states[min(reduced, key=lambda i: float(seconds[i]))]

    def path(
        self, value: Splits | tuple[int, ...], element_bytes: float, source: Sharding, target: Sharding
    ) -> tuple[Step, ...]:
        """
        Return the steps of a cheapest path from `source` to `target`; raise ReshardingError if there is none.

        Steps over temporal axes are free, and separate from others: a reduction comes before all other steps, and a
        slice comes as soon as the dim is whole on the spatial axes.
        """
        key = (splits := _splits(value), element_bytes, source, target)
        if key not in self._ways:
            self._ways[key] = self._way(splits, element_bytes, source, target)
        return self._ways[key]

    def _way(self, splits: Splits, element_bytes: float, source: Sharding, target: Sharding) -> tuple[Step, ...]:
        time = source.over_time(self.mesh)
        if time == target.over_time(self.mesh):
            return self._in_space(splits, element_bytes, source, target, time)
        if (step := self._step_in_time(splits.sizes, source, target)) is None:
            raise ReshardingError(
                f"no collectives convert {source} to {target} for a value of shape {list(splits.sizes)}: a"
                " micro-batched value can only be summed over the micro-batches, or consumed per micro-batch"
            )
        before = self._in_space(splits, element_bytes, source, step.source, time)
        return (*before, step, *self.path(splits, element_bytes, step.target, target))

    def _step_in_time(self, shape: tuple[int, ...], source: Sharding, target: Sharding) -> Step | None:
        """Return the first step over a temporal axis on the path; its source may differ from `source` in space."""
        before, after = source.over_time(self.mesh), target.over_time(self.mesh)
        for axis, kind in reversed(before.partial):
            # Reduce the minor axis first: its parts are summed within each part of the major axis.
            if axis not in after.partial_axes:
                left = replace(source, partial=tuple(pair for pair in source.partial if pair[0] != axis))
                return Step(CollectiveKind.ALL_REDUCE, (axis,), source, left, reduction=kind)
        for dim, (now, wanted) in enumerate(zip(before.dims, after.dims, strict=True)):
            if now != wanted and wanted.axes[: len(now.axes)] == now.axes:
                spread, axis = target.dims[dim], wanted.axes[len(now.axes)]
                at = spread.axes.index(axis)
                whole, part = (with_dim(source, dim, major(spread, n, shape[dim], self.mesh)) for n in (at, at + 1))
                return Step(CollectiveKind.SLICE, (axis,), whole, part, dim)
        return None

    def _in_space(
        self, splits: Splits, element_bytes: float, source: Sharding, target: Sharding, time: Sharding
    ) -> tuple[Step, ...]:
        """Return a cheapest path over spatial axes; both shardings are placed as in `time` on temporal axes."""
        if source == target:
            return ()
        graph, paths = self._graph(splits, time), self._solved(splits, element_bytes, time)
        size = float(math.prod(splits.sizes) * element_bytes)
        first = self._first_steps(graph, source, splits)
        last = self._last_steps(graph, target)
        ways = [
            (
                sum(self.step_seconds(step, size) for step in (*head, *tail)) + float(paths.seconds[i, j]),
                (*head, *self._between(graph, paths, i, j, size), *tail),
            )
            for i, head in first.items()
            for j, tail in last.items()
            if np.isfinite(paths.seconds[i, j])
        ]
        if (direct := single_step(source, target, self.mesh)) is not None:
            ways.append((self.step_seconds(direct, size), (direct,)))
        if ways:
            return min(ways, key=lambda way: way[0])[1]
        if (way := self._by_whole_dims(source, target, time)) is not None:
            return way
        raise ReshardingError(
            f"no collectives convert {source} to {target} for a value of shape {list(splits.sizes)}: split it "
            "evenly, or by the function's spmd.ratios"
        )

    def _by_whole_dims(self, source: Sharding, target: Sharding, time: Sharding) -> tuple[Step, ...] | None:
        """Return the path that makes each dim whole and then splits it, for dims that no ratios divide, or None."""
        states = [source]
        for dim, whole in enumerate(time.dims):
            states.append(with_dim(states[-1], dim, whole))
        states.append(replace(states[-1], partial=time.partial))
        states.append(replace(states[-1], partial=target.partial))
        for dim, spread in enumerate(target.dims):
            states.append(with_dim(states[-1], dim, spread))
        pairs = [(before, after) for before, after in itertools.pairwise(states) if before != after]
        steps = [single_step(before, after, self.mesh) for before, after in pairs]
        return tuple(step for step in steps if step is not None) if all(steps) else None

    def _first_steps(self, graph: _ShardingGraph, source: Sharding, splits: Splits) -> dict[int, tuple[Step, ...]]:
        if source in graph.index:
            return {graph.index[source]: ()}
        steps = (
            s
            for s in steps_from(source, self.mesh, graph.splits)
            if s.target in graph.index and fits(s.target, splits.sizes, self.mesh)
        )
        return {graph.index[step.target]: (step,) for step in steps}

    def _last_steps(self, graph: _ShardingGraph, target: Sharding) -> dict[int, tuple[Step, ...]]:
        if target in graph.index:
            return {graph.index[target]: ()}
        steps = ((i, single_step(state, target, self.mesh)) for i, state in enumerate(graph.states))
        return {i: (step,) for i, step in steps if step is not None}

    def _between(self, graph: _ShardingGraph, paths: _Paths, i: int, j: int, size: float) -> tuple[Step, ...]:
        steps: list[Step] = []
        while i != j:
            k = int(paths.following[i, j])
            steps.append(self._edge(graph, graph.states[i], graph.states[k], size))
            i = k
        return tuple(steps)

    def _edge(self, graph: _ShardingGraph, source: Sharding, target: Sharding, size: float) -> Step:
        """Return the cheapest single step between two shardings (a reduce-scatter over several axes, say)."""
        steps = [s for s in steps_from(source, self.mesh, graph.splits) if s.target == target]
        return min(steps, key=lambda s: self.step_seconds(s, size))

    def _graph(self, splits: Splits, time: Sharding) -> _ShardingGraph:
        """Return the graph of a value; evenly split values of one rank share a graph, whatever their sizes."""
        return _graph(self.mesh, time, None if splits.is_even(self.mesh) else splits)

    def _solved(self, splits: Splits, element_bytes: float, time: Sharding) -> _Paths:
        """Return the cheapest paths between the shardings that fit the shape; shapes of equal bytes may share them."""
        key = (splits, element_bytes, time)
        if key not in self._shapes:
            graph, size = self._graph(splits, time), float(math.prod(splits.sizes) * element_bytes)
            unfit = tuple(i for i, state in enumerate(graph.states) if not fits(state, splits.sizes, self.mesh))
            solution = (time, graph.splits, size, unfit)
            if solution not in self._solutions:
                costs = np.array([*(self.step_seconds(step, size) for step in graph.samples), np.inf])
                worth = 0.0 if self.prices.pricing.latency_free else DETOUR
                self._solutions[solution] = _cheapest_paths(costs[graph.sorts], unfit, worth)
            self._shapes[key] = self._solutions[solution]
        return self._shapes[key]


@lru_cache(maxsize=16)
def reshard_costs(cluster: Cluster) -> ReshardCosts:
    """Return the costs on a cluster without weights; equal clusters share them, and so all paths found before."""
    return ReshardCosts(cluster)


def _cheapest_paths(steps: Matrix, unfit: Sequence[int], worth: float) -> _Paths:
    """
    Floyd and Warshall's algorithm over single steps; no path may pass `unfit` nodes.

    Several steps replace a single one if they save the fraction `worth` of its time, or if there is no single one.
    """
    count = len(steps)
    steps[unfit, :] = np.inf
    steps[:, unfit] = np.inf
    np.fill_diagonal(steps, 0.0)
    seconds, following = steps.copy(), np.tile(np.arange(count), (count, 1))
    through, shorter = np.empty_like(seconds), np.empty_like(seconds, dtype=np.bool_)
    for k in range(count):
        np.add(seconds[:, k, None], seconds[k], out=through)
        np.less(through, seconds, out=shorter)
        np.copyto(seconds, through, where=shorter)
        np.copyto(following, following[:, k, None], where=shorter)
    is_direct = np.isfinite(steps) & (seconds >= (1.0 - worth) * steps)
    following = np.where(is_direct, np.arange(count), following)
    return _Paths(_along(steps, following), following)


def _along(steps: Matrix, following: NDArray[np.int64]) -> Matrix:
    """Return the seconds of every path, summed step by step."""
    at, target = np.indices(steps.shape)
    seconds = np.zeros_like(steps)
    while (at != target).any():
        after = following[at, target]
        seconds, at = seconds + steps[at, after], after
    return seconds


def _splits(value: Splits | tuple[int, ...]) -> Splits:
    return value if isinstance(value, Splits) else Splits.single(value)
