"""The phases of the search over candidates. Each phase uses the results of the earlier ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf

from ...ir.mesh import Mesh
from .candidate_compiler import Finished
from .candidates import (
    ADDITIVE,
    DATA_PARALLEL,
    FIRST,
    HIDING,
    Candidate,
    Choice,
    Layout,
    axes_of,
    preset,
    presets,
    searched,
)
from .layouts import accumulations, duplexes, finer_meshes, pipelines
from .memory_phases import FAR, MUCH, REFINED, MemoryPhases, step_of
from .notes import Note
from .race import AT_ONCE, LEAST_GAIN

MORE = (
    searched(0.25, 1.0),
    searched(0.1, 1.0, bucketed=False),
    searched(0.5, 1.0, bucketed=False),
    searched(0.5, 0.7),
    searched(0.05, 0.7, bucketed=False),
    searched(0.25, 0.5, bucketed=False),
)
"""The objectives of further searches on the best layouts."""

WORK = 30_000
"""Default limit of the work of a search, in ops of programs; an alternative of a problem counts `STATE` ops."""

MOST_PIPELINES = 6
"""Number of pipeline layouts that are searched."""

LIKELY = 2
"""Number of pipeline layouts that are tried at first."""

CHUNKABLE = ("whole", "accumulate")
"""The modes of layouts whose products may be cut in parts."""

FINALISTS = 6
"""The most candidates judged by short steps whose whole step is simulated, in twos, while estimates are close."""

NEAR = 0.05
"""Candidates slower than the fastest by at most this fraction may have faster neighbours than it has."""

NEARLY_FITS = 2.0
"""A strategy that takes at most this multiple of the memory may be changed to fit at little cost."""

SHORT_STEPS_ERR = 0.1
"""The part of an estimate by short steps that the whole step may save (0.083: `gpt2-48` on `h100-8x8`)."""

PIPELINE_ERR = 0.25
"""A pipeline is of interest if its estimate is longer than the fastest pipeline's by at most this fraction."""


class Explorer(MemoryPhases):
    """Enters candidates into a race, phase by phase; an instance is used once."""

    plain = inf
    """Seconds of the fastest first candidate: data parallelism, the usual search or a likely pipeline."""

    @property
    def shares(self) -> bool:
        """Return whether the search decides if devices have equal shares."""
        return len(self.cluster.kinds_used) > 1 and self.fixed.balanced is None

    def run(self) -> Finished | None:
        """Return the best plan. The order of phases does not depend on wall time."""
        self.begin()
        return self.go_on()

    def begin(self, worth: float = inf) -> None:
        """
        Try the first candidates.

        Args:
            worth: the seconds of a step on other devices that a plan must beat.
        """
        self.worth = worth
        for batch in self._first_batches():
            # The first candidates on a part of the cluster show whether it is of use, so they ignore the allowance.
            self._enter(batch, to_the_end=self.ranks is not None)
        self.plain = min((note.seconds for note in self.notes if note.seconds is not None), default=inf)

    def go_on(self, worth: float = inf) -> Finished | None:
        """
        Try all further candidates, and return the best plan if it beats `worth`.

        The search ends if the first candidates are slower than a known step and leave devices idle, or if they use all
        devices and are far slower. Plans by hand on all devices are tried in any case.
        """
        self.worth = worth
        is_unknown = inf in (worth, self.plain)
        is_likely = is_unknown or self.plain < worth * (FAR if self.ranks is None else 1.0)
        if is_likely and not self._is_over:
            for batch in self._later_batches():
                self._enter(batch)
                if self._is_over:
                    break
        is_of_use = self.best is not None or self.ranks is None or self._too_large()
        if is_of_use and not self.allowance.is_late:
            # Plans that people would write by hand are always compared, however early the search ends.
            for batch in self._by_hand():
                self._enter(batch, to_the_end=True)
        for _ in range(0, FINALISTS, AT_ONCE):
            close = [it for it in self.estimates.values() if (1.0 - SHORT_STEPS_ERR) * it < self._limit]
            self._finish_estimated(min(len(close), AT_ONCE))
        while self.best is None and self.estimates and worth == inf:
            # The whole step may need more memory than its short steps predict.
            self._finish_estimated(1)
        return self._verified() if self.best_seconds < worth else None

    def runners_up(self, chosen: Candidate, notes: Sequence[Note]) -> list[Candidate]:
        """
        Return the fastest simulated candidate of each family except the chosen one, the fastest first. Candidates
        slower than `FAR` times the fastest are left out, except data parallelism.
        """
        plain = self._data_parallel().family
        fitting = [note for note in notes if note.exposed is not None and note.why != "does not fit"]
        limit = FAR * min((step_of(note) for note in fitting), default=0.0)
        runners: dict[tuple[str, str], Candidate] = {}
        for note in sorted(fitting, key=step_of):
            family = note.candidate.family
            if step_of(note) <= limit or family == plain:
                runners.setdefault((family["mode"], family["strategy"]), note.candidate)
        runners.pop((chosen.family["mode"], chosen.family["strategy"]), None)
        return list(runners.values())

    def _enter(self, batch: Iterable[Candidate], *, to_the_end: bool = False) -> None:
        """Consider the candidates of a batch that the user's decisions allow."""
        asked = dict.fromkeys(map(self._as_asked, batch))
        self.consider([candidate for candidate in asked if self._is_open(candidate)], to_the_end=to_the_end)

    def _first_batches(self) -> Iterator[list[Candidate]]:
        """Yield plain candidates on the cluster's own mesh."""
        own = Layout(self.meshes[0])
        yield [self._data_parallel()]
        if self.bench.has_batch_norm:
            yield [replace(self._data_parallel(), layout=replace(own, fused=True))]
        if self.shares:
            yield [self._data_parallel(balanced=True)]
        yield [Candidate(own, self._usual())]
        yield list(self._likely_pipelines())

    def _later_batches(self) -> Iterator[list[Candidate]]:
        """Yield all further phases, each by the results of the phases before it."""
        own = Layout(self.meshes[0])
        yield [Candidate(Layout(mesh), self._usual()) for mesh in self.meshes[1:]]
        yield [Candidate(own, choice) for choice in presets(own.mesh)]
        if self.best is None and not self.estimates:
            # A plan that fits ends many of the other trials early.
            yield list(self._tensor_parallel())
            yield list(self._accumulated())
            yield from self._finer_parts()
            yield list(self._gathered_per_part())
            yield from self._keeping_less()
            yield list(self._within_memory())
        yield [replace(leader, choice=choice) for leader in self._leaders(REFINED, LEAST_GAIN) for choice in FIRST]
        yield list(self._balanced())
        yield list(self._on_three_axes())
        yield list(self._over_time())
        yield list(self._in_stages())
        yield list(self._fused())
        yield from self._keeping_less()
        yield list(self._within_memory())
        yield list(self._refinements())
        yield list(self._hiding())
        yield list(self._other_turns())
        yield from self._neighbours()
        for mesh in self.meshes:
            yield [Candidate(Layout(mesh), choice) for choice in presets(mesh)]
        yield list(self._within_memory())

    def _by_hand(self) -> Iterator[Iterable[Candidate]]:
        """Yield the plans that people would write: presets, `search-strategy`, HAP's algorithm, and ways to fit."""
        own = Layout(self.meshes[0])
        yield self._tensor_parallel()
        layouts = (own, replace(own, fused=True)) if self.bench.has_batch_norm else (own,)
        yield (Candidate(layout, choice) for layout in layouts for choice in presets(own.mesh))
        in_a_row = [mesh for mesh in self.meshes[1:] if len(mesh.axes) == 1]
        layouts = (*layouts, *map(Layout, in_a_row))
        additive = [ADDITIVE, replace(ADDITIVE, balanced=True)] if self._gains_by_shares else [ADDITIVE]
        for choice in additive:
            yield (Candidate(layout, choice) for layout in layouts)
        yield self._within_memory(most=NEARLY_FITS)
        refused = [note for note in self.notes if note.seconds is None and note.same_as is None]
        large = {(note.candidate.layout, note.candidate.choice.balanced) for note in (*self._too_large(), *refused)}
        for choice in additive:
            tried = (self._as_asked(Candidate(layout, choice)) for layout in layouts)
            yield (
                replace(it, choice=replace(choice, fits=True)) for it in tried if (it.layout, choice.balanced) in large
            )
        yield self._accumulated()
        yield from self._finer_parts()
        yield self._gathered_per_part()
        # A candidate that fits should keep as many activations as memory allows.
        yield from self._keeping_less()
        yield from self._close_pipelines()
        yield (near for leader in self._leaders(1) for near in _with_tensor_parallel_products(leader))
        yield self._in_parts()

    @property
    def _gains_by_shares(self) -> bool:
        """Return whether shares by speed are worth a trial: devices differ, and data parallelism gains by them."""
        if not self.shares:
            return False
        even, balanced = (self._known(self._data_parallel(balanced=is_balanced)) for is_balanced in (False, True))
        return even is None or balanced is None or step_of(balanced) < (1.0 - LEAST_GAIN) * step_of(even)

    def _data_parallel(self, *, balanced: bool = False) -> Candidate:
        """Return data parallelism over all devices, with equal shares or with shares by speed."""
        own = self.meshes[0]
        return self._as_asked(Candidate(Layout(own), replace(preset(("dp", axes_of(own))), balanced=balanced)))

    def _known(self, candidate: Candidate) -> Note | None:
        """Return the note of a candidate, or None if it was not tried or is infeasible."""
        return next((note for note in self.notes if note.candidate == candidate and note.seconds is not None), None)

    def _usual(self) -> Choice:
        """Return the first objective of layouts, by how much communication data parallelism can hide."""
        dp = self._known(self._data_parallel())
        if dp is None:
            return FIRST[0]
        exposed = dp.exposed if dp.exposed is not None else step_of(dp) - self._least
        return FIRST[0] if exposed <= MUCH * step_of(dp) else FIRST[1]

    def _on_three_axes(self) -> Iterator[Candidate]:
        """Yield candidates on the meshes of three axes that divide an axis of the best mesh of two axes."""
        if len(self.meshes) == 1 or self.expected_seconds == inf:
            return
        leaders = (leader.layout.mesh for leader in self._leaders(len(self.notes)))
        best = next((mesh for mesh in leaders if len(mesh.axes) == 2), None)
        for mesh in finer_meshes(best) if best is not None else ():
            # The refinements try the other objectives on the best of these meshes, whose problems are large.
            yield from (Candidate(Layout(mesh), choice) for choice in (self._usual(), *presets(mesh)))

    def _over_time(self) -> Iterator[Candidate]:
        """Yield the most promising pipelines and accumulations, which cut the batch into parts."""
        own, rows = self.meshes[0], self.bench.rows
        if (refusal := self.bench.cut_refusal()) is None:
            best = next((leader.layout.mesh for leader in self._leaders(1)), own)
            for mesh in dict.fromkeys((own, best)):
                yield from self._promising(pipelines(mesh, rows, self.bench.layers, self.fixed), MOST_PIPELINES)
            if self.fixed.micro_batches is not None:
                yield from self._promising(accumulations(own, rows, self.fixed), REFINED)
        else:
            parts, stages = self.fixed.micro_batches or 2, max(self.fixed.stages or 2, 2)
            self._refuse((Layout(own, "pipeline", parts, stages), Layout(own, "accumulate", parts)), refusal)

    def _likely_pipelines(self) -> Iterator[Candidate]:
        """Yield the few pipelines with the lowest estimates, if these are below the best step."""
        if self.bench.cut_refusal() is None:
            layouts = pipelines(self.meshes[0], self.bench.rows, self.bench.layers, self.fixed)
            times = self.bench.times
            possible = (it for it in layouts if self.fixed.allows(it) and not self._is_worse(times.least(it)))
            estimates = {layout: times.estimated(layout) for layout in possible}
            likely = sorted(estimates, key=estimates.__getitem__)[:LIKELY]
            yield from (Candidate(layout, self._usual()) for layout in likely if not self._is_worse(estimates[layout]))

    def _in_stages(self) -> Iterator[Candidate]:
        """Yield the best pipelines, with presets over the axes that all stages have in common."""
        pipelines = [leader for leader in self._leaders(len(self.notes)) if leader.layout.mode == "pipeline"]
        for leader in pipelines[:REFINED]:
            meshes = [view.mesh for view, _ in self.bench.keeping(leader.layout.keep).laid_out(leader.layout)]
            common = [axis for axis in meshes[0].spatial if all(axis in mesh.spatial for mesh in meshes)]
            for choice in presets(Mesh(tuple(common))) if common else ():
                yield replace(leader, choice=choice)

    def _close_pipelines(self) -> Iterator[list[Candidate]]:
        """
        Yield the likeliest pipelines, also with fewer activations if they do not fit. Their estimates are close to the
        estimate of the fastest candidate, if that is a pipeline, or far below its step; two slow pipelines then end
        the phase.
        """
        best = next(iter(self._leaders(1)), None)
        note = self._known(best) if best is not None else None
        if best is None or note is None or self._is_worse(step_of(note) / FAR) or self.bench.cut_refusal() is not None:
            return
        times, known = self.bench.times, {note.candidate for note in self.notes}
        limit = step_of(note) / FAR
        if is_pipeline := best.layout.mode == "pipeline":
            limit = max(limit, (1.0 + PIPELINE_ERR) * times.estimated(best.layout))
        else:
            best = Candidate(Layout(self.meshes[0]), self._usual())
        layouts = pipelines(best.layout.mesh, self.bench.rows, self.bench.layers, self.fixed)
        possible = (it for it in layouts if self.fixed.allows(it) and times.least(it) <= limit)
        close = sorted((it for it in possible if times.estimated(it) <= limit), key=times.estimated)
        others = [replace(best, layout=replace(it, fused=best.layout.fused)) for it in close]
        others = [it for it in others if self._is_open(self._as_asked(it))][:MOST_PIPELINES]
        for at in range(0, len(others), AT_ONCE):
            if self.allowance.is_late:
                return
            count, step = len(self.notes), self._known_seconds
            yield others[at : at + AT_ONCE]
            is_slow = all(note.seconds is None or note.seconds >= step for note in self.notes[count:])
            if is_slow and not is_pipeline:
                # The estimates do not apply to this step.
                break
        yield from self._keeping_less(known)

    def _hiding(self) -> Iterator[Candidate]:
        """
        Yield candidates that hide collectives of activations, by products in parts or by parts that take turns: the
        best whole-batch candidates, strategies that prefer such collectives, and presets with tensor parallelism, for
        turns also with the other ops searched. If the user asks for duplex, yield all presets.
        """
        own = Layout(self.meshes[0])
        best = [leader for leader in self._leaders(REFINED) if leader.layout.mode == "whole"]
        by_hand = [it for it in presets(own.mesh) if self.fixed.duplex or any(pin.preset == "tp" for pin in it.pins)]
        plain = [*best, *(Candidate(own, choice) for choice in (*HIDING, *by_hand))]
        for leader in best[:1]:
            plain += [_searching(leader, option) for option in HIDING]
        hidden = [replace(it, layout=replace(it.layout, chunked=True)) for it in plain]
        # A search that keeps the preset's products and lets other ops prefer these collectives.
        pinned = [Candidate(own, replace(it, weights=HIDING[0].weights)) for it in by_hand]
        turns = [replace(it, layout=replace(it.layout, mode="duplex", parts=2)) for it in (*plain, *pinned)]
        if (refusal := self.bench.cut_refusal(unrolled=True)) is None:
            hidden += turns
        else:
            self._refuse((Layout(own.mesh, "duplex", 2),), refusal)
        yield from (it for it in hidden if not self._is_worse(self.bench.times.least(it.layout)))

    def _in_parts(self) -> Iterator[Candidate]:
        """Yield the best candidate that may have products in parts, if it may win with all its communication hidden."""
        leaders = [leader for leader in self._leaders(len(self.notes)) if leader.layout.mode in CHUNKABLE]
        for leader in leaders[:1]:
            note = self._known(leader)
            if note is not None and step_of(note) - (note.exposed or 0.0) < (1.0 - LEAST_GAIN) * self._known_seconds:
                yield replace(leader, layout=replace(leader.layout, chunked=True))

    def _other_turns(self) -> Iterator[Candidate]:
        """Yield other numbers of parts that take turns: of the best search, the best preset, and the best of both."""
        simulated = (note for note in self.notes if note.exposed is not None and note.candidate.layout.mode == "duplex")
        best: dict[tuple[bool, bool], Candidate] = {}
        for note in sorted(simulated, key=step_of):
            choice = note.candidate.choice
            best.setdefault((bool(choice.pins), choice.is_completion), note.candidate)
        for candidate in best.values():
            for layout in duplexes(candidate.layout.mesh, self.bench.rows, self.fixed):
                yield replace(candidate, layout=replace(candidate.layout, parts=layout.parts))

    def _refuse(self, layouts: Iterable[Layout], why: str) -> None:
        """Log why all layouts of a kind are infeasible, for one layout that represents the kind."""
        for layout in filter(self.fixed.allows, layouts):
            self._log(Note(Candidate(layout, FIRST[0]), None, why))

    def _promising(self, layouts: Iterable[Layout], most: int) -> Iterator[Candidate]:
        """Yield candidates for the layouts with the lowest estimates, unless these are far slower than a known step."""
        times, promising = self.bench.times, dict[Layout, float]()
        for layout in filter(self.fixed.allows, layouts):
            if self._is_worse(least := times.least(layout)):
                self._log(Note(Candidate(layout, FIRST[0]), least, "even with ideal shares and no communication"))
            elif self._is_worse((estimate := times.estimated(layout)) / FAR):
                self._log(Note(Candidate(layout, FIRST[0]), estimate, "by an estimate"))
            else:
                promising[layout] = estimate
        for layout in sorted(promising, key=promising.__getitem__)[:most]:
            yield Candidate(layout, self._usual())

    def _balanced(self) -> Iterator[Candidate]:
        """Yield the best candidates and ZeRO with shares by speed, unless data parallelism gains too little by them."""
        if self._gains_by_shares:
            yield from (replace(each, choice=replace(each.choice, balanced=True)) for each in self._leaders(REFINED))
            own = self.meshes[0]
            for name in DATA_PARALLEL[1:]:
                yield Candidate(Layout(own), replace(preset((name, axes_of(own))), balanced=True))

    def _refinements(self) -> Iterator[Candidate]:
        """Yield the best layouts with other weights; strategies within memory take long, so they get fewer weights."""
        for leader in self._leaders(REFINED):
            options = (*FIRST, *HIDING, *(() if leader.choice.fits else MORE))
            yield from (_searching(leader, option) for option in options)

    def _neighbours(self) -> Iterator[list[Candidate]]:
        """Yield the candidates that differ from the best ones in one decision, until the best ones stay the best."""
        done = set[Candidate]()
        while leaders := [leader for leader in self._leaders(REFINED, NEAR) if leader not in done]:
            done.update(leaders)
            yield [near for leader in leaders for near in self._near(leader)]

    def _near(self, leader: Candidate) -> Iterator[Candidate]:
        """Yield the candidates that differ from another one in the mesh, the turns, the weights, pins or shares."""
        layout, choice = leader.layout, leader.choice
        layouts = [replace(layout, chunked=not layout.chunked)]
        if not choice.pins and layout.mode != "pipeline":
            layouts += [replace(layout, mesh=mesh) for mesh in self.meshes]
        if layout.mode in ("whole", "duplex"):
            turns = [Layout(layout.mesh), *duplexes(layout.mesh, self.bench.rows, self.fixed)]
            layouts += [replace(layout, mode=it.mode, parts=it.parts) for it in turns]
        yield from (replace(leader, layout=it) for it in layouts)
        yield from (_searching(leader, option) for option in (*FIRST, *HIDING))
        yield from _with_tensor_parallel_products(leader)
        if self._gains_by_shares:
            yield replace(leader, choice=replace(choice, balanced=not choice.balanced))

    def _fused(self) -> Iterator[Candidate]:
        """Yield the best layouts with batch-norms as single ops."""
        if self.bench.has_batch_norm:
            yield from (replace(leader, layout=replace(leader.layout, fused=True)) for leader in self._leaders(REFINED))

    def _leaders(self, count: int, near: float = 0.0) -> list[Candidate]:
        """
        Return the fastest candidates of different layouts, the fastest first, except those known not to fit. Layouts
        that differ only in how products are cut, or in how many parts take turns, count as one.

        Args:
            near: up to `count` more are returned if they are slower than the fastest by at most this fraction.
        """
        programs = [note for note in self.notes if note.exposed is not None and note.why != "does not fit"]
        fitting = [(note.seconds, note.candidate) for note in programs if note.seconds is not None]
        leaders: dict[Layout, Candidate] = {}
        limit = (1.0 + near) * min((seconds for seconds, _ in fitting), default=0.0) if near else 0.0
        for seconds, candidate in sorted(fitting, key=lambda entry: entry[0]):
            if len(leaders) < (2 * count if seconds <= limit else count):
                parts = 2 if candidate.layout.mode == "duplex" else candidate.layout.parts
                leaders.setdefault(replace(candidate.layout, chunked=False, parts=parts), candidate)
        return list(leaders.values())


def _searching(leader: Candidate, option: Choice) -> Candidate:
    """Return a candidate with the objective of an option, and without pins."""
    return replace(leader, choice=replace(leader.choice, pins=(), weights=option.weights))


def _with_tensor_parallel_products(leader: Candidate) -> Iterator[Candidate]:
    """Yield a searched strategy with the products of tensor parallelism, which overlap may make faster."""
    if leader.layout.mode != "pipeline" and not leader.choice.pins and (axes := axes_of(leader.layout.mesh)):
        yield replace(leader, choice=replace(leader.choice, pins=preset(("tp", axes)).pins))
