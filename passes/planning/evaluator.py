"""Trying a candidate: its strategy first, then programs of it, whole or of two short steps that say what it takes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from .candidate_compiler import CandidateCompiler, Finished, PackedSolved, Solved
from .candidates import Candidate
from .notes import Refused, dropped_if_faulty
from .processes import side_by_side
from .shrink import extrapolated
from .solutions import Peak

STATE = 0.1
"""What an alternative of a decision counts in a problem that is solved, where an op counts 1 in a program."""

LEAST_WORK = 800
"""What any program counts at least."""


@dataclass(frozen=True)
class SolvedCandidate:
    """
    A candidate with its strategy.

    Args:
        optimistic: about the least that its step can take, in seconds.
        solved: on the whole step; or, where short steps will judge it, on the longer of them and on the shorter, unless
            one folded strategy serves both.
        work: what it took, in ops.
        by_short_steps: whether short steps will judge it.
    """

    candidate: Candidate
    optimistic: float
    solved: tuple[Solved, ...]
    work: float
    by_short_steps: bool


@dataclass(frozen=True)
class CandidateEvaluation:
    """
    What a candidate comes to.

    Args:
        seconds, exposed: of the step, and of these those in which the stage that computes longest does not.
        peak: as `Finished.tightest`; None where the step takes longer than one that is known.
        work: what it took, in ops.
        program: None where it was made in another process, or of short steps.
    """

    candidate: Candidate
    seconds: float
    exposed: float
    peak: Peak | None
    work: float
    program: Finished | None = field(default=None, repr=False)

    @property
    def fits(self) -> bool:
        """Whether it is known that every rank has the memory that it needs."""
        return self.peak is not None and self.peak.fits


@dataclass(frozen=True)
class _PackedAttempt:
    """An attempt that another process can read."""

    attempt: SolvedCandidate
    solved: tuple[PackedSolved, ...]


@dataclass(frozen=True)
class _ShortBenches:
    """
    Workbenches of two short steps, by which the whole is judged.

    Args:
        left_out: how many layers of the whole the longer has not.
    """

    longer: CandidateCompiler
    shorter: CandidateCompiler
    left_out: int

    @property
    def both(self) -> tuple[CandidateCompiler, CandidateCompiler]:
        """The longer and the shorter."""
        return self.longer, self.shorter

    @property
    def size(self) -> int:
        """The ops of both."""
        return max(self.longer.size + self.shorter.size, LEAST_WORK)

    def extrapolated(self, longer: float, shorter: float) -> float:
        """What the whole has of something, of which the short steps have so much."""
        return extrapolated(longer, shorter, self.left_out)


@dataclass(frozen=True)
class _Benches:
    """Where candidates that keep the same part of activations are tried: whole, and by short steps, if there are."""

    whole: CandidateCompiler
    short: _ShortBenches | None

    @property
    def size(self) -> int:
        """The ops of the whole step."""
        return max(self.whole.size, LEAST_WORK)


class Evaluator:
    """
    Tries candidates of one step, several at a time.

    What one comes to depends on no other, nor on the number of processes. What cannot be is a string that says why.
    """

    def __init__(self, bench: CandidateCompiler, processes: int = 1) -> None:
        self.processes = processes
        self._benches: dict[float, _Benches] = {}
        self._bench = bench

    def solve(self, candidates: list[Candidate]) -> list[SolvedCandidate | str]:
        """Find strategies."""
        for candidate in candidates:
            self._of(candidate)  # Processes that are forked have it then.
        # Candidates of one layout share most of their problem, but for what is pinned.
        return side_by_side(
            self._solved,
            candidates,
            self.processes,
            pack=_packed,
            unpack=self._unpacked,
            together=lambda each: (each.layout, each.choice.pins),
        )

    def judge(self, attempts: list[SolvedCandidate], worth: float) -> list[CandidateEvaluation | str]:
        """
        Make programs of candidates, and simulate them.

        Args:
            worth: seconds of a step from which on nobody asks how much memory it needs.
        """
        judged = partial(self._judged, worth=worth)
        return side_by_side(judged, attempts, self.processes, pack=_without_program)

    def whole(self, attempt: SolvedCandidate) -> SolvedCandidate | str:
        """An attempt at the whole step of one that short steps have judged."""
        if not attempt.by_short_steps:
            return attempt
        (first, *_) = attempt.solved
        if first.is_folded:
            return replace(attempt, solved=(first,), by_short_steps=False)
        return self._tried(attempt.candidate)

    def program(self, attempt: SolvedCandidate, judged: CandidateEvaluation) -> Finished:
        """The program of what was judged."""
        if judged.program is not None:
            return judged.program
        return self._of(attempt.candidate).whole.finish(attempt.solved[0])

    def _of(self, candidate: Candidate) -> _Benches:
        if (keep := candidate.layout.keep) not in self._benches:
            bench = self._bench.keeping(keep)
            self._benches[keep] = _Benches(bench, None if bench.is_pinned else _short_benches(bench))
        return self._benches[keep]

    def _solved(self, candidate: Candidate) -> SolvedCandidate | str:
        benches = self._of(candidate)
        short = benches.short if candidate.layout.mode != "pipeline" else None
        if short is None or benches.whole.is_folded(candidate):
            # What was found once for all must be known on both short steps, if these are to judge it.
            serves = short is not None and all(bench.is_folded(candidate) for bench in short.both)
            return self._tried(candidate, by_short_steps=serves)
        before = sum(each.states for each in short.both)
        try:
            with dropped_if_faulty(candidate):
                longer, shorter = (each.solve(candidate) for each in short.both)
        except Refused as error:
            return str(error)
        work = STATE * (sum(each.states for each in short.both) - before)
        optimistic = short.extrapolated(
            short.longer.optimistic_seconds(longer), short.shorter.optimistic_seconds(shorter)
        )
        return SolvedCandidate(candidate, optimistic, (longer, shorter), work, by_short_steps=True)

    def _tried(self, candidate: Candidate, *, by_short_steps: bool = False) -> SolvedCandidate | str:
        bench = self._of(candidate).whole
        before = bench.states
        try:
            with dropped_if_faulty(candidate):
                solved = bench.solve(candidate)
        except Refused as error:
            return str(error)
        work = STATE * (bench.states - before)
        least = bench.optimistic_seconds(solved)
        return SolvedCandidate(candidate, least, (solved,), work, by_short_steps and solved.is_folded)

    def _unpacked(self, packed: _PackedAttempt | str) -> SolvedCandidate | str:
        if isinstance(packed, str):
            return packed
        benches, is_pair = self._of(packed.attempt.candidate), len(packed.solved) > 1
        used = benches.short.both if is_pair and benches.short is not None else (benches.whole,)
        solved = (bench.unpacked(each) for bench, each in zip(used, packed.solved, strict=True))
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
        made = benches.whole.finish(solved)
        peak = made.tightest if made.seconds < worth else None
        work = float(benches.size * attempt.candidate.layout.stages)
        return CandidateEvaluation(made.candidate, made.seconds, made.exposed, peak, work, made)

    def _estimated(self, attempt: SolvedCandidate, short: _ShortBenches) -> CandidateEvaluation:
        """What the whole step takes, by two short ones."""
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
    return _PackedAttempt(replace(found, solved=()), tuple(each.packed() for each in found.solved))


def _without_program(found: CandidateEvaluation | str) -> CandidateEvaluation | str:
    return found if isinstance(found, str) else replace(found, program=None)


def _short_benches(bench: CandidateCompiler) -> _ShortBenches | None:
    found = bench.short_steps
    if found is None:
        return None
    *modules, left_out = found
    longer, shorter = (CandidateCompiler(each, bench.cluster, folding=bench.folding) for each in modules)
    return _ShortBenches(longer, shorter, left_out)
