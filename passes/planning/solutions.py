"""A step on a layout, a strategy of it, and the program that comes of that."""

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
from ..step.batch_parts import Batch, find_parts
from ..step.factors import Factors
from ..step.step_view import StepView, step_views
from .candidates import Candidate


@dataclass(frozen=True)
class LaidOut:
    """
    A step on a mesh, in its stages, if it has any, without a strategy.

    Args:
        stages: with the cluster of each, and how dims are divided there.
    """

    module: ModuleOp
    stages: tuple[tuple[StepView, Cluster, Factors], ...]
    loops: dict[Batch, BatchLoop] = field(default_factory=dict[Batch, BatchLoop], init=False, repr=False, compare=False)

    def loop(self, batch: Batch) -> BatchLoop | None:
        """How the step goes through the parts of a batch; None where it has no ops."""
        if not self.stages:
            return None
        if batch not in self.loops:
            whole = self.stages[0][0].whole
            found = find_parts(list(whole.func.body.block.ops), whole.inputs, batch)
            self.loops[batch] = BatchLoop(batch.parts, found)
        return self.loops[batch]

    @staticmethod
    def of(module: ModuleOp) -> LaidOut:
        """The step that a module is."""
        views = step_views(module)
        return LaidOut(module, tuple((v, c, Factors(v, ratios_of(v.func, v.mesh))) for v, c in views))

    def written(
        self, strategies: Sequence[Strategy], source: LaidOut | None = None, counterparts: Counterparts | None = None
    ) -> ModuleOp:
        """
        A copy of the module with the strategies of its stages.

        Args:
            source: of whose ops and values the strategies are: this one's, or those of a step with `counterparts`.
        """
        module = self.module.clone()
        stages = (source or self).stages
        for (view, _), (of, _, _), strategy in zip(step_views(module), stages, strategies, strict=True):
            write_strategy(view, transferred(strategy, of, view, counterparts))
        return module


@dataclass(frozen=True)
class Solved:
    """
    A candidate with its strategy.

    Args:
        step: whose ops and values the strategies refer to: the step on the candidate's layout, or, where `is_folded`,
            the short step that represents it.
        found: by stage, the strategy and what it comes to for the whole step.
    """

    candidate: Candidate
    step: LaidOut
    found: tuple[tuple[Strategy, StrategySums], ...]
    is_folded: bool = False

    @property
    def sums(self) -> tuple[StrategySums, ...]:
        """By stage, what the strategy comes to."""
        return tuple(sums for _, sums in self.found)

    def packed(self) -> PackedSolved:
        """The same for another process, that unpacks it on a workbench of the same step."""
        stages = self.step.stages
        strategies = (packed(strategy, view) for (strategy, _), (view, _, _) in zip(self.found, stages, strict=True))
        ratios = tuple(ratios_of(view.func, view.mesh) for view, _, _ in stages)
        balanced = ratios if self.candidate.choice.balanced else ()
        return PackedSolved(self.candidate, tuple(strategies), self.sums, balanced, self.is_folded)

    @cached_property
    def fingerprint(self) -> object:
        """Equal for equal strategies on one layout."""
        decided = ((tuple(s.ops.values()), tuple(s.homes.values()), tuple(s.copies.values())) for s, _ in self.found)
        return self.candidate.layout, self.candidate.choice.balanced, hash(tuple(decided))

    def optimistic_seconds(self, slowest: float = 1.0) -> float:
        """
        About the least that the step can take: much of what blocks may be hidden, and all that need not.

        Args:
            slowest: what the device takes that is slowest at all ops together, as a part of what the slowest at each of
                them does, which the sums count.
        """
        stages = [self._optimistic(each, slowest) for each in self.sums]
        rest = (sum(stages) - max(stages)) / self.candidate.layout.parts
        return max(stages) + BUBBLE_AT_BEST * rest

    def _optimistic(self, sums: StrategySums, slowest: float) -> float:
        """The same of one stage. Where parts take turns, one computes while another is blocked."""
        compute = slowest * sums.compute
        if self.candidate.layout.mode == "duplex":
            return max(compute, AT_BEST * sums.blocking, AT_BEST * sums.beside)
        exposed = EXPOSED * min(compute, sums.beside)
        return max(compute, AT_BEST * (max(compute, sums.beside) + exposed + sums.blocking))


@dataclass(frozen=True)
class PackedSolved:
    """
    A solved candidate that another process can read.

    Args:
        strategies: by stage.
        ratios: by stage, the shares of devices by segment, where they are not even.
    """

    candidate: Candidate
    strategies: tuple[PackedStrategy, ...]
    sums: tuple[StrategySums, ...]
    ratios: tuple[dict[int, Ratios], ...]
    is_folded: bool


AT_BEST = 0.85
"""The part of an estimate that a step may take at the least, since some of its terms may be hidden."""

EXPOSED = 0.25
"""The part of collectives beside compute, or of compute beside these, that has nothing beside it: gradients begin with
the backward pass."""

BUBBLE_AT_BEST = 0.8
"""The part of a pipeline's filling and draining that counts in one: gradients of weights may fill it."""


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
    A candidate as a program.

    Args:
        spent: how the simulated step is spent.
    """

    candidate: Candidate
    module: ModuleOp = field(repr=False)
    spent: TimeSpent
    simulation: Simulation = field(repr=False)

    @property
    def seconds(self) -> float:
        """Of the simulated step."""
        return self.spent.seconds

    @property
    def exposed(self) -> float:
        """Seconds in which the rank that computes longest does not."""
        return self.spent.exposed

    @cached_property
    def tightest(self) -> Peak:
        """Return the peak of the rank that comes closest to its memory, or exceeds it by most."""
        found = max(tightest_ranks(self.module), key=lambda each: each.excess)
        return Peak(found.bytes, found.limit, found.lasting)

    @property
    def fits(self) -> bool:
        """Whether every rank has the memory that it needs."""
        return self.tightest.fits
