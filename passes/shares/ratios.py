"""
The shares of an axis' parts that minimise the time of a step: HAP's linear program (5.1, 5.2).

    minimise   sum_p  fixed_p + rate_p * L_s(p)  +  T_p          over shares B and the helpers L, T
    subject    T_p >= a + b * B_s,j          for every line (j, a, b) of phase p         `Phase.work`
               L_s >= B_s,j                  the largest share of a segment
               sum_j B_s,j = 1,  B_s,j >= least
               sum_s,j bytes_s,j * B_s,j <= budget                                        `MemoryLimit`

A phase is a communication, whose time depends on the largest share, followed by computation, which ends with the
slowest device; s is the segment of the model that contains phase p, and j a part of the axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..analysis.linear_program import LinearProgram

Shares = tuple[tuple[float, ...], ...]
"""The share of each part, by segment."""


_EVEN = 1e-7
"""Extra cost of the largest share, so that shares without influence on the time become even."""


class NoShares(ValueError):
    """No shares satisfy all limits."""


@dataclass(frozen=True)
class PhaseWork:
    """The seconds that devices of one part compute in a phase: `fixed + rate * share`."""

    part: int
    fixed: float
    rate: float


@dataclass(frozen=True)
class Phase:
    """A phase: communication of `fixed + rate * max(shares)` seconds, then the slowest of `work`."""

    segment: int
    fixed: float
    rate: float
    work: tuple[PhaseWork, ...]

    def seconds(self, shares: Sequence[float]) -> float:
        """Return the seconds of the phase with these shares of its segment."""
        computing = max((work.fixed + work.rate * shares[work.part] for work in self.work), default=0.0)
        return self.fixed + self.rate * max(shares) + computing


@dataclass(frozen=True)
class MemoryLimit:
    """The memory limit of one device at one time: `sum bytes[s, j] * B_s,j <= budget`."""

    bytes: Mapping[tuple[int, int], float]
    budget: float


@dataclass(frozen=True)
class RatioProblem:
    """
    The problem of finding shares for `parts` parts in each of `segments` segments.

    Args:
        least: smallest share that a part may have.
    """

    parts: int
    segments: int
    phases: tuple[Phase, ...]
    limits: tuple[MemoryLimit, ...] = ()
    least: float = 0.0

    def seconds(self, shares: Shares) -> float:
        """Return the total seconds of all phases."""
        return sum(phase.seconds(shares[phase.segment]) for phase in self.phases)


def solve_ratios(problem: RatioProblem) -> Shares:
    """Return the shares of least time, found by GLOP; raise NoShares if the limits allow none."""
    program = LinearProgram()
    shares = [[program.variable(problem.least, 1.0) for _ in range(problem.parts)] for _ in range(problem.segments)]
    largest = [program.variable(0.0, 1.0) for _ in range(problem.segments)]
    # Seconds and bytes differ by orders of magnitude; the solver's tolerances are for numbers near 1.
    longest_phase = max((phase.seconds((1.0,) * problem.parts) for phase in problem.phases), default=0.0)
    scale = 1.0 / (longest_phase or 1.0)
    for top, row in zip(largest, shares, strict=True):
        program.limit(dict.fromkeys(row, 1.0), 1.0, 1.0)
        for share in row:
            program.limit({top: 1.0, share: -1.0}, 0.0)
    cost = dict.fromkeys(largest, _EVEN)
    for phase in problem.phases:
        cost[largest[phase.segment]] += scale * phase.rate
        if any(work.rate for work in phase.work):
            longest = program.variable(0.0)
            cost[longest] = 1.0
            for work in phase.work:
                share = shares[phase.segment][work.part]
                program.limit({longest: 1.0, share: -scale * work.rate}, scale * work.fixed)
    for limit in problem.limits:
        unit = max([*limit.bytes.values(), abs(limit.budget), 1.0])
        held = {shares[s][j]: count / unit for (s, j), count in limit.bytes.items()}
        program.limit(held, high=limit.budget / unit)
    if (values := program.minimized(cost)) is None:
        raise NoShares("no shares keep every device within its memory")
    return tuple(_normalised([values[share] for share in row]) for row in shares)


def _normalised(shares: Sequence[float]) -> tuple[float, ...]:
    """Remove the solver's noise: round to six digits, clip at zero, and make the sum exactly 1."""
    tidy = [round(max(share, 0.0), 6) for share in shares]
    largest = tidy.index(max(tidy))
    tidy[largest] = round(1.0 - sum(tidy[:largest]) - sum(tidy[largest + 1 :]), 6)
    return tuple(tidy)
