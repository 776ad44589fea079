"""
Moving state from one plan to another: the parts of values that ranks send to one another.

A part is a box of the full value. A part that a rank needs and already has stays; every other part is sent once, by the
rank among its holders that has sent the least so far. So the moves have the fewest bytes that the two plans allow.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Box: TypeAlias = tuple[tuple[int, int], ...]
"""The begin and the end of a part in the full value, by dim."""


@dataclass(frozen=True)
class SpreadState:
    """
    A value that lives from step to step, and the part of it that each rank has.

    Args:
        name: name of a parameter, state or buffer in the single-device model.
        boxes: part by rank, without the ranks of other stages.
        element: bytes of one element.
    """

    name: str
    boxes: Mapping[int, Box]
    element: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the full value."""
        first = next(iter(self.boxes.values()))
        return tuple(max(box[dim][1] for box in self.boxes.values()) for dim in range(len(first)))


@dataclass(frozen=True)
class Move:
    """A part of a value that one rank sends to another: `sender` is an old rank, `receiver` is a new rank."""

    name: str
    sender: int
    receiver: int
    box: Box
    bytes: int


@dataclass(frozen=True)
class Moves:
    """
    All moves, in the order of the values.

    Args:
        bound: bytes that new ranks need and do not have: a lower bound on the bytes of moves.
        kept: bytes that new ranks need and have.
        lost: (value, new rank, part) of parts that no remaining rank has: they must be read from a checkpoint.
    """

    moves: tuple[Move, ...]
    bound: int
    kept: int
    lost: tuple[tuple[str, int, Box], ...] = ()

    @property
    def bytes(self) -> int:
        """The bytes of all moves."""
        return sum(move.bytes for move in self.moves)


def state_moves(old: Iterable[SpreadState], new: Iterable[SpreadState], before: Mapping[int, int]) -> Moves:
    """
    Return the moves that turn the state of one plan into the state of another.

    Args:
        old, new: values of both plans, by the same names.
        before: old rank of the same process, by new rank. A process that has joined has no entry, and an old rank
            that no entry names has left.

    Raises:
        ValueError: a value of the new plan is not in the old plan.
    """
    sources = {value.name: value for value in old}
    remaining = frozenset(before.values())
    sent: defaultdict[int, int] = defaultdict(int)
    moves: list[Move] = []
    lost: list[tuple[str, int, Box]] = []
    bound = kept = 0
    for value in new:
        if (source := sources.get(value.name)) is None:
            raise ValueError(f"{value.name!r} is not in the state of the old plan, which belongs to another step")
        # The distinct parts do not overlap.
        holders: dict[Box, list[int]] = {}
        for rank, box in source.boxes.items():
            if rank in remaining and _volume(box):
                holders.setdefault(box, []).append(rank)
        for rank, needed in value.boxes.items():
            mine = source.boxes.get(before[rank]) if rank in before else None
            missing = list(_without(needed, mine)) if mine is not None else [needed]
            absent = sum(map(_volume, missing))
            bound += absent * value.element
            kept += (_volume(needed) - absent) * value.element
            for part in missing:
                left = _volume(part)
                for box, ranks in holders.items():
                    if (piece := _common(part, box)) is None:
                        continue
                    sender = min(ranks, key=lambda holder: (sent[holder], holder))
                    size = _volume(piece) * value.element
                    sent[sender] += size
                    left -= _volume(piece)
                    moves.append(Move(value.name, sender, rank, piece, size))
                if left:
                    lost.append((value.name, rank, part))
    return Moves(tuple(moves), bound, kept, tuple(lost))


def _volume(box: Box) -> int:
    return math.prod(end - begin for begin, end in box)


def _common(a: Box, b: Box) -> Box | None:
    """Return the intersection of two boxes, or None if it is empty."""
    box = tuple((max(p[0], q[0]), min(p[1], q[1])) for p, q in zip(a, b, strict=True))
    return box if all(begin < end for begin, end in box) else None


def _without(box: Box, taken: Box) -> Iterator[Box]:
    """Yield the difference of `box` and `taken`, as boxes that do not overlap."""
    if (common := _common(box, taken)) is None:
        if _volume(box):
            yield box
        return
    rest = list(box)
    for dim, ((begin, end), (low, high)) in enumerate(zip(box, common, strict=True)):
        for part in ((begin, low), (high, end)):
            if part[0] < part[1]:
                yield (*rest[:dim], part, *rest[dim + 1 :])
        rest[dim] = (low, high)


def kept_ranks(old: int, new: int, remaining: Sequence[int] | None = None) -> dict[int, int]:
    """
    Map new ranks to old ranks: the remaining ranks in their order, by default all, as far as there are new ranks.

    Raises:
        ValueError: a remaining rank is not in the old plan, or is listed twice.
    """
    stay = list(range(old)) if remaining is None else list(remaining)
    if len(set(stay)) < len(stay) or not all(0 <= rank < old for rank in stay):
        raise ValueError(f"the remaining ranks {stay} are invalid, expected different ranks below {old}")
    return dict(enumerate(stay[:new]))
