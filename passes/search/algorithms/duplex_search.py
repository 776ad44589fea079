"""
The walk over the cuts of a step for `pareto_dp.py` (HiDup, figure 4): partial strategies grow by one op at a time.

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
"""The maximum number of choices that a beam keeps, per unit of width, while an op's states are decided one by one."""

_COMPARED = 4
"""The number of strategies, per unit of width, among which a beam looks for dominance."""

ROUNDING = 1e-9
"""The relative error of a bound."""

_MOST_ROWS = 400_000
"""The maximum number of partial strategies that the growth of one cut may produce in a complete walk."""


@dataclass(frozen=True)
class WalkLimits:
    """
    The limits of a walk.

    Args:
        beam: number of partial strategies kept at each number of ops, or None for all.
        ahead: the next op is one of the first `ahead` remaining ops in order, or any op if None.
        expansions: number of partial strategies that may be grown.
        known: psi of a known strategy; strategies that cannot be better are dropped.
        by_costs, by_times: whether strategies are dropped that others dominate by this rule.
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
        assignment: state by node, or None if the walk ended without a complete strategy.
        phases: the ops of each phase.
        complete: whether the walk left out only strategies that could not be better.
    """

    assignment: States | None
    phases: tuple[tuple[int, ...], ...]
    complete: bool


@dataclass(eq=False)
class CutWalk:
    """
    One walk over the cuts of a step; one use.

    Args:
        allowed: allowed states of each node.
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
        """Grow the strategy without phases to complete strategies, and return the best one."""
        start = begin(len(self.duplex.comp), len(self.duplex.ops), self.estimate.constant)
        level: dict[frozenset[int], Partials] = {frozenset(): start}
        for _ in self.duplex.ops:
            grown: dict[frozenset[int], list[Partials]] = {}
            for done, partials in level.items():
                left = [op for op in self.duplex.ops if op not in done]
                window = left if self.limits.ahead is None else left[: self.limits.ahead]
                for op in [op for op in window if self.duplex.operands[op] <= done]:
                    self.left -= len(partials)
                    if self.left < 0:
                        return Walked(None, (), False)
                    self.tally["expanded"] += len(partials)
                    if (longer := self._grow(partials, done, op)) is not None:
                        grown.setdefault(done | {op}, []).append(longer)
            level = self._kept(grown)
        return self._finish(level)

    def _grow(self, partials: Partials, done: frozenset[int], op: int) -> Partials | None:
        """Return all strategies with one more op, in the open phase or a new one, or None if there are too many."""
        choices = self._decide(partials, [t for t in self.duplex.by_use[op] if t.uses.isdisjoint(done)], op)
        if choices is None:
            return None
        old = partials.take(choices.rows)
        states = old.states.copy()
        for node, column in choices.columns.items():
            states[:, node] = column
        spent = old.spent + (choices.comp + self.estimate.weight * choices.comm).sum(axis=1)
        grown = replace(old, states=states, floor=old.floor + choices.floor, spent=spent)
        inside = replace(grown, comm=old.comm + choices.comm, comp=old.comp + choices.comp, ops=old.ops + 1)
        psi, phi = old.closed()
        one = np.ones_like(old.ops)
        after = replace(grown, psi=psi, phi=phi, comm=choices.comm, comp=choices.comp, phase=old.phase + 1, ops=one)
        both = Partials.joined([inside.take(~choices.blocked & (old.ops < MOST_OPS)), after.take(old.ops > 0)])
        both.phases[:, self.place[op]] = both.phase
        return both

    def _decide(self, partials: Partials, due: Sequence[ShardingTransfer], op: int | None) -> Choices | None:
        """Return all choices of the states that an op, or the last phase, needs, or None if there are too many."""
        decided = {int(node) for node in np.flatnonzero(partials.states[0] >= 0)}
        ends = [node for transfer in due for node in (transfer.source, transfer.target)]
        choices = Choices.nothing(len(partials))
        pending = list(due)
        for node in (*dict.fromkeys(n for n in ends if n not in decided and n != op), *([] if op is None else [op])):
            choices = choices.crossed(node, self.allowed[node])
            choices.comp += self.duplex.comp[node][choices.columns[node]]
            choices.floor += self.estimate.unary[node][choices.columns[node]]
            for other, table in self.estimate.tables[node].items():
                if other in decided:
                    choices.floor += table[choices.columns[node], choices.state(partials, other)]
            decided.add(node)
            for transfer in [t for t in pending if t.source in decided and t.target in decided]:
                pending.remove(transfer)
                self._pay(choices, partials, transfer)
            choices = self._narrowed(choices, partials)
            if self.limits.beam is None and len(choices.rows) > _MOST_ROWS:
                self.complete = False
                return None
        for transfer in pending:
            self._pay(choices, partials, transfer)
        return choices.take(np.flatnonzero(np.isfinite((choices.comm + choices.comp).sum(axis=1))))

    def _pay(self, made: Choices, partials: Partials, transfer: ShardingTransfer) -> None:
        """Add the seconds of a transfer to the choices."""
        states = made.state(partials, transfer.source), made.state(partials, transfer.target)
        sent = transfer.comm[states]
        made.comm += sent
        made.comp += transfer.local[states]
        if (place := self.place.get(self.duplex.origins[transfer.source])) is not None:
            made.blocked |= sent.any(axis=1) & (partials.phases[made.rows, place] == partials.phase[made.rows])

    def _narrowed(self, made: Choices, partials: Partials) -> Choices:
        """Return the choices that the beam keeps."""
        beam = self.limits.beam
        if beam is None or len(made.rows) <= _CHOICES * beam:
            return made
        kept = np.argsort(partials.expected()[made.rows] + made.floor, kind="stable")[: _CHOICES * beam]
        self.tally["left_by_beam"] += len(made.rows) - len(kept)
        self.complete = False
        return made.take(np.sort(kept))

    def _kept(self, grown: Mapping[frozenset[int], Sequence[Partials]]) -> dict[frozenset[int], Partials]:
        """Return, by cut, the strategies to grow further."""
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
        """Return the strategies that may become better than the known one and that the beam compares."""
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
        """Return, by row, the states that matter later, and which values are computed in the open phase."""
        pending = [t for t in self.duplex.transfers if not t.uses or t.uses.isdisjoint(done)]
        ends = {node for t in pending for node in (t.source, t.target)} | self.duplex.ends.keys()
        computed = {self.duplex.origins[transfer.source] for transfer in pending if transfer.uses} & done
        places = sorted(self.place[op] for op in computed)
        states = partials.states[:, sorted(node for node in ends if partials.states[0, node] >= 0)]
        return np.concatenate([states, partials.phases[:, places] == partials.phase[:, None]], axis=1, dtype=np.int16)

    def _beamed(self, level: dict[frozenset[int], Partials]) -> dict[frozenset[int], Partials]:
        """Return, by cut, the strategies that the beam keeps."""
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
            choices = self._decide(partials, self.last, None)
            if choices is None or not len(choices.rows):
                continue
            for node, costs in self.duplex.ends.items():
                choices.comm += costs[choices.state(partials, node)]
            old = partials.take(choices.rows)
            best = int(np.argmin(appended(*old.closed(), choices.comm, choices.comp)[0]))
            assignment = old.states[best].astype(np.int64)
            for node, column in choices.columns.items():
                assignment[node] = column[best]
            for node in map(int, np.flatnonzero(assignment < 0)):
                assignment[node] = self.allowed[node][0]
            phases: dict[int, list[int]] = {}
            for op, number in zip(self.duplex.ops, old.phases[best], strict=True):
                phases.setdefault(int(number), []).append(op)
            return Walked(assignment, tuple(tuple(phases[number]) for number in sorted(phases)), self.complete)
        return Walked(None, (), self.complete)
