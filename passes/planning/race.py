"""The race of candidates: they are solved, made programs, simulated and compared, and the fastest that fits is kept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from math import inf

from ...ir.cluster import Cluster
from ...ir.mesh import Mesh
from .candidates import Candidate, Layout
from .chunked_plan import chunked
from .layouts import Fixed, meshes
from .notes import LOG, Allowance, Note, Refused, dropped_if_faulty, verify
from .stages_in_chunks import best_pipeline, in_chunks
from .trials import Attempt, Judged, Trials
from .workbench import Finished, Workbench

LEAST_EFFORT = 0.5
"""The part of the usual work that is done even where there is nothing to gain."""

MOST_EFFORT = 2.0
"""How many times the usual work is done where nearly all of a step might be gained."""

NEVER_GAINED = 0.15
"""What part of a step is above what there is to compute at the least even where nothing better is to be found."""

ONE_LAYOUT = 0.3
"""The part of the usual work that is done where the user has left nothing but the strategy open."""

SURE = 4
"""How many of a batch, the most promising, are made programs of even where no more may be spent."""

AT_ONCE = 2
"""How many programs are made before it is seen which is the fastest: side by side, where processes allow."""

CHUNK = 8
"""How many problems are solved before it is seen whether more may be spent."""


class Race:
    """
    Judges candidates on a workbench and keeps the fastest that fits; one use.

    Args:
        processes: in how many processes at most; what is found does not depend on it.
        ranks: the ranks of the job that the cluster of the workbench has; None for all.
        worth: seconds of a step that is known; slower ones are of no interest.
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
    ) -> None:
        self.bench, self.fixed, self.allowance = bench, fixed, allowance
        self.ranks, self.worth = ranks, worth
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
        return self.bench.times.least(Layout(self.meshes[0]))

    def _is_worse(self, least: float) -> bool:
        best = self.best.seconds if self.best is not None else self.worth
        return least >= min([best, *self.estimates.values()])

    def _log(self, note: Note) -> None:
        """Keep a note, and say it."""
        self.notes.append(note)
        best = f"{self.best.seconds * 1e3:.4g} ms" if self.best is not None else "none yet"
        took = f"{note.seconds * 1e3:.4g} ms " if note.seconds is not None else ""
        LOG.debug("%d candidates, best %s; %s: %s%s", len(self.notes), best, note.candidate.name, took, note.why)
