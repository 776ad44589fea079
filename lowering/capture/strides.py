"""
Remove ops that name strides from a graph, since local shards have other strides.

Tensors are created without strides. A read or write by strides (``as_strided``) becomes views, which can be split, if
its elements form a box of a view of the tensor: ``x.as_strided([3, 2], [1, 4])`` of 8 elements is
``x.view(2, 4)[:, :3].permute(1, 0)``. Otherwise, for example for overlapping windows, the access becomes a lookup by
position in the flat tensor: ``x.as_strided([2, 3], [1, 1])`` is ``x.view(-1)[p]`` with
``p = arange(2)[:, None] + arange(3)``.
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
        CaptureError: an op reads a view of another tensor by strides, and so may read other parts of that tensor.
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
        result = call(
            aten.index.Tensor, reshaped(call, in_order, [x.meta["val"].numel()]), [_positions(call, *strided)]
        )
    else:
        result = reshaped(call, in_order, box.shape)
        for dim, (start, stop) in box.parts.items():
            result = call(aten.slice.Tensor, result, dim, start, stop)
        result = reshaped(call, permuted(call, result, box.order), node.meta["val"].shape)
    # A later read of this value by strides refers to its original strides.
    result.meta["val"] = node.meta["val"]
    return result


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
        sizes = [around[-1].meta["val"].shape[dim] for dim in box.order]
        written = permuted(call, reshaped(call, source, sizes), inverse(box.order))
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
    """Return the dims sorted from the largest stride to the smallest."""
    return sorted(range(value.dim()), key=lambda dim: -value.stride(dim))


def _in_order(call: NodeMaker, x: torch.fx.Node, node: torch.fx.Node) -> torch.fx.Node:
    """Return `x` with its dims permuted to their order in memory."""
    value, order = x.meta["val"], _memory_order(x.meta["val"])
    if value.storage_offset() or not value.permute(order).is_contiguous():
        origin = node.meta[ORIGIN]
        raise CaptureError(
            f"{origin.file}:{origin.line} (layer '{origin.layer}'): {node.target} reads the memory of a tensor that is"
            f" a view of another; {STRIDES.instead}"
        )
    return permuted(call, x, order)


def _positions(call: NodeMaker, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> torch.fx.Node:
    """Return the position in memory of each element of a strided tensor."""
    total = call(aten.full.default, list(size), offset or 0)
    for dim, (count, step) in enumerate(zip(size, stride, strict=True)):
        along = call(aten.mul.Scalar, call(aten.arange.default, count), step)
        shape = [count if d == dim else 1 for d in range(len(size))]
        total = call(aten.add.Tensor, total, call(aten.view.default, along, shape))
    return total
