"""
The walk over the cuts of a step for `pareto_dp.py` (HiDup, figure 4): partial strategies grow by an op at a time.

An op decides its own state, and the states of the homes and working copies that it is the first to need. Partial
strategies grow in the order of their number of ops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..problem import States
from .cost_to_go import CostToGo
from .duplex_cost import MOST_OPS, DuplexProblem, ShardingTransfer, appended
from .partial_strategies import Choices, Numbers, Partials, begin, find_dominated

_CHOICES = 16
"""The most choices a beam keeps, times its width, while the states that an op needs are decided one by one."""

_COMPARED = 4
"""The number of strategies, times its width, among which a beam looks for dominance."""

ROUNDING = 1e-9
"""The relative error of a bound."""

_MOST_ROWS = 400_000
"""The most partial strategies that growing one cut may make where none is left out."""


@dataclass(frozen=True)
class WalkLimits:
    """
    How much is tried.

    Args:
        beam: number of partial strategies kept at each number of ops, or None for all.
        ahead: number of ops from the first that is not done among which the next may be, or None for all.
        expansions: partial strategies that may be grown.
        known: psi of a strategy that is known; what cannot be better is dropped.
        by_costs, by_times: whether strategies are dropped that others dominate in this way.
    """

    beam: int | None = None
    ahead: int | None = None
    expansions: int | None = None
    known: float = np.inf
    by_costs: bool = True
    by_times: bool = True


@dataclass(frozen=True, eq=False)
class Walked:
    """
    The best strategy of a walk.

    Args:
        assignment: state by node, or None where the walk ended without a complete strategy.
        phases: the ops of each phase.
        complete: whether no strategy was left out that could have been better.
    """

    assignment: States | None
    phases: tuple[tuple[int, ...], ...]
    complete: bool


@dataclass(eq=False)
class CutWalk:
    """
    One walk.

    Args:
        allowed: by node, the states that it may have.
        tally: counts of visits, and of dropped strategies by rule.
    """

    duplex: DuplexProblem
    estimate: CostToGo
    allowed: Sequence[States]
    limits: WalkLimits
    tally: Counter[str]
    complete: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self.place = {op: number for number, op in enumerate(self.duplex.ops)}
        self.least = [costs[states].min(axis=0) for costs, states in zip(self.duplex.comp, self.allowed, strict=True)]
        self.last = tuple(t for t in self.duplex.transfers if not t.uses)
        self.left = self.limits.expansions if self.limits.expansions is not None else np.inf

    def run(self) -> Walked:
        """Grow the strategy without phases to complete ones, and return the best."""
        start = begin(len(self.duplex.comp), len(self.duplex.ops), self.estimate.constant)
        level: dict[frozenset[int], Partials] = {frozenset(): start}
        for _ in self.duplex.ops:
            grown: dict[frozenset[int], list[Partials]] = {}
            for done, partials in level.items():
                for op in self._ready(done):
                    self.left -= len(partials)
                    if self.left < 0:
                        return Walked(None, (), False)
                    self.tally["expanded"] += len(partials)
                    if (made := self._grow(partials, done, op)) is not None:
                        grown.setdefault(done | {op}, []).append(made)
            level = self._kept(grown)
        return self._finish(level)

    def _ready(self, done: frozenset[int]) -> list[int]:
        """Return the ops that may come next."""
        left = [op for op in self.duplex.ops if op not in done]
        window = left if self.limits.ahead is None else left[: self.limits.ahead]
        return [op for op in window if self.duplex.operands[op] <= done]

    def _grow(self, partials: Partials, done: frozenset[int], op: int) -> Partials | None:
        """Return all strategies with one more op, in the open phase or a new one, or None for too many."""
        made = self._decide(partials, [t for t in self.duplex.by_use[op] if t.uses.isdisjoint(done)], op)
        if made is None:
            return None
        old = partials.take(made.rows)
        states = old.states.copy()
        for node, column in made.columns.items():
            states[:, node] = column
        spent = old.spent + (made.comp + self.estimate.weight * made.comm).sum(axis=1)
        grown = replace(old, states=states, floor=old.floor + made.floor, spent=spent)
        inside = replace(grown, comm=old.comm + made.comm, comp=old.comp + made.comp, ops=old.ops + 1)
        psi, phi = old.closed()
        one = np.ones_like(old.ops)
        after = replace(grown, psi=psi, phi=phi, comm=made.comm, comp=made.comp, phase=old.phase + 1, ops=one)
        both = Partials.joined([inside.take(~made.blocked & (old.ops < MOST_OPS)), after.take(old.ops > 0)])
        both.phases[:, self.place[op]] = both.phase
        return both

    def _decide(self, partials: Partials, due: Sequence[ShardingTransfer], op: int | None) -> Choices | None:
        """Return all choices of the states that an op, or the last phase, needs, or None for too many."""
        decided = {int(node) for node in np.flatnonzero(partials.states[0] >= 0)}
        ends = [node for transfer in due for node in (transfer.source, transfer.target)]
        made = Choices.nothing(len(partials))
        pending = list(due)
        for node in (*dict.fromkeys(n for n in ends if n not in decided and n != op), *([] if op is None else [op])):
            made = made.crossed(node, self.allowed[node])
            made.comp += self.duplex.comp[node][made.columns[node]]
            made.floor += self.estimate.unary[node][made.columns[node]]
            for other, table in self.estimate.tables[node].items():
                if other in decided:
                    made.floor += table[made.columns[node], made.state(partials, other)]
            decided.add(node)
            for transfer in [t for t in pending if t.source in decided and t.target in decided]:
                pending.remove(transfer)
                self._pay(made, partials, transfer)
            made = self._narrowed(made, partials)
            if self.limits.beam is None and len(made.rows) > _MOST_ROWS:
                self.complete = False
                return None
        for transfer in pending:
            self._pay(made, partials, transfer)
        return made.take(np.flatnonzero(np.isfinite((made.comm + made.comp).sum(axis=1))))

    def _pay(self, made: Choices, partials: Partials, transfer: ShardingTransfer) -> None:
        """Add the seconds of a transfer."""
        states = made.state(partials, transfer.source), made.state(partials, transfer.target)
        sent = transfer.comm[states]
        made.comm += sent
        made.comp += transfer.local[states]
        if (place := self.place.get(self.duplex.origins[transfer.source])) is not None:
            made.blocked |= sent.any(axis=1) & (partials.phases[made.rows, place] == partials.phase[made.rows])

    def _narrowed(self, made: Choices, partials: Partials) -> Choices:
        """Return the choices that a beam keeps."""
        beam = self.limits.beam
        if beam is None or len(made.rows) <= _CHOICES * beam:
            return made
        kept = np.argsort(partials.expected()[made.rows] + made.floor, kind="stable")[: _CHOICES * beam]
        self.tally["left_by_beam"] += len(made.rows) - len(kept)
        self.complete = False
        return made.take(np.sort(kept))

    def _kept(self, grown: Mapping[frozenset[int], Sequence[Partials]]) -> dict[frozenset[int], Partials]:
        """Return by cut the strategies that are grown further."""
        level: dict[frozenset[int], Partials] = {}
        for done, parts in grown.items():
            partials = self._promising(Partials.joined(parts), done)
            if not len(partials):
                continue
            dominated = find_dominated(partials, self._state(partials, done), self.limits.by_times)
            self.tally["cuts"] += 1
            self.tally["dominated"] += int(dominated.by_costs.sum()) if self.limits.by_costs else 0
            self.tally["dominated_by_times"] += int(dominated.by_times.sum())
            level[done] = partials.take(~(dominated.by_costs & self.limits.by_costs | dominated.by_times))
        level = self._beamed(level)
        self.tally["kept"] += sum(map(len, level.values()))
        return level

    def _promising(self, partials: Partials, done: frozenset[int]) -> Partials:
        """Return the strategies that may become better than the known one, and that a beam compares."""
        rest = sum((self.least[op] for op in self.duplex.ops if op not in done), start=np.zeros(2))
        possible = partials.least(rest, self.estimate.weight) <= self.limits.known * (1.0 + ROUNDING)
        self.tally["pruned_by_bound"] += int((~possible).sum())
        partials = partials.take(possible)
        beam = self.limits.beam
        if beam is None or len(partials) <= _COMPARED * beam:
            return partials
        self.complete = False
        self.tally["left_by_beam"] += len(partials) - _COMPARED * beam
        return partials.take(np.argsort(partials.expected(), kind="stable")[: _COMPARED * beam])

    def _state(self, partials: Partials, done: frozenset[int]) -> Numbers:
        """Return by row the states that matter later, and which values are computed in the open phase."""
        pending = [t for t in self.duplex.transfers if not t.uses or t.uses.isdisjoint(done)]
        ends = {node for t in pending for node in (t.source, t.target)} | self.duplex.ends.keys()
        made = {self.duplex.origins[transfer.source] for transfer in pending if transfer.uses} & done
        places = sorted(self.place[op] for op in made)
        states = partials.states[:, sorted(node for node in ends if partials.states[0, node] >= 0)]
        return np.concatenate([states, partials.phases[:, places] == partials.phase[:, None]], axis=1, dtype=np.int16)

    def _beamed(self, level: dict[frozenset[int], Partials]) -> dict[frozenset[int], Partials]:
        """Return the strategies that a beam keeps, by cut."""
        beam, expected = self.limits.beam, [partials.expected() for partials in level.values()]
        if beam is None or sum(map(len, expected)) <= beam:
            return level
        self.complete = False
        self.tally["left_by_beam"] += sum(map(len, expected)) - beam
        bar = np.sort(np.concatenate(expected))[beam - 1]
        kept = {done: p.take(np.flatnonzero(e <= bar)[:beam]) for (done, p), e in zip(level.items(), expected)}
        return {done: partials for done, partials in kept.items() if len(partials)}

    def _finish(self, level: Mapping[frozenset[int], Partials]) -> Walked:
        """Append the last phase, and return the best strategy."""
        for partials in level.values():
            made = self._decide(partials, self.last, None)
            if made is None or not len(made.rows):
                continue
            for node, costs in self.duplex.ends.items():
                made.comm += costs[made.state(partials, node)]
            old = partials.take(made.rows)
            best = int(np.argmin(appended(*old.closed(), made.comm, made.comp)[0]))
            assignment = old.states[best].astype(np.int64)
            for node, column in made.columns.items():
                assignment[node] = column[best]
            for node in map(int, np.flatnonzero(assignment < 0)):
                assignment[node] = self.allowed[node][0]
            phases: dict[int, list[int]] = {}
            for op, number in zip(self.duplex.ops, old.phases[best], strict=True):
                phases.setdefault(int(number), []).append(op)
            return Walked(assignment, tuple(tuple(phases[number]) for number in sorted(phases)), self.complete)
        return Walked(None, (), self.complete)
