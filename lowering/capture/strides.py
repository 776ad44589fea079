"""
Removing ops that name strides from a graph, for the local parts have others.

What is made with strides is made without; what is read or written by strides (``as_strided``) is read or written by
position in the flat tensor: ``x.as_strided([2, 3], [3, 1])`` is ``x.view(-1)[p]`` with ``p = 3 * arange(2)[:, None] +
arange(3)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx.node import Target

from ...ir.not_supported import STRIDES
from .captured import ORIGIN, CaptureError
from .indexing import NodeMaker

aten = torch.ops.aten


def forget_strides(graph: torch.fx.Graph) -> None:
    """
    Rewrite every op that names strides.

    Raises:
        CaptureError: it reads by strides what is a part of another tensor, of which it may then read the rest.
    """
    for node in list(graph.nodes):
        if (rewrite := _REWRITES.get(node.target)) is not None:
            with graph.inserting_before(node), node.meta["val"].fake_mode:
                node.replace_all_uses_with(rewrite(NodeMaker(graph, node), node, *node.args))
            graph.erase_node(node)


def _made(call: NodeMaker, node: torch.fx.Node, *_: object) -> torch.fx.Node:
    value = node.meta["val"]
    return call(aten.empty.memory_format, list(value.shape), dtype=value.dtype, device=value.device)


def _read(call: NodeMaker, node: torch.fx.Node, x: torch.fx.Node, *strided: Any) -> torch.fx.Node:
    return call(aten.index.Tensor, _flat(call, x, node), [_positions(call, *strided)])


def _written(
    call: NodeMaker, node: torch.fx.Node, x: torch.fx.Node, source: torch.fx.Node, *strided: Any
) -> torch.fx.Node:
    flat = call(aten.index_put.default, _flat(call, x, node), [_positions(call, *strided)], source)
    value = x.meta["val"]
    order = _memory_order(value)
    in_order = call(aten.view.default, flat, [value.shape[dim] for dim in order])
    return call(aten.permute.default, in_order, [order.index(dim) for dim in range(len(order))])


_REWRITES: dict[Target, Callable[..., torch.fx.Node]] = {
    aten.empty_strided.default: _made,
    aten.new_empty_strided.default: _made,
    aten.empty_permuted.default: _made,
    aten.as_strided.default: _read,
    aten.as_strided_scatter.default: _written,
}


def _memory_order(value: torch.Tensor) -> list[int]:
    """The dims from the one of the largest stride to the one whose elements are neighbours."""
    return sorted(range(value.dim()), key=lambda dim: -value.stride(dim))


def _flat(call: NodeMaker, x: torch.fx.Node, node: torch.fx.Node) -> torch.fx.Node:
    """The elements of `x` in the order in which they lie in memory."""
    value, order = x.meta["val"], _memory_order(x.meta["val"])
    if value.storage_offset() or not value.permute(order).is_contiguous():
        origin = node.meta[ORIGIN]
        raise CaptureError(
            f"{origin.file}:{origin.line} (layer '{origin.layer}'): {node.target} reads the memory of a tensor that is"
            f" a view of another; {STRIDES.instead}"
        )
    return call(aten.view.default, call(aten.permute.default, x, order), [value.numel()])


def _positions(call: NodeMaker, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> torch.fx.Node:
    """Where in memory each element of a strided tensor lies."""
    total = call(aten.full.default, list(size), offset or 0)
    for dim, (count, step) in enumerate(zip(size, stride, strict=True)):
        along = call(aten.mul.Scalar, call(aten.arange.default, count), step)
        shape = [count if d == dim else 1 for d in range(len(size))]
        total = call(aten.add.Tensor, total, call(aten.view.default, along, shape))
    return total
