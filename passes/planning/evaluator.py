"""Evaluate candidates: find a strategy, then compile and simulate the whole step or two short steps that predict it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from .candidate_compiler import CandidateCompiler, Finished, PackedSolved, Solved
from .candidates import Candidate
from .notes import Refused, dropped_if_faulty
from .processes import side_by_side
from .shrink import extrapolated
from .solutions import Peak

STATE = 0.1
"""Work of one alternative of a decision in a solved problem, where one op in a program counts 1."""

LEAST_WORK = 800
"""The least work that a program counts as, in ops."""


@dataclass(frozen=True)
class SolvedCandidate:
    """
    A candidate with its strategy.

    Args:
        optimistic: estimate of the least seconds of its step.
        expected: estimate of the seconds of its step, to compare candidates.
        solved: the strategy of the whole step; if short steps will judge the candidate, the strategies of the longer
            and the shorter step, or one folded strategy for both.
        work: work spent to find the strategy, in ops.
        by_short_steps: whether short steps will judge it.
    """

    candidate: Candidate
    optimistic: float
    expected: float
    solved: tuple[Solved, ...]
    work: float
    by_short_steps: bool


@dataclass(frozen=True)
class CandidateEvaluation:
    """
    The result of simulating a candidate.

    Args:
        seconds, exposed: seconds of the step, and the part of them while the stage that computes longest is idle.
        peak: peak of the rank closest to its memory limit (`Finished.tightest`), or None if the step is too slow.
        work: work spent on the simulation, in ops.
        program: the program, or None if another process compiled it or only short steps were compiled.
    """

    candidate: Candidate
    seconds: float
    exposed: float
    peak: Peak | None
    work: float
    program: Finished | None = field(default=None, repr=False)

    @property
    def fits(self) -> bool:
        """Return whether every rank is known to have the memory that it needs."""
        return self.peak is not None and self.peak.fits


@dataclass(frozen=True)
class _PackedAttempt:
    """A solved candidate that another process can read."""

    attempt: SolvedCandidate
    solved: tuple[PackedSolved, ...]


@dataclass(frozen=True)
class _ShortBenches:
    """
    Compilers of two short steps that predict the whole step.

    Args:
        left_out: number of layers that the longer short step lacks, compared to the whole step.
    """

    longer: CandidateCompiler
    shorter: CandidateCompiler
    left_out: int

    @property
    def both(self) -> tuple[CandidateCompiler, CandidateCompiler]:
        """Return the compilers of the longer and the shorter step."""
        return self.longer, self.shorter

    @property
    def size(self) -> int:
        """Return the number of ops of both short steps."""
        return max(self.longer.size + self.shorter.size, LEAST_WORK)

    def extrapolated(self, longer: float, shorter: float) -> float:
        """Extrapolate a quantity of the two short steps to the whole step."""
        return extrapolated(longer, shorter, self.left_out)


@dataclass(frozen=True)
class _Benches:
    """Compilers for candidates that keep one fraction of activations: the whole step, and short steps if possible."""

    whole: CandidateCompiler
    short: _ShortBenches | None

    @property
    def size(self) -> int:
        """Return the number of ops of the whole step."""
        return max(self.whole.size, LEAST_WORK)


class Evaluator:
    """
    Evaluates candidates of one step, several at a time.

    Results depend only on the candidate and a known step. An infeasible candidate yields its reason as a string.
    """

    def __init__(self, bench: CandidateCompiler, processes: int = 1) -> None:
        self.processes = processes
        self._benches: dict[float, _Benches] = {}
        self._bench = bench

    def solve(self, candidates: list[Candidate], worth: float = inf) -> list[SolvedCandidate | str]:
        """
        Find the strategies of candidates.

        Args:
            worth: seconds of a step that is known; a candidate that must fit and cannot be faster may be infeasible.
        """
        for candidate in candidates:
            self._of(candidate)  # Create the compilers before processes are forked, so that all of them have these.
        # Candidates with the same layout and pins share most of their problem.
        return side_by_side(
            partial(self._solved, worth=worth),
            candidates,
            self.processes,
            pack=_packed,
            unpack=self._unpacked,
            together=lambda candidate: (candidate.layout, candidate.choice.pins),
        )

    def judge(self, attempts: list[SolvedCandidate], worth: float) -> list[CandidateEvaluation | str]:
        """
        Compile candidates and simulate their programs.

        Args:
            worth: limit of the step, in seconds; the peak memory of slower steps is not computed.
        """
        judged = partial(self._judged, worth=worth)
        return side_by_side(judged, attempts, self.processes, pack=_without_program)

    def whole(self, attempt: SolvedCandidate) -> SolvedCandidate | str:
        """Return the candidate solved on the whole step, even if short steps have judged it."""
        if not attempt.by_short_steps:
            return attempt
        (first, *_) = attempt.solved
        if first.is_folded:
            return replace(attempt, solved=(first,), by_short_steps=False)
        return self._tried(attempt.candidate, inf)

    def program(self, attempt: SolvedCandidate, judged: CandidateEvaluation) -> Finished:
        """Return the program of an evaluated candidate; compile it if the evaluation has none."""
        if judged.program is not None:
            return judged.program
        return self._of(attempt.candidate).whole.finish(attempt.solved[0])

    def _of(self, candidate: Candidate) -> _Benches:
        if (keep := candidate.layout.keep) not in self._benches:
            bench = self._bench.keeping(keep)
            self._benches[keep] = _Benches(bench, None if bench.is_pinned else _short_benches(bench))
        return self._benches[keep]

    def _solved(self, candidate: Candidate, worth: float) -> SolvedCandidate | str:
        benches = self._of(candidate)
        # Short steps hold fewer activations, so a strategy that must fit is found for the whole step.
        is_short = candidate.layout.mode != "pipeline" and not candidate.choice.fits
        short = benches.short if is_short else None
        if short is None or benches.whole.is_folded(candidate):
            # A strategy of the folded step can be judged by short steps only if both of these are folded, too.
            serves = short is not None and all(bench.is_folded(candidate) for bench in short.both)
            return self._tried(candidate, worth, by_short_steps=serves)
        before = sum(bench.states for bench in short.both)
        try:
            with dropped_if_faulty(candidate):
                longer, shorter = (bench.solve(candidate) for bench in short.both)
        except Refused as error:
            return str(error)
        work = STATE * (sum(bench.states for bench in short.both) - before)
        (most, more), (least, less) = short.longer.estimates(longer), short.shorter.estimates(shorter)
        optimistic, expected = short.extrapolated(most, least), short.extrapolated(more, less)
        return SolvedCandidate(candidate, optimistic, expected, (longer, shorter), work, by_short_steps=True)

    def _tried(self, candidate: Candidate, worth: float, *, by_short_steps: bool = False) -> SolvedCandidate | str:
        bench = self._of(candidate).whole
        before = bench.states
        try:
            with dropped_if_faulty(candidate):
                solved = bench.solve(candidate, worth=worth)
        except Refused as error:
            return str(error)
        work = STATE * (bench.states - before)
        return SolvedCandidate(
            candidate, *bench.estimates(solved), (solved,), work, by_short_steps and solved.is_folded
        )

    def _unpacked(self, packed: _PackedAttempt | str) -> SolvedCandidate | str:
        if isinstance(packed, str):
            return packed
        benches, is_pair = self._of(packed.attempt.candidate), len(packed.solved) > 1
        used = benches.short.both if is_pair and benches.short is not None else (benches.whole,)
        solved = (bench.unpacked(strategy) for bench, strategy in zip(used, packed.solved, strict=True))
        return replace(packed.attempt, solved=tuple(solved))

    def _judged(self, attempt: SolvedCandidate, worth: float) -> CandidateEvaluation | str:
        try:
            benches = self._of(attempt.candidate)
            with dropped_if_faulty(attempt.candidate):
                if attempt.by_short_steps and benches.short is not None:
                    return self._estimated(attempt, benches.short)
                return self._finished(attempt, worth, benches)
        except Refused as error:
            return str(error)

    def _finished(self, attempt: SolvedCandidate, worth: float, benches: _Benches) -> CandidateEvaluation:
        (solved,) = attempt.solved
        finished = benches.whole.finish(solved)
        peak = finished.tightest if finished.seconds < worth else None
        work = float(benches.size * attempt.candidate.layout.stages)
        return CandidateEvaluation(finished.candidate, finished.seconds, finished.exposed, peak, work, finished)

    def _estimated(self, attempt: SolvedCandidate, short: _ShortBenches) -> CandidateEvaluation:
        """Extrapolate the seconds and the peak of the whole step from two short steps."""
        solved = attempt.solved * 2 if len(attempt.solved) == 1 else attempt.solved
        long, brief = (bench.finish(each) for bench, each in zip(short.both, solved, strict=True))
        seconds = short.extrapolated(long.seconds, brief.seconds)
        exposed = short.extrapolated(long.exposed, brief.exposed)
        held, memory, lasting = long.tightest
        peak = Peak(
            int(short.extrapolated(held, brief.tightest.held)),
            memory,
            int(short.extrapolated(lasting, brief.tightest.lasting)),
        )
        return CandidateEvaluation(attempt.candidate, seconds, exposed, peak, short.size)


def _packed(found: SolvedCandidate | str) -> _PackedAttempt | str:
    if isinstance(found, str):
        return found
    return _PackedAttempt(replace(found, solved=()), tuple(solved.packed() for solved in found.solved))


def _without_program(found: CandidateEvaluation | str) -> CandidateEvaluation | str:
    return found if isinstance(found, str) else replace(found, program=None)


def _short_benches(bench: CandidateCompiler) -> _ShortBenches | None:
    steps = bench.short_steps
    if steps is None:
        return None
    *modules, left_out = steps
    longer, shorter = (CandidateCompiler(module, bench.cluster, folding=bench.folding) for module in modules)
    return _ShortBenches(longer, shorter, left_out)
