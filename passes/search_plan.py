"""Search for the whole plan of a step: its mesh, stages, parts of the batch and strategy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
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
from .planning.subclusters import part_of_cluster, parts_of_cluster
from .planning.summary import plan_attribute
from .search.constraints import is_pinned, pin_entries
from .search.pins import add_pins
from .step.requirements import require_no_stages
from .step.step_view import cluster_of_module, step_functions, step_views
from .strip_resharding import strip_resharding

WORTHWHILE = 0.99
"""The part of the fastest step on all devices that one on some of them may take at most."""

WORK_OF_PART = 0.25
"""The part of the usual work that is done on each part of the cluster."""


@dataclass(frozen=True)
class SearchPlanPass(ModulePass):
    """
    Decide on everything, and leave the program of the plan whose simulated step is the shortest.

    A plan is a layout and a strategy on it. Layouts are factorisations of the devices into a mesh, stages of a
    pipeline with their schedule, and parts of the batch: one after the other, or two in turns. Strategies are those
    that people write by hand (data parallelism, ZeRO, tensor parallelism, and these inside one another), and those that
    are optimal where collectives count in part, for what runs beside compute may cost nothing. Each candidate is
    finished by the passes that make a program of it, and simulated; what an estimate shows to be slower than the best
    is not finished. Where devices differ they have shares by their speed. Of what fits in memory the fastest is kept.

    Requires: a `spmd.mesh` and a `spmd.cluster`; a step without stages. Run it after `decompose-mean`; a batch-norm is
    decomposed if that pays. What is pinned (`add-pins`) every candidate obeys; it keeps the mesh, to whose axes pins
    refer.
    Ensures: what `search-strategy`, `partition-stages`, `split-batch`, `insert-resharding`, `select-collectives`,
    `accumulate`, `duplex`, `overlap`, `join-updates`, `schedule-pipeline` and `plan-transfers` ensure, as far as they
    were of use. The mesh may be another one of the same devices. `spmd.plan` on the function has the chosen candidate,
    its seconds, and what became of all others; `spmd.chosen` what is needed to make it again. The same for the same
    input, on any machine, unless `budget` ends the search.

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
          name = "dp", pins = [{preset = "dp", axes = ["gpu"]}],
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

    Source: DESIGN of this project; AMP (stages), HAP (shares), HiDup (two parts in turns), AutoDDL (judged by cost).
    """

    name = "search-plan"

    mesh: str | None = None
    """The sizes of the mesh, as `4x16`, or its named axes; by default the search decides."""

    stages: int | None = None
    """How many stages; 1 for no pipeline."""

    micro_batches: int | None = None
    """Into how many parts the batch is cut, by stages or by accumulation; 1 for none."""

    duplex: Literal["auto", "yes", "no"] = "auto"
    """Whether parts of the batch take turns: `auto` where that is simulated to be faster."""

    keep_activations: int | float | None = None
    """The fraction of the bytes that backward needs of forward that may be kept (`recompute`), 1 for all; by default
    less than all where that makes a faster plan fit."""

    idle: Literal["auto", "no"] = "auto"
    """Whether devices may idle: `auto` where the step is faster without them."""

    ratios: Literal["auto", "even", "balanced"] = "auto"
    """Whether devices that differ may have shares by their speed (`auto`), or must."""

    budget: int | float | None = None
    """Seconds after which no further candidate is begun, and the best so far is the plan."""

    work: int = WORK
    """How many ops the search may go through, where no seconds limit it: its length, by the same count everywhere."""

    processes: int = 1
    """In how many processes of this machine candidates are tried; the plan does not depend on it."""

    algorithm: Literal["auto", "anneal"] = "auto"
    """How candidates are found: `auto` as said above, or `anneal` by AMP's walk over degrees of parallelism and
    placements of stages, with data and tensor parallelism inside them."""

    seed: int = 0
    """The seed of `anneal`."""

    iterations: int | None = None
    """The number of iterations of `anneal`; by default its own."""

    candidate: str | None = None
    """A candidate, as `spmd.chosen`, or a `plan.json`, in a JSON file or as JSON text: it is made again, and nothing is
    searched."""

    adapt: bool = False
    """Whether the candidate may be of another cluster: it is then put on the devices that there are, and searched is
    only where it fits on none of the meshes like its own, or none of them is as the other options ask."""

    bound_rounds: int = 3
    """How many times the lower bound of the step is improved; 0 for none."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on the module, which has one step function."""
        if not (funcs := step_functions(op)):
            return
        for func in funcs:
            require_no_stages(func, self.name)
        strip_resharding(op)
        cluster = cluster_of_module(op)
        try:
            given = self._given(cluster) if self.candidate is not None else None
            fixed = self._fixed(cluster)
            if given is not None and not self.adapt and not _obeys(fixed, given.candidate):
                raise ValueError(f"{self._source} is {given.candidate.name}, asked for was {fixed}; leave one out")
        except ValueError as error:
            raise PassFailedException(str(error)) from error
        if given is not None and given.pins and not is_pinned(op):
            add_pins(op, given.pins)
        pins = pin_entries(funcs[0])
        bench = CandidateCompiler(op, cluster)
        found = self._found(bench, given, fixed)
        if isinstance(found, str):
            fail(funcs[0], found)
        if (ranks := found.best.candidate.layout.ranks) is not None:
            leave_idle(found.best.module, cluster, ranks)
        replace_module(op, found.best.module)
        for func in step_functions(op):
            func.attributes |= found.attributes(pins, cluster.mesh)

    @property
    def _source(self) -> str:
        """Where the candidate comes from, for messages."""
        return "the given candidate" if _is_json(self.candidate or "") else str(self.candidate)

    def _found(self, bench: CandidateCompiler, given: Chosen | None, fixed: LayoutConstraints) -> _FoundPlan | str:
        if given is None:
            return self._searched(bench, fixed)
        if not self.adapt:
            return self._made_again(bench, given.candidate)
        cluster = bench.cluster
        balanced = fixed.balanced is not False and len(cluster.kinds_used) > 1
        count, ranks = cluster.mesh.device_count, given.candidate.layout.ranks
        # Which devices idle on another cluster is for the search to find out.
        as_is = [given.candidate] if ranks is not None and max(ranks) < count else []
        for each in as_is if ranks is not None else resized(given.candidate, count, balanced=balanced):
            if not _obeys(fixed, each):
                continue
            found = self._made_again(bench, each)
            if not isinstance(found, str) and found.best.fits:
                return found
        return self._searched(bench, fixed)

    def _searched(self, bench: CandidateCompiler, fixed: LayoutConstraints) -> _FoundPlan | str:
        """What a search finds, or why it finds nothing."""
        if self.algorithm == "anneal":
            return self._annealed(bench, fixed)
        work = float("inf") if self.budget is not None else float(self.work)
        allowance = Allowance(work, self.budget)
        explorers = [whole := Explorer(bench, fixed, allowance, processes=self.processes)]
        whole.begin()
        for ranks, part in self._parts(bench, fixed):
            own = bench.on(part)
            worth = _worth(explorers, ranks)
            if not allowance.is_late and own.times.least(Layout(part.mesh)) < worth:
                mine = replace(allowance, work=WORK_OF_PART * work, spent=0.0)
                explorers.append(Explorer(own, fixed, mine, processes=self.processes, ranks=ranks))
                explorers[-1].begin(worth)
        found: list[tuple[Finished, CandidateCompiler]] = []
        for each in sorted(explorers, key=lambda each: each.plain):
            # The likeliest devices come first, since their best plan ends the search on the others.
            others = [other for other in explorers if other is not each]
            if (made := each.go_on(_worth(others, each.ranks, expected=False))) is not None:
                found.append((made, each.bench))
        notes = [note for each in explorers for note in each.notes]
        if not found:
            return _why_none(notes, fixed, bench)
        best, bench = min(found, key=lambda each: each[0].seconds * _handicap(each[0].candidate.layout.ranks))
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
        return parts_of_cluster(bench.cluster, bench.times.by_kind)

    def _made_again(self, step: CandidateCompiler, candidate: Candidate) -> _FoundPlan | str:
        """The plan of a candidate that is given, or why there is none."""
        if (ranks := candidate.layout.ranks) is not None:
            if (part := part_of_cluster(step.cluster, ranks)) is None:
                return f"{candidate.name}: cluster {step.cluster.name!r} has no links between these ranks alone"
            step = step.on(part)
        bench = step.keeping(candidate.layout.keep)
        try:
            best = bench.adapted(candidate) if self.adapt else bench.finish(bench.solve(candidate))
            verify(best.module, candidate)
        except Refused as error:
            return f"{candidate.name}, as {self._source} has it, cannot be: {error}"
        note = Note(best.candidate, best.seconds, "" if best.fits else "does not fit", best.exposed, *best.tightest)
        return _FoundPlan(best, [note])

    def _given(self, cluster: Cluster) -> Chosen:
        """The candidate of the file; ValueError where it has none, or one for another number of devices."""
        try:
            text = self.candidate or ""
            read = json.loads(text if _is_json(text) else read_text(text))
            given = Chosen.read(read.get("chosen_candidate", read), cluster.mesh.name)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self._source}: cannot read a candidate ({type(error).__name__}: {error}); expected the plan.json"
                " of a plan that was searched for, or its entry chosen_candidate"
            ) from error
        layout, count = given.candidate.layout, given.own_mesh.device_count
        if (ranks := layout.ranks) is not None:
            in_range = all(0 <= rank < count for rank in ranks)
            if not in_range or len(set(ranks)) < len(ranks) or len(ranks) != layout.mesh.device_count:
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
        Return a lower bound of the step of a family of plans that includes the best, and a text: the family, and how
        the busiest rank spends the step.
        """
        if not self.bound_rounds:
            return None
        layout, choice = best.candidate.layout, best.candidate.choice
        rounds, target = self.bound_rounds, best.seconds
        # Balanced shares are even if each stage has devices of one kind.
        views = [view for view, _ in step_views(best.module)] if choice.balanced else []
        uneven = any(any(ratios_of(view.func, view.mesh).values()) for view in views)
        if uneven or (layout.mode == "whole" and layout.fused):
            on = " on these ranks alone" if layout.ranks is not None else ""
            found, family = compute_bound(bench), f"any plan{on}, by what there is to compute"
        elif layout.mode == "whole":
            found = plan_bound(bench, [layout.mesh], rounds=rounds, target=target, fused=False).seconds
            on = Layout(layout.mesh, ranks=layout.ranks).name
            family = f"plans on {on} with the batch whole and even shares"
        else:
            found = parts_bound(bench, layout, rounds=rounds, target=target)
            layers = "these layers and " if layout.stages > 1 else ""
            family = f"plans on {layout.name} with {layers}even shares"
        return found, f"{family}; the busiest rank {time_of_busiest(best.simulation)}"

    def _fixed(self, cluster: Cluster) -> LayoutConstraints:
        duplex = {"auto": None, "yes": True, "no": False}[self.duplex]
        if (keep := self.keep_activations) is not None and not 0 <= keep <= 1:
            raise ValueError(f"keep_activations={keep}, expected a fraction between 0 and 1")
        keep = float(keep) if keep is not None else None
        balanced = {"auto": None, "even": False, "balanced": True if len(cluster.kinds_used) > 1 else None}[self.ratios]
        idle = self.idle == "auto"
        return LayoutConstraints(self._mesh(cluster), self.stages, self.micro_batches, duplex, keep, balanced, idle)

    def _mesh(self, cluster: Cluster) -> Mesh | None:
        """The mesh that is asked for; its axes are called as the cluster's where there are as many."""
        if self.mesh is None:
            return None
        asked, own = parse_mesh(self.mesh), cluster.mesh
        if asked.device_count != own.device_count:
            raise ValueError(
                f"mesh {self.mesh} has {asked.device_count} devices, cluster {cluster.name!r} {own.device_count}; the"
                " sizes of the axes must multiply to that"
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
        bound: of the step, and of which plans it is one.
    """

    best: Finished
    notes: list[Note]
    runners_up: list[Candidate] = field(default_factory=list[Candidate])
    bound: tuple[float, str] | None = None

    def attributes(self, pins: Sequence[Pin], own_mesh: Mesh) -> dict[str, Attribute]:
        """What is kept of it on the function."""
        chosen, *others = (
            plain_attribute(Chosen(each, tuple(pins), own_mesh).record())
            for each in (self.best.candidate, *self.runners_up)
        )
        plan = plan_attribute(self.best.candidate.name, self.best.seconds, self.bound, self.notes)
        return {CHOSEN: chosen, PLAN: plan, **({RUNNERS_UP: ArrayAttr(others)} if others else {})}


def _is_json(text: str) -> bool:
    """Whether a candidate is given as text, and not as a file."""
    return text.lstrip().startswith("{")


def _obeys(fixed: LayoutConstraints, candidate: Candidate) -> bool:
    """Whether a candidate is as was decided, its mesh and shares too."""
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
    known = ((each.expected_seconds if expected else each.best_seconds) * _handicap(each.ranks) for each in explorers)
    return min(known, default=inf) / _handicap(ranks)


def _handicap(ranks: tuple[int, ...] | None) -> float:
    """Return the factor for the seconds of a plan on these ranks; None for all. A plan must be worth idle devices."""
    return 1.0 if ranks is None else 1.0 / WORTHWHILE


def _why_none(notes: list[Note], fixed: LayoutConstraints, bench: CandidateCompiler) -> str:
    """Why there is no plan: what came closest to fitting, else the first reason."""
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
        f"no plan obeys what was asked ({fixed}):"
        f" {why or f'no way to divide the {devices} devices and {bench.rows} rows is like that'}"
    )
