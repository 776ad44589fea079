"""Search for the whole plan of a step: its mesh, stages, micro-batches and strategy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from time import perf_counter
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp
from xdsl.ir import Attribute
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from ..dialects.compute import plain_attribute
from ..dialects.ratios import ratios_of
from ..dialects.step import CHOSEN, PLAN, RUNNERS_UP
from ..ir.cluster import Cluster
from ..ir.mesh import Mesh, parse_mesh
from ..ir.pins import Pin
from ..ir.text_file import read_text
from ..ir.units import seconds_text
from .analysis.memory import size_text
from .errors import fail
from .leave_idle import leave_idle
from .pipeline import replace_module
from .planning.anneal import Annealing
from .planning.bound import compute_bound, parts_bound, plan_bound
from .planning.bound_gap import time_of_busiest
from .planning.candidate_compiler import CandidateCompiler, Finished
from .planning.candidates import Candidate, Layout, resized
from .planning.explore import WORK, Explorer
from .planning.layouts import LayoutConstraints, impossible
from .planning.notes import LOG, Allowance, Note, Refused, verify
from .planning.records import Chosen
from .planning.subclusters import part_of_cluster, parts_of_cluster, total_memory
from .planning.summary import plan_attribute
from .search.constraints import is_pinned, pin_entries
from .search.pins import add_pins
from .step.requirements import require_no_stages
from .step.step_view import cluster_of_module, step_functions, step_views
from .strip_resharding import strip_resharding

WORTHWHILE = 0.99
"""A plan that leaves devices idle must take at most this fraction of the time of the fastest plan on all devices."""

WORK_OF_PART = 0.25
"""Fraction of the usual work that is spent on each part of the cluster but the likeliest."""


@dataclass(frozen=True)
class SearchPlanPass(ModulePass):
    """
    Decide on the whole plan, and write the program with the shortest simulated step.

    A plan is a layout and a strategy on it. Layouts are factorisations of the devices into a mesh, pipeline stages with
    their schedule, and micro-batches that run in sequence or interleaved in pairs. Strategies are the common
    hand-written ones (data parallelism, ZeRO, tensor parallelism, and combinations of them), and strategies that are
    optimal when collectives count only in part, because they may overlap with computation. Each candidate is compiled
    to a program and simulated, unless an estimate shows that it is slower than the best. On unequal devices, shares
    follow speed. The fastest candidate that fits in memory is kept.

    Requires: a `spmd.mesh` and a `spmd.cluster`; a step without stages. Run it after `decompose-mean`; a batch-norm is
    decomposed if that pays. Every candidate obeys the pins (`add-pins`); with pins the mesh stays, because pins refer
    to its axes.
    Ensures: the guarantees of `search-strategy`, `partition-stages`, `split-batch`, `insert-resharding`,
    `select-collectives`, `accumulate`, `duplex`, `overlap`, `join-updates`, `schedule-pipeline` and `plan-transfers`,
    as far as the plan uses them. The mesh may be another mesh of the same devices. `spmd.plan` on the function has the
    chosen candidate, its seconds, and the results of all others; `spmd.chosen` has the data to compile it again. The
    result is the same for the same input, on any machine, unless `budget` ends the search.

    Pipeline: search-plan{budget=0 bound_rounds=0}

    Before:
    ```mlir
    #cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
    #link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]
    func.func @step(%x: tensor<64x32xf32> {train.batch = "0"}) -> tensor<64x32xf32> {
      %y = aten.relu %x : (tensor<64x32xf32>) -> tensor<64x32xf32>
      func.return %y : tensor<64x32xf32>
    }
    ```

    After:
    ```mlir
    #cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
    #link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
    #rows = #spmd.sharding<@mesh, [{"gpu"}, {}]>
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]
    func.func @step(%x: tensor<64x32xf32> {train.batch = "0", spmd.sharding = #rows})
        -> (tensor<64x32xf32> {spmd.sharding = #rows}) attributes {
      spmd.chosen = {
        mesh = {gpu = 2 : i64}, mode = "whole", parts = 1 : i64, stages = 1 : i64, fused = false,
        choice = {
          pins = [{preset = "dp", axes = ["gpu"]}],
          weights = {contractions = 1.0 : f64, others = 0.0 : f64, parameters = 1.0 : f64, activations = 1.0 : f64,
            bucketed = false},
          balanced = false, fits = false
        },
        pins = [], own_mesh = {gpu = 2 : i64}
      },
      spmd.plan = {
        chosen = "dp on 2", step = 8.192e-06 : f64,
        candidates = [{
          name = "dp on 2", why = "", family = {mode = "whole", strategy = "dp", mesh = {gpu = 2 : i64},
            balanced = false},
          step = 8.192e-06 : f64, exposed = 0.0 : f64, peak_bytes = 8192 : i64, memory_bytes = 1.0e9 : f64
        }]
      }
    } {
      %y = aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}])>}
        : (tensor<64x32xf32>) -> tensor<64x32xf32>
      func.return %y : tensor<64x32xf32>
    }
    ```

    Source: DESIGN of this project; AMP (stages), HAP (shares), HiDup (interleaving), AutoDDL (choice by cost).
    """

    name = "search-plan"

    mesh: str | None = None
    """The sizes of the mesh, as `4x16`, or its named axes; by default the search decides."""

    stages: int | None = None
    """Number of stages; 1 for no pipeline."""

    micro_batches: int | None = None
    """Number of micro-batches, with stages or accumulation; 1 for none."""

    duplex: Literal["auto", "yes", "no"] = "auto"
    """Whether micro-batches are interleaved; `auto` if that is faster in simulation."""

    keep_activations: int | float | None = None
    """Fraction of the bytes from forward to backward that may be kept (`recompute`), 1 for all; by default less than
    all if a faster plan then fits."""

    idle: Literal["auto", "no"] = "auto"
    """Whether devices may idle; `auto` if the step is faster without them."""

    ratios: Literal["auto", "even", "balanced"] = "auto"
    """Whether unequal devices may have shares by their speed (`auto`), must not (`even`) or must (`balanced`)."""

    budget: int | float | None = None
    """Seconds after which no further candidate is tried, and the best so far is the plan."""

    work: int = WORK
    """Number of ops that the search may process if `budget` is not set: its length, the same on every machine."""

    processes: int = 1
    """Number of processes of this machine that try candidates; the plan does not depend on it."""

    algorithm: Literal["auto", "anneal"] = "auto"
    """How candidates are found: `auto` as described above, or `anneal` by AMP's walk over degrees of parallelism and
    placements of stages, with data and tensor parallelism inside them."""

    seed: int = 0
    """The seed of `anneal`."""

    iterations: int | None = None
    """The number of iterations of `anneal`; by default its own."""

    candidate: str | None = None
    """A candidate to compile without a search: `spmd.chosen` or a `plan.json`, as a JSON file or as JSON text."""

    adapt: bool = False
    """Whether the candidate may be for another cluster. It is then adapted to the devices, or to the ranks that it
    names. A search runs if no mesh similar to its own fits and agrees with the other options, or if the cluster lacks a
    rank."""

    bound_rounds: int = 3
    """Number of times that the lower bound of the step is improved; 0 for no bound."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on the module, which has one step function."""
        if not (funcs := step_functions(op)):
            return
        for func in funcs:
            require_no_stages(func, self.name)
        strip_resharding(op)
        cluster = cluster_of_module(op)
        try:
            chosen = self._given(cluster) if self.candidate is not None else None
            fixed = self._fixed(cluster)
            if chosen is not None and not self.adapt and not _obeys(fixed, chosen.candidate):
                raise ValueError(f"{self._source} is {chosen.candidate.name}, but options say {fixed}; leave one out")
        except ValueError as error:
            raise PassFailedException(str(error)) from error
        if chosen is not None and chosen.pins and not is_pinned(op):
            add_pins(op, chosen.pins)
        pins = pin_entries(funcs[0])
        bench = CandidateCompiler(op, cluster)
        began = perf_counter()
        result = self._found(bench, chosen, fixed)
        if isinstance(result, str):
            fail(funcs[0], result)
        if chosen is None or self.adapt:
            LOG.info("%s", result.text(perf_counter() - began))
        if (ranks := result.best.candidate.layout.ranks) is not None:
            leave_idle(result.best.module, cluster, ranks)
        replace_module(op, result.best.module)
        for func in step_functions(op):
            func.attributes |= result.attributes(pins, cluster.mesh)

    @property
    def _source(self) -> str:
        """The origin of the candidate, for messages."""
        return "the given candidate" if _is_json(self.candidate or "") else str(self.candidate)

    def _found(self, bench: CandidateCompiler, given: Chosen | None, fixed: LayoutConstraints) -> _FoundPlan | str:
        if given is None:
            return self._searched(bench, fixed)
        if not self.adapt:
            return self._made_again(bench, given.candidate)
        cluster, ranks = bench.cluster, given.candidate.layout.ranks
        count = cluster.mesh.device_count
        if ranks is not None and max(ranks) >= count:
            # A search chooses the devices.
            return self._searched(bench, fixed)
        kinds = {cluster.placement[rank] for rank in (range(count) if ranks is None else ranks)}
        balanced = fixed.balanced is not False and len(kinds) > 1
        for candidate in resized(given.candidate, count if ranks is None else len(ranks), balanced=balanced):
            if not _obeys(fixed, candidate):
                continue
            result = self._made_again(bench, candidate)
            if not isinstance(result, str) and result.best.fits:
                return result
        return self._searched(bench, fixed)

    def _searched(self, bench: CandidateCompiler, fixed: LayoutConstraints) -> _FoundPlan | str:
        """Return the plan that a search finds, or why it finds none."""
        if (lasting := bench.lasting_bytes) > (memory := total_memory(bench.cluster)):
            return (
                f"no plan fits: parameters and optimizer states take {size_text(lasting)}, and all devices have"
                f" {size_text(memory)} together; use more devices or a smaller model"
            )
        if self.algorithm == "anneal":
            return self._annealed(bench, fixed)
        work = float("inf") if self.budget is not None else float(self.work)
        allowance = Allowance(work, self.budget)
        explorers = [whole := Explorer(bench, fixed, allowance, processes=self.processes)]
        whole.begin()
        finished: list[tuple[Finished, CandidateCompiler]] = []
        if is_tight := whole.expected_seconds == inf:
            # Parts of the cluster have less memory, so they come after a plan for all devices that fits.
            finished += [(plan, bench)] if (plan := whole.go_on()) is not None else []
        for ranks, part in self._parts(bench, fixed):
            own = bench.on(part)
            worth = _worth(explorers, ranks)
            if not allowance.is_late and own.times.least(Layout(part.mesh)) < worth:
                share = replace(allowance, work=WORK_OF_PART * work, spent=0.0)
                explorers.append(Explorer(own, fixed, share, processes=self.processes, ranks=ranks))
                explorers[-1].begin(worth)
        order = sorted(explorers[1:] if is_tight else explorers, key=lambda explorer: explorer.plain)
        for explorer in order[:1]:
            explorer.allowance.work = work
        for explorer in order:
            # The likeliest devices come first, since their best plan ends the search on the others.
            others = [other for other in explorers if other is not explorer]
            if (plan := explorer.go_on(_worth(others, explorer.ranks, expected=False))) is not None:
                finished.append((plan, explorer.bench))
        notes = [note for explorer in explorers for note in explorer.notes]
        if not finished:
            return _why_none(notes, fixed, bench)
        best, bench = min(finished, key=lambda pair: pair[0].seconds * _handicap(pair[0].candidate.layout.ranks))
        if (layout := best.candidate.layout).parts > 1:
            cut, ops = bench.in_parts(unrolled=layout.mode == "duplex")
            LOG.info("%s: %d of %d ops work on parts of the batch, the others once", best.candidate.name, cut, ops)
        return _FoundPlan(best, notes, whole.runners_up(best.candidate, notes), self._bound(bench, best))

    def _annealed(self, bench: CandidateCompiler, fixed: LayoutConstraints) -> _FoundPlan | str:
        """Return the plan that AMP's walk finds, or why it finds none."""
        if fixed.mesh is not None or bench.is_pinned:
            return "algorithm=anneal decides on the mesh itself; leave out mesh and pins, or take algorithm=auto"
        walk = Annealing(bench, fixed, seed=self.seed, budget=self.iterations, processes=self.processes)
        if (best := walk.run()) is None:
            return _why_none(walk.notes, fixed, bench)
        return _FoundPlan(best, walk.notes, bound=self._bound(bench, best))

    def _parts(self, bench: CandidateCompiler, fixed: LayoutConstraints) -> list[tuple[tuple[int, ...], Cluster]]:
        """Return the parts of the cluster that the step may run on alone."""
        if not fixed.idle or fixed.mesh is not None or bench.is_pinned:
            return []
        return parts_of_cluster(bench.cluster, bench.times.by_kind, bench.lasting_bytes)

    def _made_again(self, step: CandidateCompiler, candidate: Candidate) -> _FoundPlan | str:
        """Return the plan of a given candidate, or why it is impossible."""
        if (ranks := candidate.layout.ranks) is not None:
            if (part := part_of_cluster(step.cluster, ranks)) is None:
                return f"{candidate.name}: cluster {step.cluster.name!r} has no links between these ranks alone"
            step = step.on(part)
        bench = step.keeping(candidate.layout.keep)
        try:
            best = bench.adapted(candidate) if self.adapt else bench.finish(bench.solve(candidate))
            verify(best.module, candidate)
        except Refused as error:
            return f"{candidate.name}, from {self._source}, is impossible: {error}"
        note = Note(best.candidate, best.seconds, "" if best.fits else "does not fit", best.exposed, *best.tightest)
        return _FoundPlan(best, [note])

    def _given(self, cluster: Cluster) -> Chosen:
        """Return the given candidate. Raises ValueError if there is none, or if it is for another number of devices."""
        try:
            text = self.candidate or ""
            read = json.loads(text if _is_json(text) else read_text(text))
            given = Chosen.read(read.get("chosen_candidate", read), cluster.mesh.name)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self._source}: cannot read a candidate ({type(error).__name__}: {error}); expected the plan.json"
                " of a search, or its entry chosen_candidate"
            ) from error
        layout, count = given.candidate.layout, given.own_mesh.device_count
        if (ranks := layout.ranks) is not None:
            are_ranks = min(ranks, default=-1) >= 0 and len(set(ranks)) == len(ranks)
            fit = all(rank < count for rank in ranks) and len(ranks) == layout.mesh.device_count
            if not are_ranks or not (fit or self.adapt):
                raise ValueError(
                    f"{self._source}: ranks {list(ranks)}: expected {layout.mesh.device_count} different ranks of"
                    f" {count}, one for each device of the candidate's mesh"
                )
        if not self.adapt and count != cluster.mesh.device_count:
            raise ValueError(
                f"{self._source}: the candidate is for {count} devices, cluster {cluster.name!r} has"
                f" {cluster.mesh.device_count}; search again"
            )
        return given

    def _bound(self, bench: CandidateCompiler, best: Finished) -> tuple[float, str] | None:
        """
        Return a lower bound of the step of a family of plans that includes the best, and a text.

        The text names the family, and says how the busiest rank spends the step.
        """
        if not self.bound_rounds:
            return None
        layout, choice = best.candidate.layout, best.candidate.choice
        rounds, target = self.bound_rounds, best.seconds
        # Balanced shares are even if each stage has devices of one kind.
        views = [view for view, _ in step_views(best.module)] if choice.balanced else []
        uneven = any(any(ratios_of(view.func, view.mesh).values()) for view in views)
        if uneven:
            on = " on these ranks alone" if layout.ranks is not None else ""
            bound, family = compute_bound(bench), f"any plan{on}, by what there is to compute"
        elif layout.mode == "whole":
            of_family = Layout(layout.mesh, fused=layout.fused, ranks=layout.ranks)
            bound = plan_bound(bench, [of_family], rounds=rounds, target=target).seconds
            family = f"plans on {of_family.name}, with the batch whole and even shares"
        else:
            bound = parts_bound(bench, layout, rounds=rounds, target=target)
            layers = "these layers and " if layout.stages > 1 else ""
            family = f"plans on {layout.name}, with {layers}even shares"
        return bound, f"{family}; the busiest rank {time_of_busiest(best.simulation)}"

    def _fixed(self, cluster: Cluster) -> LayoutConstraints:
        duplex = {"auto": None, "yes": True, "no": False}[self.duplex]
        if (keep := self.keep_activations) is not None and not 0 <= keep <= 1:
            raise ValueError(f"keep_activations={keep}, expected a fraction between 0 and 1")
        keep = float(keep) if keep is not None else None
        balanced = {"auto": None, "even": False, "balanced": True if len(cluster.kinds_used) > 1 else None}[self.ratios]
        idle = self.idle == "auto"
        return LayoutConstraints(self._mesh(cluster), self.stages, self.micro_batches, duplex, keep, balanced, idle)

    def _mesh(self, cluster: Cluster) -> Mesh | None:
        """Return the mesh of the option; its axes have the cluster's names if there are as many."""
        if self.mesh is None:
            return None
        asked, own = parse_mesh(self.mesh), cluster.mesh
        if asked.device_count != own.device_count:
            raise ValueError(
                f"mesh {self.mesh} has {asked.device_count} devices, but cluster {cluster.name!r} has"
                f" {own.device_count}; the product of the axis sizes must be the same"
            )
        if "=" not in self.mesh and len(asked.axes) == len(own.spatial):
            sizes = (axis.size for axis in asked.axes)
            return Mesh.of(**dict(zip((axis.name for axis in own.spatial), sizes, strict=True)))
        return asked


@dataclass(frozen=True)
class _FoundPlan:
    """
    A plan, and the results of the other candidates.

    Args:
        bound: lower bound of the step in seconds, and the plans that it holds for.
    """

    best: Finished
    notes: list[Note]
    runners_up: list[Candidate] = field(default_factory=list[Candidate])
    bound: tuple[float, str] | None = None

    def text(self, seconds: float) -> str:
        """Return a line about a search that took `seconds`: the number of candidates, the best one and the bound."""
        bound = f"; the lower bound is {seconds_text(self.bound[0])}" if self.bound is not None else ""
        best = f"{self.best.candidate.name}, {seconds_text(self.best.seconds)}"
        return f"searched {len(self.notes)} candidates in {seconds_text(seconds)}: best {best}{bound}"

    def attributes(self, pins: Sequence[Pin], own_mesh: Mesh) -> dict[str, Attribute]:
        """Return the attributes of the function that record the plan."""
        chosen, *others = (
            plain_attribute(Chosen(candidate, tuple(pins), own_mesh).record())
            for candidate in (self.best.candidate, *self.runners_up)
        )
        plan = plan_attribute(self.best.candidate.name, self.best.seconds, self.bound, self.notes)
        return {CHOSEN: chosen, PLAN: plan, **({RUNNERS_UP: ArrayAttr(others)} if others else {})}


def _is_json(text: str) -> bool:
    """Return whether a candidate is JSON text rather than a file name."""
    return text.lstrip().startswith("{")


def _obeys(fixed: LayoutConstraints, candidate: Candidate) -> bool:
    """Return whether a candidate obeys the constraints, including mesh and shares."""
    layout = candidate.layout
    sizes = [axis.size for axis in layout.mesh.spatial]
    if fixed.balanced is not None and candidate.choice.balanced != fixed.balanced:
        return False
    if fixed.keep is not None and layout.keep != fixed.keep:
        return False
    return fixed.allows(layout) and (fixed.mesh is None or sizes == [axis.size for axis in fixed.mesh.spatial])


def _worth(explorers: Sequence[Explorer], ranks: tuple[int, ...] | None, *, expected: bool = True) -> float:
    """
    Return the seconds that a plan on some ranks, or on all, must beat.

    Args:
        expected: whether the estimates of short steps count as well.
    """
    limits = ((each.expected_seconds if expected else each.best_seconds) * _handicap(each.ranks) for each in explorers)
    return min(limits, default=inf) / _handicap(ranks)


def _handicap(ranks: tuple[int, ...] | None) -> float:
    """Return the factor for the seconds of a plan on these ranks, or on all if None: idle devices must pay off."""
    return 1.0 if ranks is None else 1.0 / WORTHWHILE


def _why_none(notes: list[Note], fixed: LayoutConstraints, bench: CandidateCompiler) -> str:
    """Return why there is no plan: the candidate closest to fitting, otherwise the first reason."""
    tight = [note for note in notes if note.peak_bytes is not None]
    if tight:
        least = min(tight, key=lambda note: note.peak_bytes or 0)
        return (
            f"no plan fits: of {len(notes)} candidates {least.candidate.name} needs the least,"
            f" {size_text(least.peak_bytes or 0)} on a device that has {size_text(least.memory_bytes)}; use more"
            " devices, a smaller batch or a smaller model"
        )
    first = next((f"{note.candidate.name}: {note.why}" for note in notes if note.why), None)
    devices = bench.cluster.mesh.device_count
    why = impossible(fixed, devices, bench.rows, bench.layers) or first
    return (
        f"no plan obeys the options ({fixed}):"
        f" {why or f'the {devices} devices and {bench.rows} rows cannot be divided in this way'}"
    )
