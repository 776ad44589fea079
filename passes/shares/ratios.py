"""
The shares of an axis' parts that make a step shortest: HAP's linear program (5.1, 5.2).

    minimise   sum_p  fixed_p + rate_p * L_s(p)  +  T_p          over shares B and the helpers L, T
    subject    T_p >= a + b * B_s,j          for every line (j, a, b) of phase p         `Phase.work`
               L_s >= B_s,j                  the largest share of a segment
               sum_j B_s,j = 1,  B_s,j >= least
               sum_s,j bytes_s,j * B_s,j <= budget                                        `MemoryLimit`

A phase is communication, which takes as long as the largest share, then computation, which takes as long as the
slowest device; s is the segment of the model that it belongs to, j a part of the axis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Shares = tuple[tuple[float, ...], ...]
"""By segment, the share of every part."""


_EVEN = 1e-7
"""What the largest share costs besides, so that where shares do not matter they are even."""


class NoShares(ValueError):
    """No shares obey all limits."""


@dataclass(frozen=True)
class PhaseWork:
    """How long the devices of one part compute in a phase: `fixed + rate * share`, in seconds."""

    part: int
    fixed: float
    rate: float


@dataclass(frozen=True)
class Phase:
    """Communication of `fixed + rate * largest share` seconds, then the slowest of `work`."""

    segment: int
    fixed: float
    rate: float
    work: tuple[PhaseWork, ...]

    def seconds(self, shares: Sequence[float]) -> float:
        """How long it takes with these shares of its segment."""
        computing = max((work.fixed + work.rate * shares[work.part] for work in self.work), default=0.0)
        return self.fixed + self.rate * max(shares) + computing


@dataclass(frozen=True)
class MemoryLimit:
    """What one device can hold at one time: `sum bytes[s, j] * B_s,j <= budget`."""

    bytes: Mapping[tuple[int, int], float]
    budget: float


@dataclass(frozen=True)
class RatioProblem:
    """
    The shares of `parts` parts in `segments` segments.

    least    the smallest share that a part may have
    """

    parts: int
    segments: int
    phases: tuple[Phase, ...]
    limits: tuple[MemoryLimit, ...] = ()
    least: float = 0.0

    def seconds(self, shares: Shares) -> float:
        """How long all phases take."""
        return sum(phase.seconds(shares[phase.segment]) for phase in self.phases)


def solve_ratios(problem: RatioProblem) -> Shares:
    """The shares of least time, by GLOP; NoShares where the limits allow none."""
    # OR-tools takes half a second to import; opt-tool starts without it.
    from ortools.linear_solver.python import model_builder

    total = model_builder.LinearExpr.sum  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    model = model_builder.Model()
    shares = [
        [model.new_num_var(problem.least, 1.0, None) for _ in range(problem.parts)] for _ in range(problem.segments)
    ]
    largest = [model.new_num_var(0.0, 1.0, None) for _ in range(problem.segments)]
    # Seconds and bytes are of many magnitudes; the solver's tolerances are for numbers near 1.
    longest_phase = max((phase.seconds((1.0,) * problem.parts) for phase in problem.phases), default=0.0)
    scale = 1.0 / (longest_phase or 1.0)
    for top, row in zip(largest, shares, strict=True):
        model.add(total(row) == 1.0)
        for share in row:
            model.add(top - share >= 0.0)
    terms = [(scale * phase.rate) * largest[phase.segment] for phase in problem.phases]
    terms += [_EVEN * top for top in largest]
    for phase in problem.phases:
        if any(work.rate for work in phase.work):
            longest = model.new_num_var(0.0, math.inf, None)
            terms.append(longest * 1.0)
            for work in phase.work:
                share = shares[phase.segment][work.part]
                model.add(longest - (scale * work.rate) * share >= scale * work.fixed)
    for limit in problem.limits:
        unit = max([*limit.bytes.values(), abs(limit.budget), 1.0])
        held = [(count / unit) * shares[s][j] for (s, j), count in limit.bytes.items()]
        model.add(total(held) <= limit.budget / unit)
    model.minimize(total(terms))
    solver = model_builder.Solver("glop")
    if solver.solve(model) != model_builder.SolveStatus.OPTIMAL:
        raise NoShares("no shares keep every device within its memory")
    return tuple(_normalised([solver.value(share) for share in row]) for row in shares)


def _normalised(shares: Sequence[float]) -> tuple[float, ...]:
    """The shares without the solver's noise: six digits, none below zero, a sum of 1."""
    tidy = [round(max(share, 0.0), 6) for share in shares]
    largest = tidy.index(max(tidy))
    tidy[largest] = round(1.0 - sum(tidy[:largest]) - sum(tidy[largest + 1 :]), 6)
    return tuple(tidy)
