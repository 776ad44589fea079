"""
Hierarchical collectives: along the last of several axes, *inside* hosts, and along the other axes, *across* hosts.

all_reduce      reduce-scatter inside, all-reduce across, all-gather inside
all_gather      all-gather across, among ranks with equal indices inside, then all-gather inside
reduce_scatter  reduce-scatter inside, by the receivers' indices inside, then reduce-scatter across
all_to_all      send inside, to the rank with the receiver's index inside, then send across

Each of the k ranks inside sends a k-th of the value across: if they share a NIC, the NIC carries the value once, as in
one ring over all ranks, but in only as many steps as there are hosts. An all-to-all sends as many bytes as in one
phase, in one message per host.

Part m of a dim belongs to the rank with index `m // k` across and `m % k` inside. Messages are flat, and hold
pieces part by part and tensor by tensor, so parts may differ in size or be empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from .collectives import begin
from .groups import RankGroup
from .pieces import Sizes, count_of, flatten, piece_shape, unflatten
from .requests import Pending, Request, even_sizes

HIERARCHICAL = "hierarchical"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Levels:
    """The groups of this rank across and inside, and the whole group, which numbers the parts of a request."""

    across: RankGroup
    inside: RankGroup
    whole: RankGroup

    def at(self, across: int, inside: int) -> int:
        """Return the part of the rank with these indices across and inside."""
        return across * self.inside.size + inside

    @property
    def by_place(self) -> list[list[int]]:
        """The parts of the ranks with each index inside, ordered by host."""
        return [[self.at(a, i) for a in range(self.across.size)] for i in range(self.inside.size)]


def begin_hierarchical(across: RankGroup, inside: RankGroup, whole: RankGroup, request: Request) -> Pending:
    """
    Start a collective over the axes of `across`, followed by the axis of `inside`.

    The first phase starts at once; later phases start in `wait()`, when their inputs exist.

    Raises:
        ValueError: the sizes of the request do not fit its operands, or it moves the boundaries of a dim.
    """
    return PHASED[request.kind](_Levels(across, inside, whole), request)


def _all_reduce(levels: _Levels, request: Request) -> Pending:
    flat = torch.cat([tensor.reshape(-1) for tensor in request.tensors])
    inside, across = levels.inside, levels.across
    sizes = even_sizes(flat.numel(), inside.size)
    scattered = _scatter(inside, flat, sizes, request)

    def finish() -> list[torch.Tensor]:
        part = scattered.wait()
        between = Request("all_reduce", part, across.axes, reduction=request.reduction, donate=True)
        (reduced,) = begin(across, between).wait()
        (whole,) = _gather(inside, reduced, sizes).wait()
        return unflatten(whole, [tensor.shape for tensor in request.tensors])

    return Pending([], finish)


def _all_gather(levels: _Levels, request: Request) -> Pending:
    inside, across = levels.inside, levels.across
    dims, sizes = request.dims(), request.gathered_sizes(levels.whole)
    operands = list(zip(request.tensors, dims, sizes, strict=True))
    shapes = [[piece_shape(t.shape, dim, cut[part]) for t, dim, cut in operands] for part in range(levels.whole.size)]
    counts = [count_of(row) for row in shapes]
    mine = flatten(request.tensors, counts[levels.whole.part])
    gathered = _gather(across, mine, tuple(counts[part] for part in levels.by_place[inside.part]))

    def finish() -> list[torch.Tensor]:
        (column,) = gathered.wait()
        (whole,) = _gather(inside, column, _sums(counts, levels.by_place)).wait()
        return _joined(whole, levels.by_place, shapes, dims)

    return Pending([], finish)


def _reduce_scatter(levels: _Levels, request: Request) -> Pending:
    inside, across = levels.inside, levels.across
    pieces = request.outgoing(levels.whole)
    counts = [sum(piece.numel() for piece in row) for row in pieces]
    packed = flatten([piece for column in levels.by_place for part in column for piece in pieces[part]], sum(counts))
    scattered = _scatter(inside, packed, _sums(counts, levels.by_place), request)
    column = tuple(counts[part] for part in levels.by_place[inside.part])
    shapes = [piece.shape for piece in pieces[levels.whole.part]]

    def finish() -> list[torch.Tensor]:
        (part,) = scattered.wait()
        (mine,) = _scatter(across, part, column, request).wait()
        return unflatten(mine, shapes)

    return Pending([], finish)


def _all_to_all(levels: _Levels, request: Request) -> Pending:
    if request.moves_boundaries():
        raise ValueError(f"{request} moves the boundaries of a dim, but the method {HIERARCHICAL!r} cannot")
    inside, across, me = levels.inside, levels.across, levels.whole.part
    pieces, dims, sizes = request.outgoing(levels.whole), request.concat_dims(), request.gathered_sizes(levels.whole)
    # The shapes of the pieces from each sender to each receiver, and their numbers of elements.
    shapes = [
        [
            [piece_shape(piece.shape, dim, cut[sender]) for piece, dim, cut in zip(row, dims, sizes, strict=True)]
            for row in pieces
        ]
        for sender in range(levels.whole.size)
    ]
    counts = [[count_of(row) for row in shapes_of_sender] for shapes_of_sender in shapes]
    neighbours = [levels.at(across.part, i) for i in range(inside.size)]
    by_place, mine = levels.by_place, levels.by_place[inside.part]
    packed = flatten([piece for column in by_place for part in column for piece in pieces[part]], sum(counts[me]))
    arriving = tuple(sum(counts[sender][part] for part in mine) for sender in neighbours)
    sent = _exchange(inside, packed, _sums(counts[me], by_place), arriving)

    def finish() -> list[torch.Tensor]:
        (here,) = sent.wait()
        chunks = here.split([counts[sender][part] for sender in neighbours for part in mine])
        # They arrived ordered by sender and host, and are sent on ordered by host and sender.
        onward = [chunk for at in range(across.size) for chunk in chunks[at :: across.size]]
        hosts = [[levels.at(a, i) for i in range(inside.size)] for a in range(across.size)]
        leaving = tuple(sum(counts[sender][part] for sender in neighbours) for part in mine)
        arriving = tuple(sum(counts[sender][me] for sender in host) for host in hosts)
        (all_parts,) = _exchange(across, flatten(onward, sum(leaving)), leaving, arriving).wait()
        return _joined(all_parts, hosts, [shapes_of_sender[me] for shapes_of_sender in shapes], dims)

    return Pending([], finish)


PHASED: Mapping[str, Callable[[_Levels, Request], Pending]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}
"""The kinds of collectives with a hierarchical method."""


def _gather(group: RankGroup, flat: torch.Tensor, sizes: Sizes) -> Pending:
    return begin(group, Request("all_gather", (flat,), group.axes, sizes=sizes))


def _scatter(group: RankGroup, flat: torch.Tensor, sizes: Sizes, request: Request) -> Pending:
    return begin(group, Request("reduce_scatter", (flat,), group.axes, sizes=sizes, reduction=request.reduction))


def _exchange(group: RankGroup, flat: torch.Tensor, sizes: Sizes, arriving: Sizes) -> Pending:
    return begin(group, Request("all_to_all", (flat,), group.axes, sizes=sizes, concat_sizes=arriving))


def _joined(
    flat: torch.Tensor, order: Sequence[Sequence[int]], shapes: Sequence[Sequence[Shape]], dims: Sequence[int]
) -> list[torch.Tensor]:
    """Concatenate the pieces of a message, whose parts are in `order`, to tensors along `dims`."""
    parts = [part for row in order for part in row]
    views = iter(unflatten(flat, [shape for part in parts for shape in shapes[part]]))
    by_part = {part: [next(views) for _ in shapes[part]] for part in parts}
    rows = zip(*(by_part[part] for part in range(len(parts))), strict=True)
    return [torch.cat(row, dim) for row, dim in zip(rows, dims, strict=True)]


def _sums(counts: Sequence[int], rows: Sequence[Sequence[int]]) -> Sizes:
    return tuple(sum(counts[part] for part in row) for row in rows)
