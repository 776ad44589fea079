"""A step on a layout, a strategy for it, and the program of that strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from xdsl.dialects.builtin import ModuleOp

from ...dialects.ratios import ratios_of
from ...ir.cluster import Cluster
from ...ir.ratios import Ratios
from ..analysis.simulation.results import Simulation, TimeSpent
from ..analysis.tightest import tightest_ranks
from ..search.decided import Counterparts, PackedStrategy, packed, transferred, write_strategy
from ..search.memory import Strategy
from ..search.objective import BatchLoop
from ..search.strategy_problem import StrategySums
from ..step.batch_parts import Batch, BatchParts, find_parts
from ..step.factors import Factors
from ..step.step_view import StepView, step_views
from .candidates import Candidate


@dataclass(frozen=True)
class LaidOut:
    """
    A step on a mesh, in stages if it is a pipeline, without a strategy.

    Args:
        stages: for each stage its view, its cluster, and the division of its dims.
    """

    module: ModuleOp
    stages: tuple[tuple[StepView, Cluster, Factors], ...]
    parts: dict[Batch, BatchParts] = field(
        default_factory=dict[Batch, BatchParts], init=False, repr=False, compare=False
    )

    def loop(self, batch: Batch, in_flight: int, *, per_part: bool = False) -> BatchLoop | None:
        """
        Return the loop over the parts of a batch, or None if the step has no ops.

        Args:
            in_flight: number of parts whose values are in memory together, at most.
            per_part: whether each part gathers parameters and reduces gradients by itself.
        """
        if not self.stages:
            return None
        if batch not in self.parts:
            whole = self.stages[0][0].whole
            self.parts[batch] = find_parts(list(whole.func.body.block.ops), whole.inputs, batch)
        return BatchLoop(batch.parts, self.parts[batch], in_flight, per_part)

    @staticmethod
    def of(module: ModuleOp) -> LaidOut:
        """Return the step that a module contains."""
        views = step_views(module)
        return LaidOut(module, tuple((v, c, Factors(v, ratios_of(v.func, v.mesh))) for v, c in views))

    def written(
        self, strategies: Sequence[Strategy], source: LaidOut | None = None, counterparts: Counterparts | None = None
    ) -> ModuleOp:
        """
        Return a copy of the module with the strategies of its stages.

        Args:
            source: step whose ops and values the strategies refer to: this one, or one with `counterparts`.
        """
        module = self.module.clone()
        stages = (source or self).stages
        for (view, _), (original, _, _), strategy in zip(step_views(module), stages, strategies, strict=True):
            write_strategy(view, transferred(strategy, original, view, counterparts))
        return module


@dataclass(frozen=True)
class Solved:
    """
    A candidate with its strategy.

    Args:
        step: whose ops and values the strategies refer to: the step on the candidate's layout, or, where `is_folded`,
            the short step that represents it.
        found: for each stage, its strategy and the seconds of the whole step.
    """

    candidate: Candidate
    step: LaidOut
    found: tuple[tuple[Strategy, StrategySums], ...]
    is_folded: bool = False

    @property
    def sums(self) -> tuple[StrategySums, ...]:
        """Return the seconds of the strategy of each stage."""
        return tuple(sums for _, sums in self.found)

    def packed(self) -> PackedSolved:
        """Return a copy for another process, which unpacks it with a compiler of the same step."""
        stages = self.step.stages
        strategies = (packed(strategy, view) for (strategy, _), (view, _, _) in zip(self.found, stages, strict=True))
        ratios = tuple(ratios_of(view.func, view.mesh) for view, _, _ in stages)
        balanced = ratios if self.candidate.choice.balanced else ()
        return PackedSolved(self.candidate, tuple(strategies), self.sums, balanced, self.is_folded)

    @cached_property
    def fingerprint(self) -> object:
        """Return a value that is equal for equal strategies on one layout."""
        decided = ((tuple(s.ops.values()), tuple(s.homes.values()), tuple(s.copies.values())) for s, _ in self.found)
        return self.candidate.layout, self.candidate.choice.balanced, hash(tuple(decided))

    def optimistic_seconds(self, slowest: float = 1.0) -> float:
        """
        Return an estimate of the least seconds of the step, where some of the communication is hidden.

        Args:
            slowest: seconds of all ops on the slowest device, relative to the sum over ops of each op's slowest device,
                which `sums` contain.
        """
        return self._estimated(slowest, AT_BEST, BUBBLE_AT_BEST)

    def expected_seconds(self, slowest: float = 1.0) -> float:
        """Return an estimate of the seconds of the step, to compare candidates; `slowest` as above."""
        return self._estimated(slowest, 1.0, 1.0)

    def _estimated(self, slowest: float, part: float, bubble: float) -> float:
        """Return an estimate that counts a part of each term that may be hidden, and of the fill of a pipeline."""
        stages = [self._of_stage(sums, slowest, part) for sums in self.sums]
        rest = (sum(stages) - max(stages)) / self.candidate.layout.parts
        return max(stages) + bubble * rest

    def _of_stage(self, sums: StrategySums, slowest: float, part: float) -> float:
        """Return the estimate of one stage. Parts of the batch or of products compute while others are blocked."""
        # Shares by speed are rounded for each op, so the slowest device of one op may be the fastest of another.
        compute = slowest * sums.compute * (part if self.candidate.choice.balanced else 1.0)
        if self.candidate.layout.mode == "duplex" or self.candidate.layout.chunked:
            return max(compute, part * sums.busiest, part * sums.beside)
        exposed = EXPOSED * min(compute, sums.beside)
        return max(compute, part * (max(compute, sums.beside) + exposed + sums.blocking))


@dataclass(frozen=True)
class PackedSolved:
    """
    A solved candidate that another process can read.

    Args:
        strategies: strategy of each stage.
        ratios: for each stage, the shares of devices by segment, if they are not even.
    """

    candidate: Candidate
    strategies: tuple[PackedStrategy, ...]
    sums: tuple[StrategySums, ...]
    ratios: tuple[dict[int, Ratios], ...]
    is_folded: bool


AT_BEST = 0.85
"""Fraction of an estimate that a step takes at least, since some of its terms may be hidden."""

MOST_HIDDEN = 4.0
"""The assumed largest ratio of a strategy's weighted seconds to its step: without weights, with traffic on three axes
hidden as far as `optimistic_seconds` assumes, it is 3.8. Many short messages that share buckets may exceed it."""

EXPOSED = 0.25
"""Exposed fraction of the collectives that may overlap compute, or of compute if that is shorter: gradients are sent
during the backward pass only."""

BUBBLE_AT_BEST = 0.8
"""Fraction of a pipeline's fill and drain time that remains at least, since gradients of weights may fill the rest."""


class Peak(NamedTuple):
    """
    The most memory that a rank holds at a time, in bytes.

    Args:
        memory: the memory of the rank.
        lasting: the part of `held` for parameters and optimizer states, which are held throughout the step.
    """

    held: int
    memory: float
    lasting: int

    @property
    def fits(self) -> bool:
        """Return whether the rank has the memory."""
        return self.held <= self.memory


@dataclass(frozen=True)
class Finished:
    """
    A candidate that was compiled and simulated.

    Args:
        spent: breakdown of the time of the simulated step.
    """

    candidate: Candidate
    module: ModuleOp = field(repr=False)
    spent: TimeSpent
    simulation: Simulation = field(repr=False)

    @property
    def seconds(self) -> float:
        """Return the seconds of the simulated step."""
        return self.spent.seconds

    @property
    def exposed(self) -> float:
        """Return the seconds of the step while the rank that computes longest is idle."""
        return self.spent.exposed

    @cached_property
    def tightest(self) -> Peak:
        """Return the peak of the rank that comes closest to its memory, or exceeds it by most."""
        rank = max(tightest_ranks(self.module), key=lambda candidate: candidate.excess)
        return Peak(rank.bytes, rank.limit, rank.lasting)

    @property
    def fits(self) -> bool:
        """Return whether every rank has the memory that it needs."""
        return self.tightest.fits
