"""The phases of the search over candidates. Each phase uses the results of the earlier ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import inf

from ...ir.mesh import Mesh
from .candidate_compiler import Finished
from .candidates import DATA_PARALLEL, Candidate, Choice, Layout, preset, presets, searched
from .layouts import accumulations, duplexes, finer_meshes, pipelines
from .notes import Note
from .race import LEAST_GAIN, Race

FIRST = (searched(0.25, 1.0, bucketed=False), searched(1.0, 1.0), searched(1.0, 1.0, bucketed=False))
"""How layouts are searched: where much of the communication may be hidden, and where little."""

ADDITIVE = FIRST[-1]
"""The objective of `search-strategy`: the sum of all seconds, without weights."""

MUCH = 0.5
"""What part of a step data parallelism waits for communication, where little of it can be hidden."""

MORE = (
    searched(0.25, 1.0),
    searched(0.1, 1.0, bucketed=False),
    searched(0.5, 1.0, bucketed=False),
    searched(0.5, 0.7),
    searched(0.05, 0.7, bucketed=False),
    searched(0.25, 0.5, bucketed=False),
)
"""How the best layouts are searched again."""

WORK = 30_000
"""How many ops of programs may be gone through by default, where alternatives of problems count in part (`STATE`)."""

MOST_PIPELINES = 6
"""How many layouts in stages are searched."""

LIKELY = 2
"""How many of them are tried at first."""

FINALISTS = 2
"""The number of candidates judged by short steps whose whole step is simulated."""

LATE_FINALISTS = 3
"""The number of further such candidates, one by one, while an estimate is about as short as the best step."""

SHORT_STEPS_ERR = 0.1
"""The part of an estimate by short steps that the whole step may save (0.083: `gpt2-48` on `h100-8x8`)."""

FAR = 1.5
"""How many times the fastest step one may take and be of interest still, for predictions err."""

REFINED = 2
"""How many layouts are searched with more weights."""

ROUNDS = 3
"""How many times the fraction of activations that a candidate keeps is interpolated between those that are known."""

GRAIN = 0.05
"""The fractions that are tried are multiples of this, the interpolated one rounded down."""


class Explorer(Race):
    """Enters candidates into a race, phase by phase; one use."""

    plain = inf
    """The seconds of the fastest of data parallelism, the usual search and likely pipelines, on the own mesh."""

    @property
    def shares(self) -> bool:
        """Return whether it is left to the search if devices have equal shares."""
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
        is_of_use = self.best is not None or self.ranks is None or self._too_large(shrinking=True)
        if is_of_use and not self.allowance.is_late:
            # However soon the search ends: what people would write is held against it.
            own = Layout(self.meshes[0])
            layouts = (own, replace(own, fused=True)) if self.bench.has_batch_norm else (own,)
            by_hand = (Candidate(layout, choice) for layout in layouts for choice in presets(own.mesh))
            self._enter(by_hand, to_the_end=True)
            in_a_row = [mesh for mesh in self.meshes[1:] if len(mesh.axes) == 1]
            layouts = (*layouts, *map(Layout, in_a_row))
            self._enter((Candidate(layout, ADDITIVE) for layout in layouts), to_the_end=True)
            self._enter(self._accumulated(), to_the_end=True)
            for batch in self._keeping_less():
                # What fits must not do so by keeping less than there is room for.
                self._enter(batch, to_the_end=True)
        self._finish_estimated(FINALISTS)
        for _ in range(LATE_FINALISTS):
            least = (1.0 - SHORT_STEPS_ERR) * min(self.estimates.values(), default=inf)
            if self.best is None or least >= self.best_seconds:
                break
            self._finish_estimated(1)
        while self.best is None and self.estimates and worth == inf:
            # Short steps may promise more than the whole keeps: that it fits, above all.
            self._finish_estimated(1)
        return self._verified() if self.best_seconds < worth else None

    def runners_up(self, chosen: Candidate, notes: Sequence[Note]) -> list[Candidate]:
        """
        Of each other kind than that of what was chosen, the fastest candidate that was simulated, the fastest first;
        those that took longer than `FAR` times the fastest are of no interest, but for data parallelism.
        """
        plain = self._data_parallel().family
        known = [note for note in notes if note.exposed is not None and note.why != "does not fit"]
        limit = FAR * min((_step(note) for note in known), default=0.0)
        found: dict[tuple[str, str], Candidate] = {}
        for note in sorted(known, key=_step):
            family = note.candidate.family
            if _step(note) <= limit or family == plain:
                found.setdefault((family.mode, family.strategy), note.candidate)
        found.pop((chosen.family.mode, chosen.family.strategy), None)
        return list(found.values())

    def _as_asked(self, candidate: Candidate) -> Candidate:
        """A candidate that keeps of its activations, and has the shares, that the user has decided."""
        if self.ranks is not None:
            candidate = replace(candidate, layout=replace(candidate.layout, ranks=self.ranks))
        if self.fixed.balanced:
            candidate = replace(candidate, choice=replace(candidate.choice, balanced=True))
        return candidate if self.fixed.keep is None else _keeping(candidate, self.fixed.keep)

    def _enter(self, batch: Iterable[Candidate], *, to_the_end: bool = False) -> None:
        """Consider the candidates of a batch that the user's decisions allow."""
        self._consider([each for each in map(self._as_asked, batch) if self._is_open(each)], to_the_end=to_the_end)

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
            yield from self._keeping_less()
        yield [replace(leader, choice=choice) for leader in self._leaders(REFINED) for choice in FIRST]
        yield list(self._balanced())
        yield list(self._on_three_axes())
        yield list(self._over_time())
        yield list(self._in_stages())
        yield list(self._fused())
        yield from self._keeping_less()
        yield list(self._within_memory())
        yield list(self._refinements())
        for mesh in self.meshes:
            yield [Candidate(Layout(mesh), choice) for choice in presets(mesh)]
        yield list(self._within_memory())

    def _data_parallel(self, *, balanced: bool = False) -> Candidate:
        """Data parallelism over all devices, with equal shares or with those by speed."""
        own = self.meshes[0]
        return self._as_asked(Candidate(Layout(own), replace(preset(("dp", _axes(own))), balanced=balanced)))

    def _known(self, candidate: Candidate) -> Note | None:
        """What became of a candidate; None if it was not tried, or could not be."""
        return next((note for note in self.notes if note.candidate == candidate and note.seconds is not None), None)

    def _usual(self) -> Choice:
        """How a layout is searched at first: as far as data parallelism shows that communication can be hidden."""
        dp = self._known(self._data_parallel())
        if dp is None:
            return FIRST[0]
        exposed = dp.exposed if dp.exposed is not None else _step(dp) - self._least
        return FIRST[0] if exposed <= MUCH * _step(dp) else FIRST[1]

    def _on_three_axes(self) -> Iterator[Candidate]:
        """The meshes of three axes that divide an axis of the best mesh of two axes."""
        if len(self.meshes) == 1:
            return
        leaders = (each.layout.mesh for each in self._leaders(len(self.notes)))
        best = next((mesh for mesh in leaders if len(mesh.axes) == 2), None)
        for mesh in finer_meshes(best) if best is not None else ():
            yield from (Candidate(Layout(mesh), choice) for choice in (*FIRST, *presets(mesh)))

    def _over_time(self) -> Iterator[Candidate]:
        """The batch in parts: stages, accumulation, duplex; of each kind the layouts that may take the least."""
        own, rows = self.meshes[0], self.bench.rows
        if (refusal := self.bench.cut_refusal()) is None:
            best = next((each.layout.mesh for each in self._leaders(1)), own)
            for mesh in dict.fromkeys((own, best)):
                yield from self._promising(pipelines(mesh, rows, self.bench.layers, self.fixed), MOST_PIPELINES)
            if self.fixed.micro_batches is not None:
                yield from self._promising(accumulations(own, rows, self.fixed), REFINED)
        else:
            parts, stages = self.fixed.micro_batches or 2, max(self.fixed.stages or 2, 2)
            self._refuse((Layout(own, "pipeline", parts, stages), Layout(own, "accumulate", parts)), refusal)
        if (refusal := self.bench.cut_refusal(unrolled=True)) is None:
            yield from self._promising(duplexes(own, rows, self.fixed), REFINED)
            yield from self._duplexed(own)
        else:
            self._refuse((Layout(own, "duplex", 2),), refusal)

    def _likely_pipelines(self) -> Iterator[Candidate]:
        """The few pipelines with the lowest estimates, if those are below the best step."""
        if self.bench.cut_refusal() is None:
            found = pipelines(self.meshes[0], self.bench.rows, self.bench.layers, self.fixed)
            times = self.bench.times
            possible = (each for each in found if self.fixed.allows(each) and not self._is_worse(times.least(each)))
            estimates = {each: times.estimated(each) for each in possible}
            likely = sorted(estimates, key=estimates.__getitem__)[:LIKELY]
            yield from (Candidate(each, self._usual()) for each in likely if not self._is_worse(estimates[each]))

    def _in_stages(self) -> Iterator[Candidate]:
        """The best pipelines, with presets over the axes that are common to all stages."""
        pipelines = [each for each in self._leaders(len(self.notes)) if each.layout.mode == "pipeline"]
        for leader in pipelines[:REFINED]:
            meshes = [view.mesh for view, _ in self.bench.keeping(leader.layout.keep).laid_out(leader.layout)]
            common = [axis for axis in meshes[0].spatial if all(axis in mesh.spatial for mesh in meshes)]
            for choice in presets(Mesh(tuple(common))) if common else ():
                yield replace(leader, choice=choice)

    def _duplexed(self, own: Mesh) -> Iterator[Candidate]:
        """
        What did best with the batch whole, in two parts that take turns; and the presets that send within layers, which
        duplex hides, or all of them where it is asked for.
        """
        whole = [each for each in self._leaders(REFINED) if each.layout.mode == "whole"]
        known = [choice for choice in presets(own) if self.fixed.duplex or any(p.preset == "tp" for p in choice.pins)]
        for each in dict.fromkeys((*whole, *(Candidate(Layout(own), choice) for choice in known))):
            yield replace(each, layout=replace(each.layout, mode="duplex", parts=2))

    def _refuse(self, layouts: Iterable[Layout], why: str) -> None:
        """Say of what stands for all layouts of a kind why none of them can be."""
        for layout in filter(self.fixed.allows, layouts):
            self._log(Note(Candidate(layout, FIRST[0]), None, why))

    def _promising(self, layouts: Iterable[Layout], most: int) -> Iterator[Candidate]:
        """Yield candidates for the layouts with the lowest estimates."""
        times, promising = self.bench.times, dict[Layout, float]()
        for layout in filter(self.fixed.allows, layouts):
            if self._is_worse(least := times.least(layout)):
                self._log(Note(Candidate(layout, FIRST[0]), least, "even with ideal shares and no communication"))
            else:
                promising[layout] = times.estimated(layout)
        for layout in sorted(promising, key=promising.__getitem__)[:most]:
            yield Candidate(layout, self._usual())

    def _balanced(self) -> Iterator[Candidate]:
        """Where data parallelism gains by shares by speed, these for what did best with equal ones, and for ZeRO."""
        if not self.shares:
            return
        even, balanced = (self._known(self._data_parallel(balanced=each)) for each in (False, True))
        if even is None or balanced is None or _step(balanced) < (1.0 - LEAST_GAIN) * _step(even):
            yield from (replace(each, choice=replace(each.choice, balanced=True)) for each in self._leaders(REFINED))
            own = self.meshes[0]
            for name in DATA_PARALLEL[1:]:
                yield Candidate(Layout(own), replace(preset((name, _axes(own))), balanced=True))

    def _refinements(self) -> Iterator[Candidate]:
        """Yield the best layouts with other weights, if weights matter there."""
        for leader in self._leaders(REFINED):
            first, more = (
                [replace(leader, choice=replace(each, balanced=leader.choice.balanced)) for each in choices]
                for choices in (FIRST, MORE)
            )
            yield from first
            if len({self.fingerprints.get(each, each) for each in first}) > 1:
                yield from more

    def _fused(self) -> Iterator[Candidate]:
        """The best layouts with batch-norms as single ops."""
        if self.bench.has_batch_norm:
            yield from (replace(each, layout=replace(each.layout, fused=True)) for each in self._leaders(REFINED))

    def _leaders(self, count: int) -> list[Candidate]:
        """The fastest candidates of different layouts of which none is known not to fit, the fastest first."""
        programs = [note for note in self.notes if note.exposed is not None and note.why != "does not fit"]
        fitting = [(note.seconds, note.candidate) for note in programs if note.seconds is not None]
        leaders: dict[Layout, Candidate] = {}
        for _, candidate in sorted(fitting, key=lambda each: each[0]):
            if len(leaders) < count:
                leaders.setdefault(candidate.layout, candidate)
        return list(leaders.values())

    def _too_large(self, *, shrinking: bool = False) -> list[Note]:
        """
        Return what would be the fastest if it did fit.

        Args:
            shrinking: whether to leave out the strategies whose parameters and states alone do not fit.
        """
        known = [note for note in self.notes if note.peak_bytes is not None and note.seconds is not None]
        large = [note for note in known if not note.fits and not self._is_worse(_step(note))]
        return [note for note in large if not shrinking or note.lasting_bytes < note.memory_bytes]

    def _keeping_less(self) -> Iterator[list[Candidate]]:
        """
        What does not fit, with activations computed again: with as few as can be kept at first, then with as many as
        the memory between has room for. Of these the fastest, and those that need the least besides.
        """
        if self.fixed.keep is not None:
            return
        notes = [note for note in self._too_large(shrinking=True) if note.candidate.layout.keep == 1]
        fastest = sorted(notes, key=_step)[:REFINED]
        least = sorted(notes, key=lambda note: (note.peak_bytes or 0, _step(note)))[:REFINED]
        chosen = list(dict.fromkeys(note.candidate for note in (*fastest, *least)))
        yield [_keeping(each, 0.0) for each in chosen]
        for _ in range(ROUNDS):
            kept = ((each, self._as_much_as_fits(each)) for each in chosen)
            yield [_keeping(each, part) for each, part in kept if part is not None]

    def _accumulated(self) -> Iterator[Candidate]:
        """Yield the fastest candidates that do not fit, with the batch in as few parts as may make them fit."""
        if self.bench.cut_refusal() is None:
            large = sorted(self._too_large(shrinking=True), key=_step)
            for note in [note for note in large if note.candidate.layout.mode == "whole"][:REFINED]:
                room = note.memory_bytes - note.lasting_bytes
                needed = ((note.peak_bytes or 0) - note.lasting_bytes) / room
                ways = accumulations(note.candidate.layout.mesh, self.bench.rows, self.fixed)
                for layout in islice((each for each in ways if each.parts >= needed), REFINED):
                    parts = replace(note.candidate.layout, mode="accumulate", parts=layout.parts)
                    yield replace(note.candidate, layout=parts)

    def _as_much_as_fits(self, candidate: Candidate) -> float | None:
        """What part of its activations a candidate can probably keep, between parts that are known; None if none."""
        known = [note for note in self.notes if note.peak_bytes is not None]
        like = [note for note in known if _keeping(note.candidate, 1.0) == candidate]
        fitting = max((note for note in like if note.fits), key=_part_kept, default=None)
        larger = min((note for note in like if not note.fits), key=_part_kept, default=None)
        if fitting is None or larger is None or self._is_worse(_step(larger)):
            return None
        low, high = (note.peak_bytes or 0 for note in (fitting, larger))
        way = (fitting.memory_bytes - low) / (high - low) if high > low else 0.0
        part = _part_kept(fitting) + way * (_part_kept(larger) - _part_kept(fitting))
        return round(part // GRAIN * GRAIN, 2)

    def _within_memory(self) -> Iterator[Candidate]:
        """Where what does not fit would be faster, or nothing fits, strategies that pay for memory."""
        layouts = [note.candidate.layout for note in sorted(self._too_large(), key=_step)]
        if self.best is None and not self.estimates and self.bench.cut_refusal() is None:
            layouts += accumulations(self.meshes[0], self.bench.rows)
        choice = replace(FIRST[0], name="search within memory", fits=True)
        yield from (Candidate(layout, choice) for layout in list(dict.fromkeys(layouts))[:REFINED])


def _step(note: Note) -> float:
    """The seconds of a step that is known."""
    return note.seconds or 0.0


def _keeping(candidate: Candidate, part: float) -> Candidate:
    """The same with a part of its activations."""
    return replace(candidate, layout=replace(candidate.layout, keep=part))


def _part_kept(note: Note) -> float:
    return note.candidate.layout.keep


def _axes(mesh: Mesh) -> tuple[str, ...]:
    return tuple(axis.name for axis in mesh.spatial if axis.size > 1)
