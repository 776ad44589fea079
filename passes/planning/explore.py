"""The search over candidates: which are tried, in which order, and which are not worth it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from ...ir.cluster import Cluster
from ...ir.mesh import Mesh
from ..search.layers import find_layers
from .candidates import DATA_PARALLEL, Candidate, Choice, Layout, preset, presets, searched
from .layouts import Fixed, accumulations, meshes, pipelines
from .shrink import extrapolated, short_steps
from .workbench import Finished, Refused, Solved, Workbench

LOG = logging.getLogger("shardwright.plan")

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

WORK = 20_000
"""How many ops may be gone through by default: those of each program, and a part of those of each problem."""

SOLVING = 0.3
"""What an op counts in a problem that is solved, where it counts 1 in a program."""

LEAST_EFFORT = 0.5
"""The part of the usual work that is done even where compute is all there is."""

MOST_EFFORT = 2.0
"""How many times the usual work is done where communication is."""

LEAST_GAIN = 0.01
"""What part of a step shares by speed must save data parallelism, or others are not tried with them."""

SURE = 3
"""How many of a batch, the most hopeful, are made programs of even where no more may be spent."""

LEAST_WORK = 800
"""What any problem or program counts at least."""

MOST_PIPELINES = 6
"""How many layouts in stages are searched."""

FINALISTS = 2
"""How many of those judged by short steps are made programs of."""

REFINED = 2
"""How many layouts are searched with more weights."""


@dataclass(frozen=True)
class Note:
    """
    What became of a candidate.

    Args:
        seconds: of its step: simulated, or, where it was not finished, at the least by an estimate.
        why: it was not chosen; empty for those that were the best when they were tried.
        exposed: of these, how many the stage that computes longest does not; None where it was not finished.
        peak_bytes: of the rank that comes closest to its memory; None where nobody looked.
        memory_bytes: what that rank has.
    """

    candidate: Candidate
    seconds: float | None
    why: str
    exposed: float | None = None
    peak_bytes: int | None = None
    memory_bytes: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether it is known that every rank has the memory that it needs."""
        return self.peak_bytes is not None and self.peak_bytes <= self.memory_bytes


@dataclass
class Allowance:
    """What the search may spend: ops gone through, and seconds where the user limits them."""

    work: float
    seconds: float | None = None
    began: float = field(default_factory=perf_counter)
    spent: float = 0.0

    def is_over(self, effort: float) -> bool:
        """Whether nothing more may be begun, where so many times the usual work is worth it."""
        late = self.seconds is not None and perf_counter() - self.began > self.seconds
        return late or self.spent >= effort * self.work


class Explorer:
    """
    Tries candidates on a workbench and keeps the fastest that fits; one use.

    Args:
        shares: whether devices that differ may have shares by their speed.
    """

    def __init__(self, bench: Workbench, fixed: Fixed, allowance: Allowance, *, shares: bool = True) -> None:
        self.bench, self.fixed, self.allowance = bench, fixed, allowance
        self.shares = shares and len(bench.cluster.kinds_used) > 1
        self.size = max(bench.size, LEAST_WORK)
        self.notes: list[Note] = []
        self.best: Finished | None = None
        self.short = None if bench.pins else _short_benches(bench)
        self.estimates: dict[Candidate, float] = {}
        self.tried: set[Candidate] = set()
        self.strategies: dict[object, str] = {}
        self.solutions: dict[Candidate, tuple[float, tuple[Solved, ...]]] = {}

    @property
    def cluster(self) -> Cluster:
        """What the plan is for."""
        return self.bench.cluster

    @property
    def meshes(self) -> list[Mesh]:
        """Those that the devices may form."""
        if self.fixed.mesh is not None:
            return [self.fixed.mesh]
        return [self.bench.own_mesh] if self.bench.pins else meshes(self.cluster)

    def run(self) -> Finished | None:
        """Try what is worth it, in an order that does not depend on how long anything takes."""
        for batch in self._batches():
            self._consider([each for each in batch if self.fixed.allows(each.layout) and each not in self.tried])
            if self._is_over:
                break
        self._finish_estimated(FINALISTS)
        while self.best is None and self.estimates:
            # Short steps may promise more than the whole keeps: that it fits, above all.
            self._finish_estimated(1)
        return self.best

    @property
    def _is_over(self) -> bool:
        """
        Whether something was found and no more may be spent: the less, the less of the best step is exposed.

        Where devices differ, layouts and shares decide how much there is to compute, so that is no sign.
        """
        if self.best is None:
            return self.allowance.is_over(1.0) and bool(self.estimates)
        exposed = self.best.exposed / self.best.seconds if self.best.seconds else 0.0
        effort = max(MOST_EFFORT * exposed, LEAST_EFFORT) if len(self.cluster.kinds_used) == 1 else MOST_EFFORT
        return self.allowance.is_over(effort)

    def _finish_estimated(self, count: int) -> None:
        """Make programs of the whole step of those that short steps show to be the fastest."""
        for candidate in sorted(self.estimates, key=self.estimates.__getitem__)[:count]:
            del self.estimates[candidate]
            try:
                self._make(self.bench.solve(candidate))
            except Refused as error:
                self._log(Note(candidate, None, str(error)))

    def _batches(self) -> Iterator[list[Candidate]]:
        """All phases one after the other; each looks at what the ones before it found."""
        own, dp = Layout(self.meshes[0]), preset(("dp", _axes(self.meshes[0])))
        yield [Candidate(own, dp)]
        if self.shares:
            yield [Candidate(own, replace(dp, balanced=True))]
        usual = self._usual()
        yield [Candidate(Layout(mesh), usual) for mesh in self.meshes]
        yield [Candidate(own, choice) for choice in presets(own.mesh)]
        yield [replace(leader, choice=choice) for leader in self._leaders(REFINED) for choice in FIRST]
        yield list(self._balanced())
        yield list(self._over_time())
        yield list(self._within_memory())
        yield list(self._refinements())
        yield list(self._fused())
        for mesh in self.meshes:
            yield [Candidate(Layout(mesh), choice) for choice in presets(mesh)]
        yield list(self._within_memory())

    def _usual(self) -> Choice:
        """How a layout is searched at first: as far as data parallelism shows that communication can be hidden."""
        dp = next(iter(self.notes), None)
        if dp is None or dp.seconds is None or dp.exposed is None or dp.exposed <= MUCH * dp.seconds:
            return FIRST[0]
        return FIRST[1]

    def _over_time(self) -> Iterator[Candidate]:
        """The batch in parts: stages, accumulation, duplex; of each kind the layouts that may take the least."""
        own, rows = self.meshes[0], self.bench.rows
        if (refusal := self.bench.cut_refusal()) is None:
            layers = min(len(find_layers(view).names) for view in self.bench.views)
            yield from self._hopeful(pipelines(own, rows, layers, self.fixed), MOST_PIPELINES)
            yield from self._hopeful(accumulations(own, rows, self.fixed), REFINED)
        else:
            self._refuse((Layout(own, "pipeline", 2, 2), Layout(own, "accumulate", 2)), refusal)
        if (refusal := self.bench.cut_refusal(unrolled=True)) is None:
            yield from self._hopeful([Layout(own, "duplex", 2)], REFINED)
        else:
            self._refuse((Layout(own, "duplex", 2),), refusal)

    def _refuse(self, layouts: Iterable[Layout], why: str) -> None:
        """Say of what stands for all layouts of a kind why none of them can be."""
        for layout in filter(self.fixed.allows, layouts):
            self._log(Note(Candidate(layout, FIRST[0]), None, why))

    def _hopeful(self, layouts: Iterable[Layout], most: int) -> Iterator[Candidate]:
        """Those that may take the least."""
        least = {layout: self.bench.least_seconds(layout) for layout in layouts if self.fixed.allows(layout)}
        found = 0
        for layout in sorted(least, key=least.__getitem__):
            if self._is_worse(least[layout]):
                note = Note(Candidate(layout, FIRST[0]), least[layout], "even with ideal shares and no communication")
                self._log(note)
            elif found < most:
                found += 1
                yield Candidate(layout, self._usual())

    def _balanced(self) -> Iterator[Candidate]:
        """Where data parallelism gains by shares by speed, these for what did best with equal ones, and for ZeRO."""
        dp = [note.seconds for note in self.notes[:2] if note.seconds is not None]
        if self.shares and (len(dp) < 2 or dp[1] < (1.0 - LEAST_GAIN) * dp[0]):
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

    def _within_memory(self) -> Iterator[Candidate]:
        """Where what does not fit would be faster, or nothing fits, strategies that pay for memory."""
        known = [note for note in self.notes if note.peak_bytes is not None and note.seconds is not None]
        too_large = [note for note in known if not note.fits and not self._is_worse(note.seconds or 0.0)]
        layouts = [note.candidate.layout for note in sorted(too_large, key=lambda note: note.seconds or 0.0)]
        if self.best is None and not self.estimates and self.bench.cut_refusal() is None:
            layouts += accumulations(self.meshes[0], self.bench.rows)
        choice = replace(FIRST[0], name="search within memory", fits=True)
        yield from (Candidate(layout, choice) for layout in list(dict.fromkeys(layouts))[:REFINED])

    def _consider(self, batch: Sequence[Candidate]) -> None:
        """Solve the candidates of a batch, and make programs of them, the most hopeful first."""
        solved: list[tuple[float, int, Candidate]] = []
        for number, candidate in enumerate(batch):
            if self._is_over:
                return
            self.tried.add(candidate)
            try:
                solved.append((self._hope(candidate), number, candidate))
            except Refused as error:
                self._log(Note(candidate, None, str(error)))
        for rank, (_, _, candidate) in enumerate(sorted(solved, key=lambda each: each[:2])):
            # What was solved was solved to be tried: the most hopeful are, whatever that takes.
            if self._is_over and rank >= SURE:
                return
            try:
                self._judge(candidate)
            except Refused as error:
                self._log(Note(candidate, None, str(error)))
            self.solutions.pop(candidate, None)

    def _hope(self, candidate: Candidate) -> float:
        """Solve a candidate; about the least that its step can take."""
        short = self.short if self._by_short_steps(candidate) else None
        if short is not None and not self.bench.is_folded(candidate):
            pair = short.longer.solve(candidate), short.shorter.solve(candidate)
            self.allowance.spent += SOLVING * short.size
            hope = short.extrapolated(pair[0].hopeful_seconds, pair[1].hopeful_seconds)
            self.solutions[candidate] = hope, pair
            return hope
        solved = self.bench.solve(candidate)
        self.allowance.spent += SOLVING * max(solved.size, LEAST_WORK)
        by_short_steps = short is not None and solved.is_folded
        self.solutions[candidate] = solved.hopeful_seconds, (solved, solved) if by_short_steps else (solved,)
        return solved.hopeful_seconds

    def _by_short_steps(self, candidate: Candidate) -> bool:
        return self.short is not None and candidate.layout.mode != "pipeline"

    def _judge(self, candidate: Candidate) -> None:
        """Make a program of a solved candidate, if it may be the best: of short steps, where these will do."""
        hope, solutions = self.solutions[candidate]
        if len(solutions) == 1 and self.best is None and self.estimates:
            # Pipelines are compared with a program that is there.
            self._finish_estimated(1)
        if self._is_settled(candidate, solutions[0], hope):
            return
        if len(solutions) == 1:
            self._make(solutions[0])
        elif self.short is not None:
            self._estimate(candidate, self.short, *solutions)

    def _make(self, solved: Solved) -> None:
        """Make programs of the whole step, and keep the fastest."""
        self.allowance.spent += self.size * solved.candidate.layout.stages
        for finished in self.bench.finish(solved):
            self._take(finished)

    def _estimate(self, candidate: Candidate, short: ShortBenches, longer: Solved, shorter: Solved) -> None:
        """What the whole step takes, by two short ones."""
        self.allowance.spent += short.size
        (long,), (brief,) = short.longer.finish(longer), short.shorter.finish(shorter)
        seconds, exposed = (
            short.extrapolated(*pair) for pair in ((long.seconds, brief.seconds), (long.exposed, brief.exposed))
        )
        peak = int(short.extrapolated(long.tightest[0], brief.tightest[0]))
        note = Note(candidate, seconds, "by shorter steps", exposed, peak, long.tightest[1])
        if note.fits:
            self.estimates[candidate] = seconds
        self._log(note)

    def _is_settled(self, candidate: Candidate, solved: Solved, hope: float) -> bool:
        """Whether a candidate is out of the race already, by an estimate or because there was one like it."""
        if self._is_worse(hope):
            self._log(Note(candidate, hope, "by an estimate"))
            return True
        first = self.strategies.setdefault(solved.fingerprint, candidate.name)
        if first != candidate.name:
            self._log(Note(candidate, None, f"the same as {first}"))
        return first != candidate.name

    def _take(self, finished: Finished) -> None:
        """Keep a program if it is the fastest that fits; how much a slower one holds is of no interest."""
        self.tried.add(finished.candidate)
        candidate, seconds, exposed = finished.candidate, finished.seconds, finished.exposed
        if self.best is not None and seconds >= self.best.seconds:
            self._log(Note(candidate, seconds, "slower", exposed))
            return
        if finished.fits:
            self.best = finished
        why = "" if finished.fits else "does not fit"
        self._log(Note(candidate, seconds, why, exposed, *finished.tightest))

    def _is_worse(self, least: float) -> bool:
        known = [*([self.best.seconds] if self.best is not None else []), *self.estimates.values()]
        return bool(known) and least >= min(known)

    def _log(self, note: Note) -> None:
        """Keep a note, and say it."""
        self.notes.append(note)
        best = f"{self.best.seconds * 1e3:.4g} ms" if self.best is not None else "none yet"
        took = f"{note.seconds * 1e3:.4g} ms " if note.seconds is not None else ""
        LOG.info("%d candidates, best %s; %s: %s%s", len(self.notes), best, note.candidate.name, took, note.why)


@dataclass(frozen=True)
class ShortBenches:
    """
    Workbenches of two short steps, by which the whole is judged.

    Args:
        left_out: how many layers of the whole the longer has not.
    """

    longer: Workbench
    shorter: Workbench
    left_out: int

    @property
    def size(self) -> int:
        """The ops of both."""
        return max(self.longer.size + self.shorter.size, LEAST_WORK)

    def extrapolated(self, longer: float, shorter: float) -> float:
        """What the whole has of something, of which the short steps have so much."""
        return extrapolated(longer, shorter, self.left_out)


def _short_benches(bench: Workbench) -> ShortBenches | None:
    found = short_steps(bench.fused)
    if found is None:
        return None
    *modules, left_out = found
    longer, shorter = (Workbench(each, bench.cluster, folding=bench.folding) for each in modules)
    return ShortBenches(longer, shorter, left_out)


def _axes(mesh: Mesh) -> tuple[str, ...]:
    return tuple(axis.name for axis in mesh.spatial)
