"""The search over candidates: which are tried, in which order, and which are not worth it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import inf

from ...ir.cluster import Cluster
from ...ir.mesh import Mesh
from .candidates import DATA_PARALLEL, Candidate, Choice, Layout, preset, presets, searched
from .chunked_plan import chunked
from .layouts import Fixed, accumulations, duplexes, finer_meshes, meshes, pipelines
from .notes import LOG, Allowance, Note, Refused, dropped_if_faulty, verify
from .stages_in_chunks import best_pipeline, in_chunks
from .trials import Attempt, Judged, Trials
from .workbench import Finished, Workbench

FIRST = (searched(0.25, 1.0, bucketed=False), searched(1.0, 1.0), searched(1.0, 1.0, bucketed=False))
"""How layouts are searched: where much of the communication may be hidden, and where little."""

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

LEAST_EFFORT = 0.5
"""The part of the usual work that is done even where there is nothing to gain."""

MOST_EFFORT = 2.0
"""How many times the usual work is done where nearly all of a step might be gained."""

NEVER_GAINED = 0.15
"""What part of a step is above what there is to compute at the least even where nothing better is to be found."""

ONE_LAYOUT = 0.3
"""The part of the usual work that is done where the user has left nothing but the strategy open."""

LEAST_GAIN = 0.01
"""What part of a step shares by speed must save data parallelism, or others are not tried with them."""

SURE = 4
"""How many of a batch, the most promising, are made programs of even where no more may be spent."""

AT_ONCE = 2
"""How many programs are made before it is seen which is the fastest: side by side, where processes allow."""

CHUNK = 8
"""How many problems are solved before it is seen whether more may be spent."""

MOST_PIPELINES = 6
"""How many layouts in stages are searched."""

LIKELY = 2
"""How many of them are tried at first."""

FINALISTS = 2
"""How many of those judged by short steps are made programs of."""

LATE_FINALISTS = 3
"""How many more are, one by one, while short steps promise more than the best program keeps."""

FAR = 1.5
"""How many times the fastest step one may take and be of interest still, for predictions err."""

REFINED = 2
"""How many layouts are searched with more weights."""

ROUNDS = 3
"""How many times the fraction of activations that a candidate keeps is interpolated between those that are known."""

GRAIN = 0.05
"""The fractions that are tried are multiples of this, the interpolated one rounded down."""


class Explorer:
    """
    Tries candidates on a workbench and keeps the fastest that fits; one use.

    Args:
        processes: in how many processes at most; what is found does not depend on it.
        ranks: the ranks of the job that the cluster of the workbench has; None for all.
        worth: seconds of a step that is known; slower ones are of no interest.
        plain: seconds of a plain plan (`plain`) on all ranks, which one on these ranks must beat.
    """

    def __init__(
        self,
        bench: Workbench,
        fixed: Fixed,
        allowance: Allowance,
        *,
        processes: int = 1,
        ranks: tuple[int, ...] | None = None,
        worth: float = inf,
        plain: float = inf,
    ) -> None:
        self.bench, self.fixed, self.allowance = bench, fixed, allowance
        self.ranks, self.worth, self.to_beat = ranks, worth, plain
        self.plain = inf
        """The seconds of the faster of data parallelism and the usual search, both on the cluster's own mesh."""
        self.shares = len(bench.cluster.kinds_used) > 1 and fixed.balanced is None
        self.trials = Trials(bench, processes)
        self.notes: list[Note] = []
        self.best: Judged | None = None
        self.bests: list[tuple[Judged, Attempt]] = []
        """All candidates that were the best when they were judged, the best last."""
        self.to_gain: float | None = None
        """The part of the fastest step that fits, of what is known or estimated, that another plan might not take."""
        self.estimates: dict[Candidate, float] = {}
        self.attempts: dict[Candidate, Attempt] = {}
        """At what short steps have judged, and was not made whole."""
        self.tried: set[Candidate] = set()
        self.strategies: dict[object, str] = {}

    @property
    def cluster(self) -> Cluster:
        """What the plan is for."""
        return self.bench.cluster

    @property
    def meshes(self) -> list[Mesh]:
        """Those that the devices may form."""
        if self.fixed.mesh is not None:
            return [self.fixed.mesh]
        return [self.bench.own_mesh] if self.bench.is_pinned else meshes(self.cluster)

    def run(self) -> Finished | None:
        """Try what is worth it, in an order that does not depend on how long anything takes."""
        for batch in self._batches():
            # The first candidates on a part of the cluster are always tried: they show whether it is of use.
            begins = self.plain == inf and self.worth < inf
            self._consider([each for each in map(self._as_asked, batch) if self._is_open(each)], to_the_end=begins)
            if self._is_over and not begins:
                break
        if not self.allowance.is_late and (self.best is not None or self.worth == inf):
            # However soon the search ends: what people would write is held against it.
            own = Layout(self.meshes[0])
            layouts = (own, replace(own, fused=True)) if self.bench.has_batch_norm else (own,)
            by_hand = (Candidate(layout, choice) for layout in layouts for choice in presets(own.mesh))
            self._consider([each for each in map(self._as_asked, by_hand) if self._is_open(each)], to_the_end=True)
            for batch in self._keeping_less():
                # What fits must not do so by keeping less than there is room for.
                self._consider([each for each in batch if self._is_open(each)], to_the_end=True)
        self._finish_estimated(FINALISTS)
        for _ in range(LATE_FINALISTS):
            if self.best is None or min(self.estimates.values(), default=inf) >= self.best.seconds:
                break
            self._finish_estimated(1)
        while self.best is None and self.estimates:
            # Short steps may promise more than the whole keeps: that it fits, above all.
            self._finish_estimated(1)
        return self._verified()

    def _verified(self) -> Finished | None:
        """Return the program of the best candidate whose program verifies, with what refines it."""
        for judged, attempt in reversed(self.bests):
            program = self.trials.program(attempt, judged)
            try:
                verify(program.module, judged.candidate)
            except Refused as error:
                self.notes = [note for note in self.notes if note.candidate != judged.candidate]
                self._log(Note(judged.candidate, None, str(error)))
                continue
            return self._refinished(program, attempt)
        return None

    def _refinished(self, best: Finished, attempt: Attempt) -> Finished:
        """The best plan; or it with products in parts, or the best pipeline in chunks, where a step is shorter so."""
        whole = self.bench.keeping(best.candidate.layout.keep)
        makes = [(best.candidate, partial(chunked, whole, attempt.solved[0], best))]
        if not self.allowance.is_late and (pipeline := best_pipeline(self.notes, best.seconds)) is not None:
            makes.append((pipeline, partial(in_chunks, self.bench.keeping(pipeline.layout.keep), pipeline)))
        for candidate, make in makes:
            try:
                with dropped_if_faulty(candidate):
                    found = make()
                    is_better = found is not None and found.fits and found.seconds < best.seconds
                    if found is not None and is_better:
                        verify(found.module, found.candidate)
            except Refused as error:
                self._log(Note(candidate, None, str(error)))
                continue
            if found is not None:
                why = "" if found.fits else "does not fit"
                self._log(Note(found.candidate, found.seconds, why, found.exposed, *found.tightest))
                best = found if is_better else best
        return best

    def runners_up(self, chosen: Candidate) -> list[Candidate]:
        """
        Of each other kind than that of what was chosen, the fastest candidate that was simulated, the fastest first;
        those that took longer than `FAR` times the fastest are of no interest, but for data parallelism.
        """
        plain = self._data_parallel().family
        known = [note for note in self.notes if note.exposed is not None and note.why != "does not fit"]
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

    def _is_open(self, candidate: Candidate) -> bool:
        """Whether the user's decisions leave room for a candidate that was not tried."""
        return self.fixed.allows(candidate.layout) and candidate not in self.tried

    @property
    def _is_over(self) -> bool:
        """
        Whether something was found and no more may be spent: the less, the less there is to gain.

        Where devices differ, layouts and shares decide how much there is to compute, so nobody knows.
        """
        if self.to_gain is None:
            return self.worth < inf and self.allowance.is_over(LEAST_EFFORT)
        effort = max(MOST_EFFORT * self.to_gain, LEAST_EFFORT) if len(self.cluster.kinds_used) == 1 else MOST_EFFORT
        return self.allowance.is_over(effort * (ONE_LAYOUT if self.fixed.is_one_layout else 1.0))

    def _finish_estimated(self, count: int) -> None:
        """Make programs of the whole step of those that short steps show to be the fastest."""
        whole: list[Attempt] = []
        for candidate in sorted(self.estimates, key=self.estimates.__getitem__)[:count]:
            del self.estimates[candidate]
            found = self.trials.whole(self.attempts.pop(candidate))
            if isinstance(found, str):
                self._log(Note(candidate, None, found))
            else:
                whole.append(found)
        self._judge(whole)

    def _batches(self) -> Iterator[list[Candidate]]:
        """All phases one after the other; each looks at what the ones before it found."""
        own = Layout(self.meshes[0])
        yield [self._data_parallel()]
        if self.bench.has_batch_norm:
            yield [replace(self._data_parallel(), layout=replace(own, fused=True))]
        if self.shares:
            yield [self._data_parallel(balanced=True)]
        usual = self._usual()
        yield [Candidate(own, usual)]
        yield list(self._likely_pipelines())
        self.plain = min((_step(note) for note in self.notes if note.exposed is not None), default=inf)
        if self.plain >= self.to_beat < inf:
            return
        yield [Candidate(Layout(mesh), usual) for mesh in self.meshes[1:]]
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
        if dp is None or dp.seconds is None or dp.exposed is None or dp.exposed <= MUCH * dp.seconds:
            return FIRST[0]
        return FIRST[1]

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
            estimates = {each: self.bench.estimated_seconds(each) for each in found if self.fixed.allows(each)}
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
        """Of some layouts those that may take the least."""
        least = {layout: self.bench.least_seconds(layout) for layout in layouts if self.fixed.allows(layout)}
        found = 0
        for layout in sorted(least, key=lambda layout: (self.bench.estimated_seconds(layout), least[layout])):
            if self._is_worse(least[layout]):
                note = Note(Candidate(layout, FIRST[0]), least[layout], "even with ideal shares and no communication")
                self._log(note)
            elif found < most:
                found += 1
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
        """The best layouts with other weights."""
        for leader in self._leaders(REFINED):
            for choice in (*FIRST, *MORE):
                yield replace(leader, choice=replace(choice, balanced=leader.choice.balanced))

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
            # Strategies that differ may suit different schedules.
            layout = replace(candidate.layout, schedule=None)
            if len(leaders) < count:
                leaders.setdefault(layout, replace(candidate, layout=layout))
        return list(leaders.values())

    def _too_large(self) -> list[Note]:
        """What would be the fastest, if it did fit."""
        known = [note for note in self.notes if note.peak_bytes is not None and note.seconds is not None]
        return [note for note in known if not note.fits and not self._is_worse(_step(note))]

    def _keeping_less(self) -> Iterator[list[Candidate]]:
        """
        What does not fit, with activations computed again: with as few as can be kept at first, then with as many as
        the memory between has room for. Of these the fastest, and those that need the least besides.
        """
        if self.fixed.keep is not None:
            return
        notes = [note for note in self._too_large() if note.candidate.layout.keep == 1]
        fastest = sorted(notes, key=_step)[:REFINED]
        least = sorted(notes, key=lambda note: (note.peak_bytes or 0, _step(note)))[:REFINED]
        chosen = list(dict.fromkeys(note.candidate for note in (*fastest, *least)))
        yield [_keeping(each, 0.0) for each in chosen]
        for _ in range(ROUNDS):
            kept = ((each, self._as_much_as_fits(each)) for each in chosen)
            yield [_keeping(each, part) for each, part in kept if part is not None]

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
        layouts = [replace(note.candidate.layout, schedule=None) for note in sorted(self._too_large(), key=_step)]
        if self.best is None and not self.estimates and self.bench.cut_refusal() is None:
            layouts += accumulations(self.meshes[0], self.bench.rows)
        choice = replace(FIRST[0], name="search within memory", fits=True)
        yield from (Candidate(layout, choice) for layout in list(dict.fromkeys(layouts))[:REFINED])

    def _consider(self, batch: Sequence[Candidate], *, to_the_end: bool = False) -> None:
        """
        Solve the candidates of a batch, and make programs of them, the most promising first.

        Args:
            to_the_end: whatever that takes.
        """
        solved: list[Attempt] = []
        for chunk in (batch[at : at + CHUNK] for at in range(0, len(batch), CHUNK)):
            if self._is_over and not to_the_end:
                break
            self.tried.update(chunk)
            for candidate, found in zip(chunk, self.trials.solve(list(chunk)), strict=True):
                if isinstance(found, str):
                    self._log(Note(candidate, None, found))
                else:
                    solved.append(found)
                    self.allowance.spent += found.work
        solved.sort(key=lambda each: each.optimistic)
        for at in range(0, len(solved), AT_ONCE):
            # What was solved was solved to be tried: the most promising are.
            if self._is_over and at >= SURE and not to_the_end:
                break
            if not solved[at].by_short_steps and self.best is None and self.estimates:
                # Pipelines are compared with a program that is there.
                self._finish_estimated(1)
            self._judge([each for each in solved[at : at + AT_ONCE] if not self._is_settled(each)])

    def _judge(self, attempts: list[Attempt]) -> None:
        """Make programs of some candidates, and keep what is best."""
        worth = self.best.seconds if self.best is not None else self.worth
        for attempt, found in zip(attempts, self.trials.judge(attempts, worth), strict=True):
            if isinstance(found, str):
                self._log(Note(attempt.candidate, None, found))
                continue
            for judged in found:
                self.allowance.spent += judged.work
                if attempt.by_short_steps:
                    self._estimate(attempt, judged)
                else:
                    self._take(attempt, judged)

    def _estimate(self, attempt: Attempt, judged: Judged) -> None:
        """Keep what short steps say."""
        assert judged.peak is not None
        if judged.fits:
            if not self._is_worse(judged.seconds):
                self.to_gain = self._to_gain(judged)
            self.estimates[attempt.candidate] = judged.seconds
            self.attempts[attempt.candidate] = attempt
        self._log(Note(judged.candidate, judged.seconds, "by shorter steps", judged.exposed, *judged.peak))

    def _is_settled(self, attempt: Attempt) -> bool:
        """Whether a candidate is out of the race already, by an estimate or because there was one like it."""
        candidate = attempt.candidate
        if self._is_worse(attempt.optimistic):
            self._log(Note(candidate, attempt.optimistic, "by an estimate"))
            return True
        first = self.strategies.setdefault(attempt.solved[0].fingerprint, candidate.name)
        if first != candidate.name:
            self._log(Note(candidate, None, f"the same as {first}"))
        return first != candidate.name

    def _take(self, attempt: Attempt, judged: Judged) -> None:
        """Keep a program if it is the fastest that fits; how much a slower one holds is of no interest."""
        self.tried.add(judged.candidate)
        best = self.best.seconds if self.best is not None else self.worth
        if judged.peak is None or judged.seconds >= best:
            self._log(Note(judged.candidate, judged.seconds, "slower", judged.exposed))
            return
        if judged.fits:
            self.best = judged
            self.bests.append((judged, attempt))
            self.to_gain = self._to_gain(judged)
        why = "" if judged.fits else "does not fit"
        self._log(Note(judged.candidate, judged.seconds, why, judged.exposed, *judged.peak))

    def _to_gain(self, judged: Judged) -> float:
        """
        The part of a step in which it waits, or computes more than it has to: where devices compute the same, to send
        less, nothing is exposed, and a plan that cuts it may be faster all the same.
        """
        if not judged.seconds:
            return 0.0
        return max(judged.exposed / judged.seconds, 1.0 - self._least / judged.seconds - NEVER_GAINED)

    @cached_property
    def _least(self) -> float:
        """The seconds of what there is to compute, by all devices together."""
        return self.bench.least_seconds(Layout(self.meshes[0]))

    def _is_worse(self, least: float) -> bool:
        best = self.best.seconds if self.best is not None else self.worth
        return least >= min([best, *self.estimates.values()])

    def _log(self, note: Note) -> None:
        """Keep a note, and say it."""
        self.notes.append(note)
        best = f"{self.best.seconds * 1e3:.4g} ms" if self.best is not None else "none yet"
        took = f"{note.seconds * 1e3:.4g} ms " if note.seconds is not None else ""
        LOG.debug("%d candidates, best %s; %s: %s%s", len(self.notes), best, note.candidate.name, took, note.why)


def _step(note: Note) -> float:
    """The seconds of a step that is known."""
    return note.seconds or 0.0


def _keeping(candidate: Candidate, part: float) -> Candidate:
    """The same with a part of its activations."""
    return replace(candidate, layout=replace(candidate.layout, keep=part))


def _part_kept(note: Note) -> float:
    return note.candidate.layout.keep


def _axes(mesh: Mesh) -> tuple[str, ...]:
    return tuple(axis.name for axis in mesh.spatial)
