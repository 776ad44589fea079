"""
Divide the ranks of a step by stage, and into classes of ranks that behave the same.

Ranks of one stage are equivalent if they have the same kind of device, parts of the same sizes, and equivalent
neighbours along each axis of the mesh and at each port of the network (the coarsest such division is found by
refinement). Equivalent ranks are at the same point at any time, so one of them represents all.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from ....dialects.compute import ComputeOp
from ....dialects.placed import GivesShardings, sharding_of
from ....dialects.staged import Stages
from ....ir.cluster import Cluster
from ....ir.sharding import DimSharding, Sharding, rank_extents
from ....ir.topology import Route

_PORT = " port"
"""The kind of the users of a port; no axis has this name."""


class Routes:
    """The routes between the ranks of a job, each computed once."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._known: dict[tuple[int, int], Route] = {}

    def between(self, sender: int, receiver: int) -> Route:
        """Return the route from one rank of the job to another."""
        if (sender, receiver) not in self._known:
            self._known[sender, receiver] = self.cluster.route(sender, receiver)
        return self._known[sender, receiver]


@dataclass(frozen=True)
class Place:
    """
    A stage, or all of a step without stages.

    Args:
        stage: number of the stage, or None for a step without stages.
        cluster: its devices and links.
        ranks: for each rank of its mesh, the rank of the job.
        routes: the routes between all ranks of the job.
    """

    stage: int | None
    cluster: Cluster
    ranks: tuple[int, ...]
    routes: Routes

    def ring(self, group: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield senders and receivers when a group passes parts around a ring."""
        yield from pairwise((*group, group[0]))

    @cached_property
    def neighbours(self) -> list[tuple[str, Sequence[int]]]:
        """
        Return the sets of ranks that wait for one another or share a port, each with its kind.

        The sets are the groups along each axis, whose kind is the name of the axis, and the users of each port.
        """
        mesh = self.cluster.mesh
        groups = [(axis.name, group) for axis in mesh.spatial for group in mesh.groups((axis.name,))]
        users: dict[str, list[int]] = {}
        for _, group in groups:
            for sender, receiver in self.ring(group) if len(group) > 1 else ():
                for port in self.routes.between(self.ranks[sender], self.ranks[receiver]).ports:
                    users.setdefault(port, []).append(sender)
        return [*groups, *((_PORT, ranks) for ranks in users.values())]


@dataclass(frozen=True)
class Division:
    """
    The classes of the ranks of a place.

    Args:
        first: number of its first class, among the classes of all places.
        classes: the ranks of each class, numbered in its mesh.
    """

    place: Place
    first: int
    classes: tuple[tuple[int, ...], ...]

    @property
    def numbers(self) -> range:
        """Return the numbers of its classes."""
        return range(self.first, self.first + len(self.classes))

    @cached_property
    def class_of(self) -> dict[int, int]:
        """Return the number of the class of each rank."""
        return {rank: number for number, ranks in zip(self.numbers, self.classes, strict=True) for rank in ranks}


def divided(func: FuncOp, places: Sequence[Place], *, every_rank: bool = False) -> tuple[Division, ...]:
    """Return the classes of the ranks of all places; with `every_rank` each rank is a class."""
    divisions: list[Division] = []
    first, uneven = 0, _uneven_dims(func)
    for place in places:
        ranks = range(place.cluster.mesh.device_count)
        kinds: list[Hashable] = list(ranks) if every_rank else _kinds(place, uneven.get(place.stage, {}))
        classes = refined(kinds, place.neighbours)
        divisions.append(Division(place, first, classes))
        first += len(classes)
    return tuple(divisions)


def refined(kinds: Sequence[Hashable], neighbours: Iterable[tuple[str, Sequence[int]]]) -> tuple[tuple[int, ...], ...]:
    """
    Return the coarsest division of the ranks into classes of one kind, whose neighbours have the same classes.

    Args:
        kinds: kind of each rank.
        neighbours: sets of ranks, each with its kind. Ranks of a class have the same neighbours in the sets of each
            kind: a rank whose partner along one axis is slow is unlike a rank with such a partner along another axis.
    """
    sets = list(neighbours)
    colours, count = _numbered(kinds), 0
    around: list[list[int]] = [[] for _ in colours]
    for number, (_, members) in enumerate(sets):
        for rank in members:
            around[rank].append(number)
    while (now := len(set(colours))) > count:
        count = now
        seen = _numbered([(kind, tuple(sorted(colours[rank] for rank in members))) for kind, members in sets])
        pairs = zip(colours, around, strict=True)
        colours = _numbered([(mine, tuple(sorted(seen[number] for number in near))) for mine, near in pairs])
    classes: dict[int, list[int]] = {}
    for rank, colour in enumerate(colours):
        classes.setdefault(colour, []).append(rank)
    return tuple(map(tuple, classes.values()))


def _numbered(kinds: Sequence[Hashable]) -> list[int]:
    """Return a number for each kind; equal kinds get equal numbers, in the order of their first occurrence."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(kind, len(numbers)) for kind in kinds]


def _kinds(place: Place, uneven: Iterable[DimSharding]) -> list[Hashable]:
    """Return, for each rank, its device and the sizes of its parts of the unevenly split dims."""
    mesh = place.cluster.mesh
    sizes = (rank_extents(dim.offsets[-1], dim, mesh) for dim in uneven if dim.offsets is not None)
    return list(zip(place.cluster.placement, *sizes, strict=True))


def _uneven_dims(func: FuncOp) -> dict[int | None, dict[DimSharding, None]]:
    """Return, for each stage, the uneven splits of dims by its ops and values."""
    stages, by_stage = Stages(func), dict[int | None, dict[DimSharding, None]]()
    for op in func.walk():
        if op is not func and (dims := {d: None for s in _shardings(op) for d in s.dims if d.offsets is not None}):
            by_stage.setdefault(stages.of_op(op) if stages.names else None, {}).update(dims)
    return by_stage


def _shardings(op: Operation) -> Iterable[Sharding]:
    if isinstance(op, ComputeOp):
        return (*op.signature.operands, *op.signature.results) if op.signature is not None else ()
    return [sharding_of(value) for value in op.results if isinstance(op, GivesShardings)]
