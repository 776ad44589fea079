"""Race candidates: solve, compile, simulate and compare them, and keep the fastest that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import inf

from ...ir.cluster import Cluster
from ...ir.mesh import Mesh
from .candidate_compiler import CandidateCompiler, Finished
from .candidates import Candidate, Layout
from .evaluator import CandidateEvaluation, Evaluator, SolvedCandidate
from .layouts import LayoutConstraints, meshes
from .notes import LOG, Allowance, Note, Refused, verify

LEAST_GAIN = 0.01
"""Fraction of a step that a further search must be able to save. Shares by speed must save as much."""

LEAST_EFFORT = 0.5
"""Least fraction of the usual work that is done if a step can be improved."""

MOST_EFFORT = 2.0
"""Multiple of the usual work that is done if nearly all of a step might be saved."""

NEVER_GAINED = 0.15
"""Fraction of a step above the least compute time that no plan is expected to save."""

LIKE_OTHERS = 0.95
"""Estimates are raised by this fraction of the least ratio of a simulated step to its estimate in the same stages."""

ONE_LAYOUT = 0.3
"""Fraction of the usual work that is done if the user has left only the strategy open."""

SURE = 4
"""Number of candidates of a batch that are finished even if the allowance is used up."""

AT_ONCE = 2
"""Number of programs that are compiled, in parallel if processes allow, before they are compared."""

CHUNK = 8
"""Number of problems that are solved before the allowance is checked again."""


class Race:
    """
    Judges candidates with a compiler and keeps the fastest that fits; an instance is used once.

    Args:
        processes: the largest number of processes; the plan does not depend on it.
        ranks: ranks of the job that the compiler's cluster consists of; None for all.
    """

    def __init__(
        self,
        bench: CandidateCompiler,
        fixed: LayoutConstraints,
        allowance: Allowance,
        *,
        processes: int = 1,
        ranks: tuple[int, ...] | None = None,
    ) -> None:
        self.bench, self.fixed, self.allowance = bench, fixed, allowance
        self.ranks, self.worth = ranks, inf
        self.trials = Evaluator(bench, processes)
        self.notes: list[Note] = []
        self.bests: list[tuple[CandidateEvaluation, SolvedCandidate]] = []
        """All candidates that were the best when they were judged, the best last; only the last keeps its program."""
        self.to_gain: float | None = None
        """Fraction of the fastest step, simulated or estimated, that another plan might save."""
        self.estimates: dict[Candidate, float] = {}
        self.attempts: dict[Candidate, SolvedCandidate] = {}
        """The attempts behind `estimates`, which short steps have judged."""
        self.tried: set[Candidate] = set()
        self.strategies: dict[object, Candidate] = {}
        self.least_ratios: dict[Layout, float] = {}
        """Maps stages to the least ratio of a simulated step to its estimate."""
        self.ideal: dict[Candidate, float] = {}
        """Maps presets with shares by speed to an estimate of their step, from the preset with even shares."""

    @property
    def best(self) -> CandidateEvaluation | None:
        """Return the fastest candidate that fits, so far."""
        return self.bests[-1][0] if self.bests else None

    @property
    def best_seconds(self) -> float:
        """Return the seconds of the fastest candidate that fits, so far."""
        return self.best.seconds if self.best is not None else inf

    @property
    def expected_seconds(self) -> float:
        """Return the seconds of the fastest candidate that fits, according to its program or to short steps."""
        return min([self.best_seconds, *self.estimates.values()])

    @property
    def cluster(self) -> Cluster:
        """Return the cluster of the plan."""
        return self.bench.cluster

    @property
    def meshes(self) -> list[Mesh]:
        """Return the meshes that the devices may form."""
        if self.fixed.mesh is not None:
            return [self.fixed.mesh]
        return [self.bench.own_mesh] if self.bench.is_pinned else meshes(self.cluster)

    def _verified(self) -> Finished | None:
        """Return the program of the best candidate whose program verifies."""
        while self.bests:
            judged, attempt = self.bests[-1]
            program = self.trials.program(attempt, judged)
            try:
                verify(program.module, judged.candidate)
                return program
            except Refused as error:
                self.bests.pop()
                self.notes = [note for note in self.notes if note.candidate != judged.candidate]
                self._log(Note(judged.candidate, None, str(error)))
        return None

    def _is_open(self, candidate: Candidate) -> bool:
        """Return whether a candidate was not tried yet and the user's decisions allow it."""
        return self.fixed.allows(candidate.layout) and candidate not in self.tried

    @property
    def _is_over(self) -> bool:
        """Return whether the allowance is used up. It is smaller if little can be gained."""
        if self.to_gain is None:
            return self.worth < inf and self.allowance.is_over(LEAST_EFFORT)
        if self.to_gain < LEAST_GAIN:
            return True
        effort = max(MOST_EFFORT * self.to_gain, LEAST_EFFORT)
        return self.allowance.is_over(effort * (ONE_LAYOUT if self.fixed.is_one_layout else 1.0))

    def _finish_estimated(self, count: int) -> None:
        """Finish the whole step of the candidates that are the fastest by short steps."""
        whole: list[SolvedCandidate] = []
        for candidate in sorted(self.estimates, key=self.estimates.__getitem__)[:count]:
            del self.estimates[candidate]
            solved = self.trials.whole(self.attempts.pop(candidate))
            if isinstance(solved, str):
                self._log(Note(candidate, None, solved))
            else:
                whole.append(solved)
        self._judge(whole)

    def consider(self, batch: Sequence[Candidate], *, to_the_end: bool = False) -> None:
        """
        Solve the candidates of a batch, and finish them in the order of their expected seconds.

        Args:
            to_the_end: whether the allowance is ignored.
        """
        solved: list[SolvedCandidate] = []
        for chunk in (batch[at : at + CHUNK] for at in range(0, len(batch), CHUNK)):
            if self._is_over and not to_the_end:
                break
            self.tried.update(chunk)
            hopeful = [candidate for candidate in chunk if not self._is_hopeless(candidate)]
            for candidate, result in zip(hopeful, self.trials.solve(hopeful, self._known_seconds), strict=True):
                if isinstance(result, str):
                    self._log(Note(candidate, None, result))
                else:
                    solved.append(result)
                    self.allowance.spent += result.work
                    self._estimate_by_speed(result)
        solved.sort(key=lambda attempt: attempt.expected)
        for at in range(0, len(solved), AT_ONCE):
            # Solving has already been paid for, so the most promising candidates are always finished.
            if self._is_over and at >= SURE and not to_the_end:
                break
            if not solved[at].by_short_steps and self.best is None and self.estimates:
                # Pipelines are compared with a finished program.
                self._finish_estimated(1)
            self._judge([attempt for attempt in solved[at : at + AT_ONCE] if not self._is_settled(attempt)])

    def _judge(self, attempts: list[SolvedCandidate]) -> None:
        """Finish and simulate some candidates, and keep the best one."""
        for attempt, judged in zip(attempts, self.trials.judge(attempts, self._limit), strict=True):
            if isinstance(judged, str):
                self._log(Note(attempt.candidate, None, judged))
                continue
            self.allowance.spent += judged.work
            is_first = self.to_gain is None
            if (layout := attempt.candidate.layout.without_time).mode == "pipeline":
                ratio = judged.seconds / max(attempt.optimistic, 1e-12)
                self.least_ratios[layout] = min(ratio, self.least_ratios.get(layout, inf))
            if attempt.by_short_steps:
                self._estimate(attempt, judged)
            else:
                self._take(attempt, judged)
            if is_first and self.to_gain is not None:
                # The allowance is for plans that are faster than the first that fits.
                self.allowance.spent = 0.0

    def _estimate(self, attempt: SolvedCandidate, judged: CandidateEvaluation) -> None:
        """Keep the estimate of a candidate that short steps give."""
        assert judged.peak is not None
        if judged.fits:
            if not self._is_worse(judged.seconds):
                self.to_gain = self._to_gain(judged)
            self.estimates[attempt.candidate] = judged.seconds
            self.attempts[attempt.candidate] = attempt
        self._log(Note(judged.candidate, judged.seconds, "by shorter steps", judged.exposed, *judged.peak))

    def _estimate_by_speed(self, attempt: SolvedCandidate) -> None:
        """Estimate a preset with shares by speed; its collectives take at least as long as with even shares."""
        layout, choice = attempt.candidate.layout, attempt.candidate.choice
        is_even_preset = choice.is_completion and not choice.balanced and layout.stages == len(attempt.solved) == 1
        if is_even_preset and len(self.cluster.kinds_used) > 1:
            (solved,), least = attempt.solved, self.bench.times.least(layout)
            compute = sum(sums.compute for sums in solved.sums)
            balanced = replace(attempt.candidate, choice=replace(choice, balanced=True))
            self.ideal[balanced] = solved.optimistic_seconds(least / compute if compute else 1.0)

    def _is_hopeless(self, candidate: Candidate) -> bool:
        """Return whether a candidate leaves the race before it is solved: with ideal shares it is still too slow."""
        if is_worse := self._is_worse(estimate := self.ideal.get(candidate, 0.0)):
            self._log(Note(candidate, estimate, "by an estimate"))
        return is_worse

    def _is_settled(self, attempt: SolvedCandidate) -> bool:
        """Return whether a candidate leaves the race, since its estimate is too slow or it repeats another one."""
        candidate = attempt.candidate
        # All strategies in the same stages wait for the same transfers, which estimates do not count.
        ratio = max(1.0, LIKE_OTHERS * self.least_ratios.get(candidate.layout.without_time, 0.0))
        if self._is_worse(estimate := ratio * attempt.optimistic):
            self._log(Note(candidate, estimate, "by an estimate"))
            return True
        first = self.strategies.setdefault(attempt.solved[0].fingerprint, candidate)
        if first != candidate:
            self._log(Note(candidate, None, f"the same as {first.name}", same_as=first))
        return first != candidate

    def _take(self, attempt: SolvedCandidate, judged: CandidateEvaluation) -> None:
        """Keep a program if it is the fastest that fits. The memory of slower programs is not computed."""
        if judged.peak is None or judged.seconds >= self._limit:
            self._log(Note(judged.candidate, judged.seconds, "slower", judged.exposed))
            return
        if judged.fits:
            if self.bests:
                former, its_attempt = self.bests[-1]
                self.bests[-1] = replace(former, program=None), its_attempt
            self.bests.append((judged, attempt))
            self.to_gain = self._to_gain(judged)
        why = "" if judged.fits else "does not fit"
        self._log(Note(judged.candidate, judged.seconds, why, judged.exposed, *judged.peak))

    def _to_gain(self, judged: CandidateEvaluation) -> float:
        """
        Return the part of a step that another plan might save: exposed communication, or compute beyond the minimum.
        In parts that take turns, compute is compared with the least of all simulated steps.

        The second term counts replicated computation, and the third small parts; neither exposes communication.
        """
        if not judged.seconds:
            return 0.0
        saved = [judged.exposed / judged.seconds, 1.0 - self._least / judged.seconds - NEVER_GAINED]
        if judged.candidate.layout.mode == "duplex":
            simulated = (note for note in self.notes if note.candidate.layout.stages == 1 and note.exposed is not None)
            busy = (note.seconds - (note.exposed or 0.0) for note in simulated if note.seconds is not None)
            saved.append(1.0 - min(busy, default=judged.seconds) / judged.seconds)
        return max(saved)

    @cached_property
    def _least(self) -> float:
        """Return the compute time of the step if all devices share it ideally."""
        return self.bench.times.least(Layout(self.meshes[0]))

    @property
    def _limit(self) -> float:
        """Return the seconds that a program must beat."""
        return min(self.best_seconds, self.worth)

    @property
    def _known_seconds(self) -> float:
        """Return the seconds of the fastest step that is known, simulated or estimated, also on other devices."""
        return min(self.worth, self.expected_seconds)

    def _is_worse(self, least: float) -> bool:
        return least >= self._known_seconds

    def _log(self, note: Note) -> None:
        self.notes.append(note)
        best = f"{self.best.seconds * 1e3:.4g} ms" if self.best is not None else "none yet"
        took = f"{note.seconds * 1e3:.4g} ms " if note.seconds is not None else ""
        level = self.allowance.next_report_level()
        LOG.log(level, "%d candidates, best %s; %s: %s%s", len(self.notes), best, note.candidate.name, took, note.why)
