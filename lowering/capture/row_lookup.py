"""
Rewrite a lookup by several indices that include a row counter to a separate lookup in each row.

``x[arange(n), j]`` looks up two dims together, and neither can be split. ``x.gather(1, j.view(n, 1)).view(n)`` is equal
and can be split along the rows. If all indices count, as in ``x[arange(n)[:, None], arange(m)]``, the result is `x`.
The gradient, an ``index_put``, becomes a ``scatter_add`` in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.fx
from torch.fx.node import Target

from .indexing import NodeMaker, inverse, permuted, reshaped

aten = torch.ops.aten


def look_up_by_row(graph: torch.fx.Graph) -> None:
    """Rewrite every index and index_put that has an index which counts a dim; run `index_first_dims` before."""
    for node in list(graph.nodes):
        if (rewrite := _REWRITES.get(node.target)) is None:
            continue
        lookup = _lookup(*node.args[:2])
        if lookup is not None:
            with graph.inserting_before(node), node.meta["val"].fake_mode:
                node.replace_all_uses_with(rewrite(NodeMaker(graph, node), lookup, *node.args[2:]))
            graph.erase_node(node)


@dataclass(frozen=True)
class _Lookup:
    """
    A lookup in the first dims of `x`, with an index 0, 1, 2, ... for some of these dims.

    Args:
        counted: dim of `x` with a counting index -> dim of `places` along which the index counts, sorted by the latter.
        found: the dims of `x` that are looked up by value, in order.
        places: the common shape of all indices after broadcasting.
    """

    x: torch.fx.Node
    indices: Sequence[torch.fx.Node]
    counted: dict[int, int]
    found: tuple[int, ...]
    places: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `x`."""
        return tuple(self.x.meta["val"].shape)

    @property
    def rest(self) -> range:
        """The dims of `x` that have no index."""
        return range(len(self.indices), len(self.shape))

    @property
    def order(self) -> list[int]:
        """The dims of `x` in the order `counted`, `found`, `rest`."""
        return [*self.counted, *self.found, *self.rest]

    @property
    def place_order(self) -> list[int]:
        """The dims of the result in the order counted, other dims of `places`, `rest`."""
        counted, count = list(self.counted.values()), len(self.places)
        others = (dim for dim in range(count) if dim not in counted)
        return [*counted, *others, *range(count, count + len(self.rest))]

    @property
    def picked(self) -> list[int]:
        """The shape of the result."""
        return [*self.places, *(self.shape[dim] for dim in self.rest)]


def _lookup(x: torch.fx.Node, indices: Sequence[torch.fx.Node | None]) -> _Lookup | None:
    """Return the lookup by these indices, or None if no index counts or an index is a mask."""
    tensors = [index for index in indices if index is not None]
    if len(tensors) < len(indices) or any(index.meta["val"].dtype in (torch.bool, torch.uint8) for index in tensors):
        return None
    places = torch.broadcast_shapes(*(index.meta["val"].shape for index in tensors))
    counted: dict[int, int] = {}
    for dim, index in enumerate(tensors):
        value = index.meta["val"]
        if value.numel() == x.meta["val"].shape[dim] > 1 and _counts(index):
            along = len(places) - value.dim() + next(at for at, size in enumerate(value.shape) if size > 1)
            if along not in counted.values():
                counted[dim] = along
    if not counted:
        return None
    in_order = dict(sorted(counted.items(), key=lambda pair: pair[1]))
    return _Lookup(x, tensors, in_order, tuple(dim for dim in range(len(tensors)) if dim not in counted), tuple(places))


def _counts(index: torch.fx.Node) -> bool:
    """Return whether the elements of an index are 0, 1, 2, ... along one dim."""
    value = index.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.is_floating_point() or max(value.shape, default=1) != value.numel():
        return False
    match index.target, index.args:
        case aten.arange.default, _:
            return True
        case ((aten.arange.start | aten.arange.start_step), (0, _, *step)):
            return step in ([], [1])
        case ((aten.add.Tensor | aten.add.Scalar | aten.sub.Tensor), (torch.fx.Node() as source, 0, *_)):
            return _counts(source)
        case ((aten.mul.Tensor | aten.mul.Scalar), (torch.fx.Node() as source, 1, *_)):
            return _counts(source)
        case target, (torch.fx.Node() as source, *_) if target in _KEEP_ORDER:
            return source.meta["val"].numel() == value.numel() and _counts(source)
        case _:
            return False


_KEEP_ORDER: frozenset[Target] = frozenset(
    {
        aten.alias.default,
        aten.clone.default,
        aten.detach.default,
        aten.expand.default,
        aten.lift_fresh_copy.default,
        aten.permute.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.t.default,
        aten.transpose.int,
        aten.unsqueeze.default,
        aten.view.default,
        aten._to_copy.default,
        aten._unsafe_view.default,
    }
)
"""Ops that keep the order of elements along one dim."""


def _index(call: NodeMaker, lookup: _Lookup) -> torch.fx.Node:
    moved = _by_rows(call, lookup)
    if lookup.found:
        moved = call(aten.gather.default, moved, len(lookup.counted), _places(call, lookup))
    sizes = [lookup.picked[dim] for dim in lookup.place_order]
    return permuted(call, reshaped(call, moved, sizes), inverse(lookup.place_order))


def _index_put(call: NodeMaker, lookup: _Lookup, values: torch.fx.Node, accumulate: bool = False) -> torch.fx.Node:
    whole = call(aten.expand.default, values, lookup.picked)
    sent = permuted(call, whole, lookup.place_order)
    into = _by_rows(call, lookup)
    if lookup.found:
        places, at = _places(call, lookup), len(lookup.counted)
        put = aten.scatter_add.default if accumulate else aten.scatter.src
        into = call(put, into, at, places, reshaped(call, sent, list(places.meta["val"].shape)))
    else:
        sent = reshaped(call, sent, list(into.meta["val"].shape))
        into = call(aten.add.Tensor, into, sent) if accumulate else sent
    apart = reshaped(call, into, [lookup.shape[dim] for dim in lookup.order])
    return permuted(call, apart, inverse(lookup.order))


_REWRITES: dict[Target, Callable[..., torch.fx.Node]] = {
    aten.index.Tensor: _index,
    aten._unsafe_index.Tensor: _index,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
}


def _by_rows(call: NodeMaker, lookup: _Lookup) -> torch.fx.Node:
    """Return `x` as ``[counted.., found, rest..]``, with the `found` dims joined."""
    moved = permuted(call, lookup.x, lookup.order)
    counted, rest = (list(map(lookup.shape.__getitem__, dims)) for dims in (lookup.counted, lookup.rest))
    found = [math.prod(lookup.shape[dim] for dim in lookup.found)] if lookup.found else []
    return reshaped(call, moved, [*counted, *found, *rest])


def _places(call: NodeMaker, lookup: _Lookup) -> torch.fx.Node:
    """Return the index of each result element in the joined `found` dim, as ``[counted.., places, rest..]``."""
    place: torch.fx.Node | None = None
    for dim in lookup.found:
        size, own = lookup.shape[dim], _from_the_front(call, lookup.indices[dim], lookup.shape[dim])
        place = own if place is None else call(aten.add.Tensor, call(aten.mul.Scalar, place, size), own)
    assert place is not None
    everywhere = call(aten.expand.default, place, list(lookup.places))
    moved = permuted(call, everywhere, lookup.place_order[: len(lookup.places)])
    counted, rest = (list(map(lookup.shape.__getitem__, dims)) for dims in (lookup.counted, lookup.rest))
    count = math.prod(lookup.places) // math.prod(counted)
    alone = reshaped(call, moved, [*counted, count, *(1 for _ in rest)])
    return call(aten.expand.default, alone, [*counted, count, *rest])


def _from_the_front(call: NodeMaker, index: torch.fx.Node, size: int) -> torch.fx.Node:
    """Return an index as int64, with negative numbers, which count from the end of `size`, made positive."""
    if index.meta["val"].dtype != torch.int64:
        index = call(aten._to_copy.default, index, dtype=torch.int64)
    if index.target in (aten.argmax.default, aten.argmin.default, aten.arange.default):
        return index
    from_end = call(aten.add.Tensor, index, size)
    return call(aten.where.self, call(aten.lt.Scalar, index, 0), from_end, index)
