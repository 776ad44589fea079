"""
The plans that people write by hand, each as a plain pass pipeline: what a searched plan is compared with.

Nothing here uses `passes/planning`: a plan is a mesh, a pipeline of passes that decide, and one of those that make the
program. It counts if it fits in memory.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, groupby, product
from time import perf_counter

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.ir.cluster import Cluster, Device, Link
from shardwright.ir.mesh import Axis, Mesh
from shardwright.ir.submesh import is_division, on_mesh, subcluster, submesh
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.memory import peak_memory
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.errors import PassError
from shardwright.passes.pipeline import Pipeline, run_pipeline
from shardwright.passes.search_strategy import SearchStrategyPass
from shardwright.passes.step.layers import find_layers
from shardwright.passes.step.step_view import StepView, step_views

ACCUMULATED = "program{{parts={parts}}}"
PIPELINED = "program{{mode=pipeline parts={parts} schedule={schedule}}}"
SCHEDULES = ("1f1b", "eager-1f1b", "gpipe")
MOST_PARTS = 64

Pins = tuple[tuple[str, tuple[str, ...]], ...]
"""Presets with the axes of each."""


@dataclass(frozen=True)
class Plain:
    """
    A plan by hand.

    Args:
        family: what it is an example of.
        pins: completed by `search-strategy{algorithm=fixed}` behind the passes `before`, then `after`; without pins the
            strategy is that of `search-strategy`.
        finish: the passes that make the program.
        is_fused: whether batch-norms stay single ops, which only matters where there are any.
        ranks: the ranks that form the mesh, where the others idle.
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
        """Equal for plans that share all but the passes that make the program."""
        return self.mesh, self.pins, self.before, self.after, self.is_fused, self.ranks


@dataclass(frozen=True)
class Judged:
    """What became of a plan: its simulated step and how full memory is, or why there is none."""

    family: str
    name: str
    step: float | None = None
    peak_bytes: int = 0
    memory_bytes: float = 0.0
    refusal: str = ""

    @property
    def counts(self) -> bool:
        """Whether it can be run."""
        return self.step is not None and self.peak_bytes <= self.memory_bytes


@dataclass
class Prepared:
    """A step as passes that decide get it: with batch-norms decomposed, and with them as they are."""

    decomposed: ModuleOp = field(repr=False)
    fused: ModuleOp = field(repr=False)
    has_batch_norm: bool
    rows: int


def tightest(module: ModuleOp) -> tuple[int, float]:
    """The peak of the rank that comes closest to its memory, or exceeds it by most, and that memory, in bytes."""
    found: list[tuple[int, float]] = []
    for view, cluster in step_views(module):
        limits = [cluster.device(rank).memory for rank in range(cluster.mesh.device_count)]
        peak = peak_memory(view.func, cluster.mesh, limits, view.stage, cluster.blocks)
        found.append((peak.bytes, limits[peak.rank]))
    return max(found, key=lambda each: each[0] - each[1])


def step_seconds(module: ModuleOp) -> float:
    """Of a finished program, simulated."""
    return sum(each.seconds for each in simulate_module(module))


def splits(cluster: Cluster) -> list[tuple[Mesh, tuple[str, ...], tuple[str, ...]]]:
    """
    The ways to put one kind of parallelism inside another: a mesh, the outer axes and the inner ones.

    Every degree where any mesh will do; where only the cluster's own axes are known, every choice among them.
    """
    own = cluster.mesh
    if not any_mesh_will_do(cluster):
        names = own.names
        chosen = (each for size in range(1, len(names) + 1) for each in combinations(names, size))
        return [(own, tuple(name for name in names if name not in inner), inner) for inner in chosen]
    count, (first, last) = own.device_count, own.names if len(own.names) == 2 else ("outer", own.names[-1])
    found: list[tuple[Mesh, tuple[str, ...], tuple[str, ...]]] = []
    for degree in divisors(count)[1:]:
        inner = Axis(last, degree)
        axes = (inner,) if degree == count else (Axis(first, count // degree), inner)
        found.append((Mesh(axes, own.name), (first,) if degree < count else (), (last,)))
    return found


def any_mesh_will_do(cluster: Cluster) -> bool:
    """Whether the devices may form another mesh: nothing was measured along axes, and the wires are known."""
    measured = any(link.points for link in cluster.links)
    return not measured and (cluster.topology is not None or len(cluster.mesh.axes) == 1)


def divisors(number: int) -> list[int]:
    """Ascending."""
    return [each for each in range(1, number + 1) if number % each == 0]


def cuts(rows: int) -> list[int]:
    """Into how many micro-batches a batch is cut: the powers of two among its divisors, else any of these."""
    usual = [parts for parts in divisors(rows) if 1 < parts <= MOST_PARTS]
    return [parts for parts in usual if parts & (parts - 1) == 0] or usual


def plain_plans(prepared: Prepared, cluster: Cluster) -> Iterator[Plain]:
    """All of them, those that are written most first."""
    yield from _data_parallel(prepared, cluster)
    yield from _nested(cluster)
    yield from _on_three_axes(cluster)
    yield from _on_parts(cluster)
    if len(cluster.kinds_used) > 1:
        yield from _proportional(cluster)
    layers = min(len(find_layers(view).names) for view in _views(prepared, cluster))
    yield from _even_pipelines(prepared.rows, layers, cluster)
    yield from _amp(prepared.rows, layers, cluster)


def _views(prepared: Prepared, cluster: Cluster) -> list[StepView]:
    module = prepared.decomposed.clone()
    add_cluster(module, cluster)
    return [view for view, _ in step_views(module)]


def _data_parallel(prepared: Prepared, cluster: Cluster) -> Iterator[Plain]:
    """
    Yield dp, ZeRO and the optimum of `search-strategy`, on the cluster's own mesh and on all devices in one row.

    zero2 is the program of zero1.
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
            for keep, name in ((0.5, "selective"), (0, "full")):
                again = f"{plan.name}, {name} recomputation"
                yield Plain("recomputation", again, mesh, plan.pins, before=f"recompute{{keep={keep}}},")


def _nested(cluster: Cluster) -> Iterator[Plain]:
    """Megatron's tensor parallelism at every degree, with dp or ZeRO around it; zero3 inside dp."""
    for mesh, outer, inner in splits(cluster):
        if not outer:
            yield Plain("tensor parallel", f"tp on {_sizes(mesh)}", mesh, (("tp", inner),))
            continue
        for preset in ("dp", "zero1", "zero3"):
            name, pins = _nested_name(preset, "tp", mesh, inner), ((preset, outer), ("tp", inner))
            yield Plain("tensor parallel", name, mesh, pins)
        yield Plain("hybrid", _nested_name("dp", "zero3", mesh, inner), mesh, (("dp", outer), ("zero3", inner)))


def _on_three_axes(cluster: Cluster) -> Iterator[Plain]:
    """dp around zero3 or zero1, around tensor parallelism, at all degrees of both."""
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


def _on_parts(cluster: Cluster) -> Iterator[Plain]:
    """Data parallelism, ZeRO and tensor parallelism on some kinds of devices, some hosts or one device."""
    own = cluster.mesh
    if cluster.topology is None and (len(own.axes) > 1 or any(link.points for link in cluster.links)):
        return
    places = range(own.device_count)
    hosts = [cluster.topology.seat(rank).host if cluster.topology is not None else rank for rank in places]
    kinds = sorted(set(cluster.placement))
    chosen: dict[tuple[int, ...], None] = {}
    for size in range(1, len(kinds) + 1):
        for kept in combinations(kinds, size):
            ranks = [rank for rank in places if cluster.placement[rank] in kept]
            there = list(dict.fromkeys(hosts[rank] for rank in ranks))
            for few in {1, 2, len(there) // 2, len(there) - 1, len(there)}:
                chosen[tuple(rank for rank in ranks if hosts[rank] in there[:few])] = None
            chosen[tuple(ranks[:1])] = None
    for ranks in (ranks for ranks in chosen if 0 < len(ranks) < own.device_count):
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


def _proportional(cluster: Cluster) -> Iterator[Plain]:
    """Data parallelism with shares by speed."""
    mesh = cluster.mesh
    for preset in ("dp", "zero1"):
        pins = ((preset, mesh.names),)
        yield Plain("proportional", f"{preset}, shares by speed", mesh, pins, after="balance-ratios")


def _even_pipelines(rows: int, layers: int, cluster: Cluster) -> Iterator[Plain]:
    """Stages of equally many devices, cut by layers or by time, with data parallelism inside."""
    mesh = cluster.mesh
    for stages in range(2, min(mesh.device_count, layers) + 1):
        if (stage := _even_stage(mesh, stages)) is None:
            continue
        begins = ",".join(str(index * layers // stages) for index in range(stages))
        usable = [parts for parts in cuts(rows) if parts <= 8 * stages and parts * stage.device_count <= rows]
        for parts, (preset, begin) in product(usable, (("dp", begins), ("dp", ""), ("zero1", ""))):
            cut = f' begins="{begin}"' if begin else ""
            before = f"partition-stages{{stages={stages} micro_batches={parts}{cut}}},"
            how = "as many layers each" if begin else "cut by time"
            for schedule in SCHEDULES:
                name = f"{stages} stages of {preset}, {how}, {parts} micro-batches, {schedule}"
                finish = PIPELINED.format(parts=parts, schedule=schedule)
                yield Plain("even pipeline", name, mesh, ((preset, stage.names),), finish, before)


def _amp(rows: int, layers: int, cluster: Cluster) -> Iterator[Plain]:
    """What AMP enumerates: tensor parallelism inside data parallelism inside stages, and micro-batches."""
    own = cluster.mesh
    for mesh, outer, inner in [(own, own.names, ()), *splits(cluster)]:
        count, tensor = mesh.device_count, mesh.parts(inner)
        for stages in (stages for stages in divisors(count // tensor) if stages <= layers):
            if (stage := _even_stage(mesh, stages)) is None or not set(inner) <= set(stage.names):
                continue
            pins = (("dp", tuple(each for each in outer if each in stage.names)), ("tp", inner))
            pins = tuple((preset, axes) for preset, axes in pins if axes)
            for parts in (parts for parts in cuts(rows) if parts * count // tensor // stages <= rows):
                degrees = f"{stages} stages, dp {count // tensor // stages}, tp {tensor}"
                name = f"AMP: {degrees} ({'-'.join(inner) or 'none'}), {parts} micro-batches"
                before = f"partition-stages{{stages={stages} micro_batches={parts} cost=amp}}," if stages > 1 else ""
                finish = PIPELINED.format(parts=parts, schedule="1f1b") if before else ACCUMULATED.format(parts=parts)
                yield Plain("AMP", name, mesh, pins, finish, before)


def _even_stage(mesh: Mesh, stages: int) -> Mesh | None:
    """The mesh of a stage where all have equally many devices; None where they cannot."""
    each, rest = divmod(mesh.device_count, stages)
    return submesh(mesh, 0, each, "part") if not rest and is_division(mesh, (each,) * stages) else None


def _nested_name(outer: str, inner: str, mesh: Mesh, axes: Sequence[str]) -> str:
    return f"{inner} over {'-'.join(axes)} inside {outer} on {_sizes(mesh)}"


def _sizes(mesh: Mesh) -> str:
    return "x".join(str(axis.size) for axis in mesh.axes)


def limited(plans: Sequence[Plain], most: int, seed: int = 0) -> list[Plain]:
    """
    About `most` plans, those of time at random from the number `seed`, in groups that share what they decide.

    Data parallelism, tensor parallelism and their like are all kept.
    """
    flat = [plan for plan in plans if plan.family not in ("even pipeline", "AMP")]
    groups = [list(group) for _, group in groupby(plans[len(flat) :], key=lambda plan: plan.decides)]
    random.Random(seed).shuffle(groups)
    found = flat
    for group in groups:
        if len(found) < most:
            found += group
    return found


class Workshop:
    """Makes plain plans of one step on one cluster; plans that follow one another share what they have in common."""

    def __init__(self, prepared: Prepared, cluster: Cluster) -> None:
        self.prepared, self.cluster = prepared, cluster
        self._decided: tuple[object, ModuleOp | str] | None = None

    def judge(self, plan: Plain) -> Judged:
        """The step of a plan, or why it cannot be."""
        try:
            module = self.program(plan)
            return Judged(plan.family, plan.name, step_seconds(module), *tightest(module))
        except Exception as error:  # whatever goes wrong is the plan's own fault, and is said
            return Judged(plan.family, plan.name, refusal=f"{type(error).__name__}: {error}")

    def program(self, plan: Plain) -> ModuleOp:
        """The finished program of a plan; PassError where it cannot be."""
        if self._decided is None or self._decided[0] != plan.decides:
            self._decided = (plan.decides, self._decide(plan))
        decided = self._decided[1]
        if isinstance(decided, str):
            raise ValueError(decided)
        module = decided.clone()
        run_pipeline(Context(), module, plan.finish, verify_each=False)
        return module

    def _decide(self, plan: Plain) -> ModuleOp | str:
        """The step with its decisions in the IR, or why there are none."""
        module = (self.prepared.fused if plan.is_fused else self.prepared.decomposed).clone()
        whole = self.cluster
        placed = on_mesh(whole, plan.mesh) if plan.ranks is None else subcluster(whole, plan.mesh, plan.ranks)
        add_cluster(module, placed)
        pins = "".join(_pin(preset, axes) for preset, axes in plan.pins)
        search = SearchStrategyPass("fixed", pins) if pins else SearchStrategyPass()
        passes = Pipeline.of(plan.before.rstrip(","), search, plan.after)
        try:
            run_pipeline(Context(), module, passes, verify_each=False)
        except PassError as error:
            return str(error)
        return module


def _pin(preset: str, axes: Sequence[str]) -> str:
    return f'[[pin]]\npreset = "{preset}"\naxes = {json.dumps(list(axes))}\n'


def judge_all(workshop: Workshop, plans: Sequence[Plain], seconds: float | None = None) -> list[Judged]:
    """Every plan, or as many as `seconds` are enough for."""
    began = perf_counter()
    found: list[Judged] = []
    for plan in plans:
        if seconds is not None and perf_counter() - began > seconds:
            break
        found.append(workshop.judge(plan))
    return found


def need_of(prepared: Prepared) -> float:
    """The bytes that a step takes on one device with no limit."""
    device = Device("any", (("float32", 1e12),), 1e12, 1e18)
    alone = Cluster("alone", Mesh.of(gpu=1), (device,), (0,), (Link("gpu", 0.0, 1e-10),))
    return float(tightest(Workshop(prepared, alone).program(Plain("", "", alone.mesh, (("dp", ("gpu",)),))))[0])
