"""
AMP's randomized optimization over degrees of parallelism and placements (`search-plan{algorithm=anneal}`).

A strategy has pp stages, each on dp x tp devices: dp replicas, which take mbs rows at a time, and a placement.
Algorithm 2 of the supplement walks from strategy to strategy:

    for each iteration:  t <- cool_down(t)
        change tp, or dp, of s;  then sample mbs and a placement, and divide the layers among the stages
        accept with probability exp(min(cost - next_cost, 0) / t), and record each accepted strategy
    run the best strategies of the record, and return the fastest

The paper draws from normal distributions where it means uniform ones (lines 8 and 17), and passes the former strategy
to the division of layers (line 14); both are read as slips. The cost of a strategy is this compiler's estimate for the
candidate, and to run a strategy means to simulate its program.

Placements tile the grid of hosts and their devices with dominoes (section 6.3). A domino is a stage: its devices on one
host split tensors, and its hosts split the batch. Stages follow one another in the order of the dominoes.

Source: AMP, supplement 6.2 to 6.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, inf
from random import Random

from ...ir.cluster import Cluster
from ...ir.mesh import Axis, Mesh
from .candidate_compiler import CandidateCompiler, Finished
from .candidates import Candidate, Layout, preset
from .evaluator import Evaluator, SolvedCandidate
from .layouts import AXES, LayoutConstraints, divisors
from .notes import Note, Refused, dropped_if_faulty, verify
from .subclusters import part_of_cluster

ITERATIONS = 200
"""The number of iterations if no budget is given."""

COOLING = 0.97
"""The factor of the temperature in each iteration."""

WARMTH = 0.3
"""The temperature at the start, relative to the cost of the first strategy."""

RUN = 5
"""The number of strategies that are run, as in the paper's tables 7, 9 and 11."""

Ranks = tuple[int, ...]


@dataclass(frozen=True)
class Degrees:
    """
    The parallelism of a strategy, without its placement.

    Args:
        dp: number of replicas of a stage.
        tp: number of devices among which a replica splits its tensors.
        rows: number of rows that a replica takes at a time (mbs in the paper).
    """

    dp: int
    tp: int
    rows: int

    def candidate(self, devices: int, batch: int, ranks: Ranks | None) -> Candidate:
        """Return the candidate on `devices` devices for a batch of `batch` rows."""
        stages, parts = devices // (self.dp * self.tp), batch // (self.dp * self.rows)
        mesh = Mesh((Axis(AXES[0], stages * self.dp), Axis(AXES[1], self.tp)))
        mode = "pipeline" if stages > 1 else "accumulate" if parts > 1 else "whole"
        split = [("dp", (AXES[0],))] if self.dp > 1 else []
        split += [("tp", (AXES[1],))] if self.tp > 1 else []
        return Candidate(Layout(mesh, mode, parts, stages, ranks=ranks), preset(*(split or [("dp", ())])))


class Annealing:
    """
    One walk from strategy to strategy; an instance is used once.

    Args:
        fixed: the decisions of the user, which restrict the strategies.
        budget: the number of iterations.
    """

    def __init__(
        self,
        bench: CandidateCompiler,
        fixed: LayoutConstraints,
        *,
        seed: int = 0,
        budget: int | None = None,
        processes: int = 1,
    ) -> None:
        self.bench, self.fixed = bench, fixed
        self.devices = bench.cluster.mesh.device_count
        self.random, self.iterations = Random(seed), budget if budget is not None else ITERATIONS
        self.all = [degrees for degrees in self._enumerated() if self._is_allowed(degrees)]
        self.trials = Evaluator(bench, processes)
        self.benches: dict[Ranks | None, CandidateCompiler | None] = {None: bench}
        self.least: dict[Candidate, float] = {}
        self.notes: list[Note] = []

    def run(self) -> Finished | None:
        """Return the fastest of the best strategies that the walk records, or None if none fits."""
        record = self._walk()
        best: Finished | None = None
        for number, candidate in enumerate(sorted(record, key=record.__getitem__)):
            if number >= RUN and best is not None:
                break
            try:
                finished = self._made(candidate, best.seconds if best is not None else inf)
            except Refused as error:
                self.notes.append(Note(candidate, None, str(error)))
                continue
            best = finished or best
        return best

    def _enumerated(self) -> Iterator[Degrees]:
        """Yield all degrees of parallelism (`enumerate_degrees` of section 6.2)."""
        batch = self.bench.rows
        for size in divisors(self.devices):
            if self.devices // size <= self.bench.layers:
                for tp in divisors(size):
                    if batch % (dp := size // tp) == 0:
                        yield from (Degrees(dp, tp, rows) for rows in divisors(batch // dp))

    def _is_allowed(self, degrees: Degrees) -> bool:
        layout = degrees.candidate(self.devices, self.bench.rows, None).layout
        if layout.mode == "pipeline" and layout.parts == 1:
            return False
        return self.fixed.allows(layout) and (layout.parts == 1 or self.bench.cut_refusal() is None)

    def _walk(self) -> dict[Candidate, float]:
        """Return the cost of each strategy that was accepted on the way."""
        if not self.all:
            return {}
        # The walk begins with as much data parallelism as the user allows.
        degrees = max(self.all, key=lambda option: (option.dp, -option.rows))
        candidate = degrees.candidate(self.devices, self.bench.rows, None)
        cost = self._cost(candidate)
        record = {candidate: cost}
        temperature = WARMTH * (cost if cost < inf else 1.0)
        for _ in range(self.iterations):
            temperature *= COOLING
            neighbours = self._neighbours(degrees)
            if not neighbours:
                break
            following = self.random.choice(neighbours)
            candidate = following.candidate(self.devices, self.bench.rows, self._placement(following))
            next_cost = self._cost(candidate)
            change = cost - next_cost if next_cost < inf else -inf
            if cost == inf or self.random.random() < exp(max(min(change, 0.0) / temperature, -700.0)):
                degrees, cost = following, next_cost
                record[candidate] = cost
        return record

    def _neighbours(self, given: Degrees) -> list[Degrees]:
        """Return the strategies with the same dp, or with the same tp, each with probability 1/2."""
        same = "dp" if self.random.random() > 0.5 else "tp"
        return [other for other in self.all if getattr(other, same) == getattr(given, same) and other != given]

    def _placement(self, degrees: Degrees) -> Ranks | None:
        """Return a random placement of the stages, or None for the ranks in their given order."""
        hosts = hosts_of(self.bench.cluster)
        tiles = tiling(len(hosts), len(hosts[0]), degrees, self.random) if len(set(map(len, hosts))) == 1 else None
        ranks = tuple(hosts[host][place] for tile in tiles or () for host, place in tile)
        if not tiles or ranks == tuple(range(self.devices)) or self._bench(ranks) is None:
            return None
        return ranks

    def _bench(self, ranks: Ranks | None) -> CandidateCompiler | None:
        """Return the compiler for these ranks, or None if the links between them are not known."""
        if ranks not in self.benches:
            cluster = part_of_cluster(self.bench.cluster, ranks) if ranks is not None else self.bench.cluster
            self.benches[ranks] = self.bench.on(cluster) if cluster is not None else None
        return self.benches[ranks]

    def _cost(self, candidate: Candidate) -> float:
        """
        Return the estimated seconds of a strategy (`estimate` of section 6.2).

        Collectives inside a stage are priced for the ranks in their given order, and transfers between stages for the
        placement.
        """
        ranks, layout = candidate.layout.ranks, replace(candidate.layout, ranks=None)
        plain = replace(candidate, layout=layout)
        if plain not in self.least:
            (attempt,) = self.trials.solve([plain])
            self.least[plain] = attempt.optimistic if isinstance(attempt, SolvedCandidate) else inf
        bench = self._bench(ranks)
        assert bench is not None
        return max(self.least[plain], bench.times.estimated(layout))

    def _made(self, candidate: Candidate, limit: float) -> Finished | None:
        """
        Return the program of a strategy if it fits and its simulated step is shorter than `limit`; note its result.

        Raises:
            Refused: there is no such program.
        """
        bench = self._bench(candidate.layout.ranks)
        assert bench is not None
        with dropped_if_faulty(candidate):
            plan = bench.finish(bench.solve(candidate))
        if plan.seconds >= limit:
            self.notes.append(Note(candidate, plan.seconds, "slower", plan.exposed))
            return None
        verify(plan.module, candidate)
        self.notes.append(
            Note(candidate, plan.seconds, "" if plan.fits else "does not fit", plan.exposed, *plan.tightest)
        )
        return plan if plan.fits else None


def hosts_of(cluster: Cluster) -> list[list[int]]:
    """Return the ranks of each host."""
    ranks: dict[int, list[int]] = {}
    for rank in range(cluster.mesh.device_count):
        ranks.setdefault(cluster.host(rank), []).append(rank)
    return list(ranks.values())


Tile = tuple[tuple[int, int], ...]
"""The places of a stage's devices in the grid, as (host, place); the devices of a replica are consecutive."""


def tiling(hosts: int, places: int, degrees: Degrees, random: Random) -> Sequence[Tile] | None:
    """
    Return a random tiling of a grid with dominoes of dp x tp devices, each along the hosts or across them.

    Returns None if the attempt fails: the first free place decides where the next domino lies, and a domino that fits
    in neither orientation ends the attempt.
    """
    free = {(host, place) for host in range(hosts) for place in range(places)}
    tiles: list[Tile] = []
    while free:
        host, place = min(free)
        turns = [False, True]
        random.shuffle(turns)
        for across in turns:
            tile = tuple(
                (host + (tensor if across else replica), place + (replica if across else tensor))
                for replica in range(degrees.dp)
                for tensor in range(degrees.tp)
            )
            if free.issuperset(tile):
                break
        else:
            return None
        free.difference_update(tile)
        tiles.append(tile)
    return tiles
