"""
Removing ops that name strides from a graph, for the local parts have others.

What is made with strides is made without. What is read or written by strides (``as_strided``) is read or written
through views where its elements are a box of a view of the tensor, which can be split as any other:
``x.as_strided([3, 2], [1, 4])`` of 8 elements is ``x.view(2, 4)[:, :3].permute(1, 0)``. Otherwise, as for windows that
overlap, it is read or written by position in the flat tensor: ``x.as_strided([2, 3], [1, 1])`` is ``x.view(-1)[p]``
with ``p = arange(2)[:, None] + arange(3)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx.node import Target

from ...ir.not_supported import STRIDES
from .captured import ORIGIN, CaptureError
from .indexing import NodeMaker, inverse, permuted, reshaped
from .strided_box import find_box

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
    in_order, box = _in_order(call, x, node), find_box(x.meta["val"].numel(), *strided)
    if box is None:
        found = call(aten.index.Tensor, reshaped(call, in_order, [x.meta["val"].numel()]), [_positions(call, *strided)])
    else:
        found = reshaped(call, in_order, box.shape)
        for dim, (start, stop) in box.parts.items():
            found = call(aten.slice.Tensor, found, dim, start, stop)
        found = reshaped(call, permuted(call, found, box.order), node.meta["val"].shape)
    # What reads this by strides in turn means those that it had.
    found.meta["val"] = node.meta["val"]
    return found


def _written(
    call: NodeMaker, node: torch.fx.Node, x: torch.fx.Node, source: torch.fx.Node, *strided: Any
) -> torch.fx.Node:
    value = x.meta["val"]
    in_order, box = _in_order(call, x, node), find_box(value.numel(), *strided)
    if box is None or source.meta["val"].dtype != value.dtype:
        flat = reshaped(call, in_order, [value.numel()])
        written = call(aten.index_put.default, flat, [_positions(call, *strided)], source)
    else:
        around = [reshaped(call, in_order, box.shape)]
        for dim, (start, stop) in box.parts.items():
            around.append(call(aten.slice.Tensor, around[-1], dim, start, stop))
        given = [around[-1].meta["val"].shape[dim] for dim in box.order]
        written = permuted(call, reshaped(call, source, given), inverse(box.order))
        for outer, (dim, (start, stop)) in reversed(list(zip(around[:-1], box.parts.items(), strict=True))):
            written = call(aten.slice_scatter.default, outer, written, dim, start, stop)
    order = _memory_order(value)
    return permuted(call, reshaped(call, written, [value.shape[dim] for dim in order]), inverse(order))


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


def _in_order(call: NodeMaker, x: torch.fx.Node, node: torch.fx.Node) -> torch.fx.Node:
    """`x` with its dims in the order in which they lie in memory."""
    value, order = x.meta["val"], _memory_order(x.meta["val"])
    if value.storage_offset() or not value.permute(order).is_contiguous():
        origin = node.meta[ORIGIN]
        raise CaptureError(
            f"{origin.file}:{origin.line} (layer '{origin.layer}'): {node.target} reads the memory of a tensor that is"
            f" a view of another; {STRIDES.instead}"
        )
    return permuted(call, x, order)


def _positions(call: NodeMaker, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> torch.fx.Node:
    """Where in memory each element of a strided tensor lies."""
    total = call(aten.full.default, list(size), offset or 0)
    for dim, (count, step) in enumerate(zip(size, stride, strict=True)):
        along = call(aten.mul.Scalar, call(aten.arange.default, count), step)
        shape = [count if d == dim else 1 for d in range(len(size))]
        total = call(aten.add.Tensor, total, call(aten.view.default, along, shape))
    return total
