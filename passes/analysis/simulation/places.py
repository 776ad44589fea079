"""
The ranks of a step, by stage and by classes that do the same.

Ranks of one stage are alike if they have the same kind of device, parts of the same sizes, and neighbours, along each
axis of the mesh and at each port of the network, that are alike in turn (the coarsest such division is found by
refinement). Alike ranks are at the same point at any time, so that one of them stands for all.
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
"""The kind of the users of a port, which no axis is called."""


class Routes:
    """The ways between the ranks of a job, each found once."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._known: dict[tuple[int, int], Route] = {}

    def between(self, sender: int, receiver: int) -> Route:
        """The way from one rank of the job to another."""
        if (sender, receiver) not in self._known:
            self._known[sender, receiver] = self.cluster.route(sender, receiver)
        return self._known[sender, receiver]


@dataclass(frozen=True)
class Place:
    """
    A stage, or all of a step without stages.

    Args:
        stage: its number; None is the whole.
        cluster: its devices and links.
        ranks: by rank of its mesh, the rank of the job.
        routes: the ways between all ranks of the job.
    """

    stage: int | None
    cluster: Cluster
    ranks: tuple[int, ...]
    routes: Routes

    def ring(self, group: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Who sends to whom where a group passes parts round."""
        yield from pairwise((*group, group[0]))

    @cached_property
    def neighbours(self) -> list[tuple[str, Sequence[int]]]:
        """
        Sets of ranks that wait for one another or share a port, each with its kind.

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
        first: the number of its first class among those of all places.
        classes: the ranks, of its mesh, of each class.
    """

    place: Place
    first: int
    classes: tuple[tuple[int, ...], ...]

    @property
    def numbers(self) -> range:
        """The numbers of its classes."""
        return range(self.first, self.first + len(self.classes))

    @cached_property
    def class_of(self) -> dict[int, int]:
        """The number of the class of each rank."""
        return {rank: number for number, ranks in zip(self.numbers, self.classes, strict=True) for rank in ranks}


def divided(func: FuncOp, places: Sequence[Place], *, every_rank: bool = False) -> tuple[Division, ...]:
    """The classes of the ranks of all places; with `every_rank` each rank is one."""
    found: list[Division] = []
    first, uneven = 0, _uneven_dims(func)
    for place in places:
        ranks = range(place.cluster.mesh.device_count)
        kinds: list[Hashable] = list(ranks) if every_rank else _kinds(place, uneven.get(place.stage, {}))
        classes = refined(kinds, place.neighbours)
        found.append(Division(place, first, classes))
        first += len(classes)
    return tuple(found)


def refined(kinds: Sequence[Hashable], neighbours: Iterable[tuple[str, Sequence[int]]]) -> tuple[tuple[int, ...], ...]:
    """
    Return the coarsest division of the ranks into classes of one kind, whose neighbours have the same classes.

    Args:
        kinds: by rank.
        neighbours: sets of ranks, each with its kind. Ranks of a class have the same neighbours in the sets of each
            kind: a rank whose partner along one axis is slow is unlike a rank with such a partner along another axis.
    """
    sets = list(neighbours)
    colours, count = _numbered(kinds), 0
    around: list[list[int]] = [[] for _ in colours]
    for number, (_, each) in enumerate(sets):
        for rank in each:
            around[rank].append(number)
    while (now := len(set(colours))) > count:
        count = now
        seen = _numbered([(kind, tuple(sorted(colours[rank] for rank in each))) for kind, each in sets])
        pairs = zip(colours, around, strict=True)
        colours = _numbered([(mine, tuple(sorted(seen[number] for number in near))) for mine, near in pairs])
    classes: dict[int, list[int]] = {}
    for rank, colour in enumerate(colours):
        classes.setdefault(colour, []).append(rank)
    return tuple(map(tuple, classes.values()))


def _numbered(kinds: Sequence[Hashable]) -> list[int]:
    """Equal kinds get equal numbers, in the order in which they come."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(kind, len(numbers)) for kind in kinds]


def _kinds(place: Place, uneven: Iterable[DimSharding]) -> list[Hashable]:
    """By rank, its device and the sizes of its parts of the dims that are split unevenly."""
    mesh = place.cluster.mesh
    sizes = (rank_extents(dim.offsets[-1], dim, mesh) for dim in uneven if dim.offsets is not None)
    return list(zip(place.cluster.placement, *sizes, strict=True))


def _uneven_dims(func: FuncOp) -> dict[int | None, dict[DimSharding, None]]:
    """By stage, the ways in which its ops and values split dims unevenly."""
    stages, found = Stages(func), dict[int | None, dict[DimSharding, None]]()
    for op in func.walk():
        if op is not func and (dims := {d: None for s in _shardings(op) for d in s.dims if d.offsets is not None}):
            found.setdefault(stages.of_op(op) if stages.names else None, {}).update(dims)
    return found


def _shardings(op: Operation) -> Iterable[Sharding]:
    if isinstance(op, ComputeOp):
        return (*op.signature.operands, *op.signature.results) if op.signature is not None else ()
    return [sharding_of(value) for value in op.results if isinstance(op, GivesShardings)]
