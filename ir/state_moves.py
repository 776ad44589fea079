"""
Moving state from one plan to another: which rank sends which part of which value to which.

A part is a box of the full value. What a rank needs and already has stays; the rest comes once, from one of the ranks
that have it: from the one that has sent the least so far. So as few bytes are moved as the two plans allow.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Box: TypeAlias = tuple[tuple[int, int], ...]
"""By dim, the begin and the end of a part in the full value."""


@dataclass(frozen=True)
class SpreadState:
    """
    A value that lives from step to step, and the part of it that each rank has.

    Args:
        name: of a parameter, state or buffer in the single-device model.
        boxes: by rank; a rank of another stage is not among them.
        element: the bytes of one element.
    """

    name: str
    boxes: Mapping[int, Box]
    element: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the full value."""
        first = next(iter(self.boxes.values()))
        return tuple(max(box[dim][1] for box in self.boxes.values()) for dim in range(len(first)))


@dataclass(frozen=True)
class Move:
    """A part of a value that one rank sends to another; the sender by its rank before, the receiver by its new one."""

    name: str
    sender: int
    receiver: int
    box: Box
    bytes: int


@dataclass(frozen=True)
class Moves:
    """
    All that is moved, in the order of the values.

    Args:
        bound: the bytes that new ranks need and do not have: no way to move the state moves fewer.
        kept: the bytes that new ranks need and have.
        lost: parts that no remaining rank has, by value: they must be read from a checkpoint.
    """

    moves: tuple[Move, ...]
    bound: int
    kept: int
    lost: tuple[tuple[str, int, Box], ...] = ()

    @property
    def bytes(self) -> int:
        """The bytes that are moved."""
        return sum(move.bytes for move in self.moves)


def state_moves(old: Iterable[SpreadState], new: Iterable[SpreadState], before: Mapping[int, int]) -> Moves:
    """
    How the state of one plan becomes that of another.

    Args:
        old, new: the values of both, by the same names.
        before: by new rank, the old rank of the same process; one that has joined has none, and an old rank that is
            the value of none has left.

    Raises:
        ValueError: a value of the new plan is not one of the old.
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
        holders = _holders(source, remaining)
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
                    sender = min(ranks, key=lambda each: (sent[each], each))
                    size = _volume(piece) * value.element
                    sent[sender] += size
                    left -= _volume(piece)
                    moves.append(Move(value.name, sender, rank, piece, size))
                if left:
                    lost.append((value.name, rank, part))
    return Moves(tuple(moves), bound, kept, tuple(lost))


def _holders(source: SpreadState, remaining: frozenset[int]) -> dict[Box, list[int]]:
    """The distinct parts that there are, which do not overlap, with the remaining ranks that have each."""
    found: dict[Box, list[int]] = {}
    for rank, box in source.boxes.items():
        if rank in remaining and _volume(box):
            found.setdefault(box, []).append(rank)
    return found


def _volume(box: Box) -> int:
    return math.prod(end - begin for begin, end in box)


def _common(a: Box, b: Box) -> Box | None:
    """What is in both; None where nothing is."""
    found = tuple((max(p[0], q[0]), min(p[1], q[1])) for p, q in zip(a, b, strict=True))
    return found if all(begin < end for begin, end in found) else None


def _without(box: Box, taken: Box) -> Iterator[Box]:
    """What is in `box` and not in `taken`, as boxes that do not overlap."""
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
    By new rank the old one: the remaining ranks in their order first, all by default, then those that have joined.

    Raises:
        ValueError: a remaining rank that the old plan has not, or one that is named twice.
    """
    stay = list(range(old)) if remaining is None else list(remaining)
    if len(set(stay)) < len(stay) or not all(0 <= rank < old for rank in stay):
        raise ValueError(f"the remaining ranks {stay} are not each one of the {old} of the old plan, once")
    return dict(enumerate(stay[:new]))
