"""
Plans that people write by hand, each as a plain pass pipeline, for comparison with searched plans.

The module does not use `passes/planning`. A plan is a mesh, a pipeline of passes that decide, and a pipeline of passes
that make the program. A plan counts if it fits in memory.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, groupby, product
from time import perf_counter

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.ir.cluster import Cluster, Device, Link
from shardwright.ir.mesh import Axis, Mesh
from shardwright.ir.submesh import is_division, on_mesh, subcluster, submesh
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.analysis.tightest import tightest_ranks
from shardwright.passes.errors import PassError
from shardwright.passes.pipeline import Pipeline, run_pipeline
from shardwright.passes.search_strategy import SearchStrategyPass
from shardwright.passes.step.layers import find_layers
from shardwright.passes.step.step_view import StepView, step_views

ACCUMULATED = "program{{parts={parts}}}"
FSDP = "program{{parts={parts} per_part=true}}"
OVERLAPPED = {
    "two halves in turns": "program{mode=duplex parts=2}",
    "four quarters in turns": "program{mode=duplex parts=4}",
    "products in chunks": "program{chunked=true}",
}
"""Names and passes of programs that hide the collectives that products wait for."""

PIPELINED = "program{{mode=pipeline parts={parts} schedule={schedule}}}"
SCHEDULES = ("1f1b", "eager-1f1b", "gpipe")
MOST_PARTS = 64

Pins = tuple[tuple[str, tuple[str, ...]], ...]
"""Presets, each with its axes."""

KEPT = (0.75, 0.5, 0.25, 0)
"""Fractions of activations to keep that a person tries, in this order, if a plan that keeps all does not fit."""


@dataclass(frozen=True)
class Plain:
    """
    A plan by hand.

    Args:
        family: kind of parallelism that the plan is an example of.
        pins: presets with their axes. `search-strategy{algorithm=fixed}` completes them after the passes `before` and
            before the passes `after`. Without pins, `search-strategy` searches for the strategy.
        finish: passes that make the program.
        is_fused: whether batch-norms stay single ops; irrelevant for models without batch-norms.
        ranks: ranks that form the mesh; all others idle.
    """

    family: str
    name: str
    mesh: Mesh
    pins: Pins
    finish: str = "program"
    before: str = ""
    after: str = ""
    is_fused: bool = False
    ranks: tuple[int, ...] | None = None

    @property
    def decides(self) -> tuple[object, ...]:
        """Return a key that is equal for plans that differ only in the passes that make the program."""
        return self.mesh, self.pins, self.before, self.after, self.is_fused, self.ranks

    def keeping(self, fraction: float) -> Plain:
        """Return this plan with a fraction of the activations kept for backward."""
        name = f"{self.name}, {fraction:.0%} of activations kept"
        return replace(self, name=name, before=f"recompute{{keep={fraction}}},{self.before}")


@dataclass(frozen=True)
class Judged:
    """The result of a plan: simulated step and memory of its tightest rank, or the reason why the plan failed."""

    family: str
    name: str
    step: float | None = None
    peak_bytes: int = 0
    memory_bytes: float = 0.0
    refusal: str = ""

    @property
    def counts(self) -> bool:
        """Return whether the plan exists and fits in memory."""
        return self.step is not None and self.peak_bytes <= self.memory_bytes


@dataclass
class Prepared:
    """A step prepared for the passes that decide, in two forms: with decomposed and with fused batch-norms."""

    decomposed: ModuleOp = field(repr=False)
    fused: ModuleOp = field(repr=False)
    has_batch_norm: bool
    rows: int


def tightest(module: ModuleOp) -> tuple[int, float]:
    """Return peak and memory size, in bytes, of the rank with the least free memory (or the largest excess)."""
    rank = max(tightest_ranks(module), key=lambda rank: rank.excess)
    return rank.bytes, rank.limit


def step_seconds(module: ModuleOp) -> float:
    """Return the simulated seconds of a finished program."""
    return sum(each.seconds for each in simulate_module(module))


def splits(cluster: Cluster) -> list[tuple[Mesh, tuple[str, ...], tuple[str, ...]]]:
    """
    Return the ways to nest one kind of parallelism in another, each as a mesh, its outer axes and its inner axes.

    If any mesh will do, there is a mesh for every inner degree; else every subset of the cluster's axes is inner once.
    """
    own = cluster.mesh
    if not any_mesh_will_do(cluster):
        names = own.names
        chosen = (axes for size in range(1, len(names) + 1) for axes in combinations(names, size))
        return [(own, tuple(name for name in names if name not in inner), inner) for inner in chosen]
    count, (first, last) = own.device_count, own.names if len(own.names) == 2 else ("outer", own.names[-1])
    meshes: list[tuple[Mesh, tuple[str, ...], tuple[str, ...]]] = []
    for degree in divisors(count)[1:]:
        inner = Axis(last, degree)
        axes = (inner,) if degree == count else (Axis(first, count // degree), inner)
        meshes.append((Mesh(axes, own.name), (first,) if degree < count else (), (last,)))
    return meshes


def any_mesh_will_do(cluster: Cluster) -> bool:
    """Return whether the devices may form another mesh: no link has measured points, and the wires are known."""
    measured = any(link.points for link in cluster.links)
    return not measured and (cluster.topology is not None or len(cluster.mesh.axes) == 1)


def divisors(number: int) -> list[int]:
    """Return the divisors of a number in ascending order."""
    return [each for each in range(1, number + 1) if number % each == 0]


def cuts(rows: int) -> list[int]:
    """Return the usual numbers of micro-batches: divisors of `rows` that are powers of two, else all small divisors."""
    usual = [parts for parts in divisors(rows) if 1 < parts <= MOST_PARTS]
    return [parts for parts in usual if parts & (parts - 1) == 0] or usual


def plain_plans(prepared: Prepared, cluster: Cluster) -> Iterator[Plain]:
    """Yield all plans by hand, the most common first."""
    yield from _data_parallel(prepared, cluster)
    yield from _nested(cluster)
    yield from _on_three_axes(cluster)
    yield from _on_parts(cluster)
    if len(cluster.kinds_used) > 1:
        yield from _proportional(cluster)
    yield from _accumulated(prepared.rows, cluster)
    yield from _overlapped(cluster)
    layers = min(len(find_layers(view).names) for view in _views(prepared, cluster))
    yield from _even_pipelines(prepared.rows, layers, cluster.mesh)
    yield from _pipelines_on_parts(prepared.rows, layers, cluster)
    yield from _amp(prepared.rows, layers, cluster)


def _views(prepared: Prepared, cluster: Cluster) -> list[StepView]:
    module = prepared.decomposed.clone()
    add_cluster(module, cluster)
    return [view for view, _ in step_views(module)]


def _data_parallel(prepared: Prepared, cluster: Cluster) -> Iterator[Plain]:
    """
    Yield dp, ZeRO and the optimum of `search-strategy`, on the cluster's own mesh and on a mesh of one axis.

    The programs of zero1 and zero2 are equal.
    """
    own = cluster.mesh
    meshes = [own]
    if len(own.axes) > 1 and any_mesh_will_do(cluster):
        meshes.append(Mesh((Axis(own.names[-1], own.device_count),), own.name))
    for mesh in meshes:
        yield Plain("additive optimum", f"search-strategy on {_sizes(mesh)}", mesh, ())
        for preset in ("dp", "zero1", "zero2", "zero3"):
            plan = Plain("data parallel", f"{preset} on {_sizes(mesh)}", mesh, ((preset, mesh.names),))
            yield plan
            if prepared.has_batch_norm:
                yield Plain(plan.family, f"{plan.name}, fused batch-norm", mesh, plan.pins, is_fused=True)
        pins = (("zero3", mesh.names),)
        for parts in (parts for parts in cuts(prepared.rows) if parts * mesh.device_count <= prepared.rows):
            yield Plain("FSDP", f"zero3 on {_sizes(mesh)}, {parts} micro-batches", mesh, pins, FSDP.format(parts=parts))


def _nested(cluster: Cluster) -> Iterator[Plain]:
    """Yield Megatron's tensor parallelism at every degree inside dp or ZeRO, and zero3 inside dp."""
    for mesh, outer, inner in splits(cluster):
        if not outer:
            yield Plain("tensor parallel", f"tp on {_sizes(mesh)}", mesh, (("tp", inner),))
            continue
        for preset in ("dp", "zero1", "zero3"):
            name, pins = _nested_name(preset, "tp", mesh, inner), ((preset, outer), ("tp", inner))
            yield Plain("tensor parallel", name, mesh, pins)
        yield Plain("hybrid", _nested_name("dp", "zero3", mesh, inner), mesh, (("dp", outer), ("zero3", inner)))


def _on_three_axes(cluster: Cluster) -> Iterator[Plain]:
    """Yield tensor parallelism or zero3 inside zero1 or zero3 inside dp, at all degrees."""
    if not any_mesh_will_do(cluster):
        return
    count, name = cluster.mesh.device_count, cluster.mesh.name
    for inner, middle in product(divisors(count)[1:], repeat=2):
        outer, rest = divmod(count, inner * middle)
        if rest or outer == 1:
            continue
        mesh = Mesh((Axis("outer", outer), Axis("middle", middle), Axis("inner", inner)), name)
        for preset, inside in product(("zero3", "zero1"), ("tp", "zero3")):
            pins = (("dp", ("outer",)), (preset, ("middle",)), (inside, ("inner",)))
            if preset != inside:
                yield Plain("three axes", f"{inside} inside {preset} inside dp on {_sizes(mesh)}", mesh, pins)


def _accumulated(rows: int, cluster: Cluster) -> Iterator[Plain]:
    """Yield tensor parallelism inside ZeRO with micro-batches in sequence."""
    for mesh, outer, inner in splits(cluster):
        usable = [parts for parts in cuts(rows) if parts * mesh.parts(outer) <= rows] if outer else []
        for preset, parts in product(("zero1", "zero3"), usable):
            name = f"{_nested_name(preset, 'tp', mesh, inner)}, {parts} micro-batches"
            pins = ((preset, outer), ("tp", inner))
            yield Plain("accumulation", name, mesh, pins, ACCUMULATED.format(parts=parts))


def _overlapped(cluster: Cluster) -> Iterator[Plain]:
    """Yield plans whose collectives run beside products: HiDup's two halves, quarters, and products in chunks."""
    mesh = cluster.mesh
    presets = (Plain("", preset, mesh, ((preset, mesh.names),)) for preset in ("dp", "zero3"))
    plain = [
        Plain("", "search-strategy", mesh, ()),
        *presets,
        *(plan for plan in _nested(cluster) if plan.family == "tensor parallel"),
    ]
    for plan, (how, finish) in product(plain, OVERLAPPED.items()):
        yield replace(plan, family="overlap", name=f"{plan.name}, {how}", finish=finish)


def _on_parts(cluster: Cluster) -> Iterator[Plain]:
    """Yield plans without stages on a part of the devices."""
    own, hosts = cluster.mesh, _hosts(cluster)
    for ranks in _parts(cluster):
        rows = len({hosts[rank] for rank in ranks})
        flat = Mesh((Axis(own.names[-1], len(ranks)),), own.name)
        yield from (
            Plain("part", f"{preset} on ranks {list(ranks)}", flat, ((preset, flat.names),), ranks=ranks)
            for preset in ("dp", "zero1", "zero3", "tp")
        )
        if rows > 1 and len(ranks) % rows == 0 and len(ranks) > rows:
            mesh = Mesh((Axis("outer", rows), Axis("inner", len(ranks) // rows)), own.name)
            for outer, inner in (("dp", "tp"), ("zero3", "tp"), ("dp", "zero3")):
                pins = ((outer, ("outer",)), (inner, ("inner",)))
                yield Plain("part", f"{inner} inside {outer} on ranks {list(ranks)}", mesh, pins, ranks=ranks)


def _pipelines_on_parts(rows: int, layers: int, cluster: Cluster) -> Iterator[Plain]:
    """Yield even pipelines on a part of the devices."""
    for ranks in _parts(cluster):
        mesh = Mesh((Axis(cluster.mesh.names[-1], len(ranks)),), cluster.mesh.name)
        for plan in _even_pipelines(rows, layers, mesh):
            yield replace(plan, name=f"{plan.name}, on ranks {list(ranks)}", ranks=ranks)


def _hosts(cluster: Cluster) -> list[int]:
    """Return the host of each rank."""
    topology = cluster.topology
    return [topology.seat(rank).host if topology is not None else rank for rank in range(cluster.mesh.device_count)]


def _parts(cluster: Cluster) -> list[tuple[int, ...]]:
    """Return parts of the ranks, smaller than the cluster: some kinds of devices, some hosts or one device only."""
    own = cluster.mesh
    if cluster.topology is None and (len(own.axes) > 1 or any(link.points for link in cluster.links)):
        return []
    hosts, kinds = _hosts(cluster), sorted(set(cluster.placement))
    subsets: dict[tuple[int, ...], None] = {}
    for size in range(1, len(kinds) + 1):
        for chosen_kinds in combinations(kinds, size):
            ranks = [rank for rank in range(own.device_count) if cluster.placement[rank] in chosen_kinds]
            hosts_of_kinds = list(dict.fromkeys(hosts[rank] for rank in ranks))
            for count in {1, 2, len(hosts_of_kinds) // 2, len(hosts_of_kinds) - 1, len(hosts_of_kinds)}:
                subsets[tuple(rank for rank in ranks if hosts[rank] in hosts_of_kinds[:count])] = None
            subsets[tuple(ranks[:1])] = None
    return [ranks for ranks in subsets if 0 < len(ranks) < own.device_count]


def _proportional(cluster: Cluster) -> Iterator[Plain]:
    mesh = cluster.mesh
    for preset in ("dp", "zero1"):
        pins = ((preset, mesh.names),)
        yield Plain("proportional", f"{preset}, shares by speed", mesh, pins, after="balance-ratios")
    yield Plain("proportional", "search-strategy, shares by speed", mesh, (), after="balance-ratios")


def _even_pipelines(rows: int, layers: int, mesh: Mesh) -> Iterator[Plain]:
    """Yield pipelines of stages with equally many devices, cut by layers or by time, with dp or zero1 inside."""
    for stages in range(2, min(mesh.device_count, layers) + 1):
        if (stage := _even_stage(mesh, stages)) is None:
            continue
        begins = ",".join(str(index * layers // stages) for index in range(stages))
        ways: list[tuple[str, str, tuple[str, ...]]] = [
            ("as many layers each", f' begins="{begins}"', SCHEDULES),
            ("cut by time", "", SCHEDULES),
        ]
        if 2 * stages <= layers:
            ways.append(("cut by time in two chunks", " chunks=2", ("interleaved-1f1b",)))
        usable = [parts for parts in cuts(rows) if parts <= 8 * stages and parts * stage.device_count <= rows]
        for parts, preset, (how, cut, schedules) in product(usable, ("dp", "zero1"), ways):
            before = f"partition-stages{{stages={stages} micro_batches={parts}{cut}}},"
            for schedule in schedules:
                # An interleaved pipeline takes as many micro-batches at a time as it has stages.
                if schedule == "interleaved-1f1b" and parts % stages:
                    continue
                name = f"{stages} stages of {preset}, {how}, {parts} micro-batches, {schedule}"
                finish = PIPELINED.format(parts=parts, schedule=schedule)
                yield Plain("even pipeline", name, mesh, ((preset, stage.names),), finish, before)


def _amp(rows: int, layers: int, cluster: Cluster) -> Iterator[Plain]:
    """Yield AMP's plans: tensor parallelism inside data parallelism inside stages, and micro-batches."""
    own = cluster.mesh
    for mesh, outer, inner in [(own, own.names, ()), *splits(cluster)]:
        count, tensor = mesh.device_count, mesh.parts(inner)
        for stages in (stages for stages in divisors(count // tensor) if stages <= layers):
            if (stage := _even_stage(mesh, stages)) is None or not set(inner) <= set(stage.names):
                continue
            pins = (("dp", tuple(axis for axis in outer if axis in stage.names)), ("tp", inner))
            pins = tuple((preset, axes) for preset, axes in pins if axes)
            for parts in (parts for parts in cuts(rows) if parts * count // tensor // stages <= rows):
                degrees = f"{stages} stages, dp {count // tensor // stages}, tp {tensor}"
                name = f"AMP: {degrees} ({'-'.join(inner) or 'none'}), {parts} micro-batches"
                before = f"partition-stages{{stages={stages} micro_batches={parts} cost=amp}}," if stages > 1 else ""
                finish = PIPELINED.format(parts=parts, schedule="1f1b") if before else ACCUMULATED.format(parts=parts)
                yield Plain("AMP", name, mesh, pins, finish, before)


def _even_stage(mesh: Mesh, stages: int) -> Mesh | None:
    """Return the mesh of one of `stages` equal stages, or None if the mesh does not divide evenly."""
    each, rest = divmod(mesh.device_count, stages)
    return submesh(mesh, 0, each, "part") if not rest and is_division(mesh, (each,) * stages) else None


def _nested_name(outer: str, inner: str, mesh: Mesh, axes: Sequence[str]) -> str:
    return f"{inner} over {'-'.join(axes)} inside {outer} on {_sizes(mesh)}"


def _sizes(mesh: Mesh) -> str:
    return "x".join(str(axis.size) for axis in mesh.axes)


def limited(plans: Sequence[Plain], most: int, seed: int = 0) -> list[Plain]:
    """
    Return about `most` plans: all plans without pipelines, and random groups of pipelines and AMP plans.

    The plans of a group differ only in the passes that make the program. `seed` selects the groups.
    """
    flat = [plan for plan in plans if plan.family not in ("even pipeline", "AMP")]
    groups = [list(group) for _, group in groupby(plans[len(flat) :], key=lambda plan: plan.decides)]
    random.Random(seed).shuffle(groups)
    chosen = flat
    for group in groups:
        if len(chosen) < most:
            chosen += group
    return chosen


class Workshop:
    """Makes plain plans of one step on one cluster. The latest decisions are kept for plans that share them."""

    def __init__(self, prepared: Prepared, cluster: Cluster) -> None:
        self.prepared, self.cluster = prepared, cluster
        self._decided: dict[object, ModuleOp | str] = {}

    def judge_fitting(self, plan: Plain) -> Judged:
        """Return the result of a plan; if it does not fit, of the first plan that keeps fewer activations and fits."""
        judged = self.judge(plan)
        fractions = iter(KEPT)
        while judged.step is not None and not judged.counts and (fraction := next(fractions, None)) is not None:
            judged = self.judge(plan.keeping(fraction))
        return judged

    def judge(self, plan: Plain) -> Judged:
        """Return the simulated step and the memory of a plan, or the reason why it failed."""
        try:
            module = self.program(plan)
            return Judged(plan.family, plan.name, step_seconds(module), *tightest(module))
        except Exception as error:  # any error is a failure of this plan and is reported with it
            return Judged(plan.family, plan.name, refusal=f"{type(error).__name__}: {error}")

    def program(self, plan: Plain) -> ModuleOp:
        """Return the finished program of a plan. Raises ValueError if the deciding passes refuse the plan."""
        if plan.decides not in self._decided:
            if len(self._decided) > len(KEPT):
                del self._decided[next(iter(self._decided))]
            self._decided[plan.decides] = self._decide(plan)
        decided = self._decided[plan.decides]
        if isinstance(decided, str):
            raise ValueError(decided)
        module = decided.clone()
        run_pipeline(Context(), module, plan.finish, verify_each=False)
        return module

    def _decide(self, plan: Plain) -> ModuleOp | str:
        """Return the module after the deciding passes, or their error message."""
        module = (self.prepared.fused if plan.is_fused else self.prepared.decomposed).clone()
        whole = self.cluster
        placed = on_mesh(whole, plan.mesh) if plan.ranks is None else subcluster(whole, plan.mesh, plan.ranks)
        add_cluster(module, placed)
        search = SearchStrategyPass("fixed", pins_of(*plan.pins)) if plan.pins else SearchStrategyPass()
        passes = Pipeline.of(plan.before.rstrip(","), search, plan.after)
        try:
            run_pipeline(Context(), module, passes, verify_each=False)
        except PassError as error:
            return str(error)
        return module


def pins_of(*pins: tuple[str, tuple[str, ...]]) -> str:
    """Return presets with their axes as the text of a pin file."""
    return "".join(f'[[pin]]\npreset = "{preset}"\naxes = {json.dumps(axes)}\n' for preset, axes in pins)


def judge_all(workshop: Workshop, plans: Sequence[Plain], seconds: float | None = None) -> list[Judged]:
    """Simulate every plan until `seconds` have passed, and return the results."""
    began = perf_counter()
    results: list[Judged] = []
    for plan in plans:
        if seconds is not None and perf_counter() - began > seconds:
            break
        results.append(workshop.judge_fitting(plan))
    return results


def need_of(prepared: Prepared) -> float:
    """Return the bytes that a step needs on one device with unlimited memory."""
    device = Device("any", (("float32", 1e12),), 1e12, 1e18)
    alone = Cluster("alone", Mesh.of(gpu=1), (device,), (0,), (Link("gpu", 0.0, 1e-10),))
    return float(tightest(Workshop(prepared, alone).program(Plain("", "", alone.mesh, (("dp", ("gpu",)),))))[0])
