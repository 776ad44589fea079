"""
Rewrite indexing to the form of the IR: one index tensor for each of the first dims, without gaps.

``x[:, i]`` does not index its first dim; torch writes None for this dim. It is rewritten to ``x.permute(1, 0)[i]``,
followed by a permute that restores the order of the dims. Its gradient, an ``index_put``, is rewritten in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.fx
from torch._ops import OpOverload
from torch.fx.node import Argument, Target, map_arg

from .captured import ORIGIN

aten = torch.ops.aten


def index_first_dims(graph: torch.fx.Graph) -> None:
    """Rewrite every index and index_put that skips a dim before an indexed dim."""
    for node in list(graph.nodes):
        rewrite = _REWRITES.get(node.target)
        if rewrite is None or all(isinstance(index, torch.fx.Node) for index in node.args[1]):
            continue
        with graph.inserting_before(node):
            node.replace_all_uses_with(rewrite(NodeMaker(graph, node), *node.args))
        graph.erase_node(node)


class NodeMaker:
    """A factory of nodes that replace a node and have its origin."""

    def __init__(self, graph: torch.fx.Graph, replaced: torch.fx.Node) -> None:
        self._graph, self._replaced = graph, replaced

    def __call__(self, target: OpOverload, *args: Argument, **kwargs: Argument) -> torch.fx.Node:
        """Create a node that calls `target`, with its fake value."""
        node = self._graph.call_function(target, args, kwargs)
        value = target(*map_arg(args, lambda arg: arg.meta["val"]), **kwargs)
        node.meta = {"val": value, ORIGIN: self._replaced.meta[ORIGIN]}
        return node


def permuted(call: NodeMaker, x: torch.fx.Node, order: Sequence[int]) -> torch.fx.Node:
    """Return `x` with its dims in this order."""
    return x if list(order) == sorted(order) else call(aten.permute.default, x, list(order))


def inverse(order: Sequence[int]) -> list[int]:
    """Return the inverse of a permutation of dims."""
    return [order.index(dim) for dim in range(len(order))]


def reshaped(call: NodeMaker, x: torch.fx.Node, shape: Sequence[int]) -> torch.fx.Node:
    """Return a view of `x` in this shape, or a view of a copy if the strides of `x` forbid a view."""
    value = x.meta["val"]
    if list(value.shape) == list(shape):
        return x
    if not _is_viewable(value, shape):
        x = call(aten.clone.default, x, memory_format=torch.contiguous_format)
    return call(aten.view.default, x, list(shape))


def _is_viewable(value: torch.Tensor, shape: Sequence[int]) -> bool:
    try:
        value.view(list(shape))
    except RuntimeError:
        return False
    return True


def _index(call: NodeMaker, x: torch.fx.Node, indices: Sequence[torch.fx.Node | None]) -> torch.fx.Node:
    dims, tensors = _indexed(indices)
    picked = call(aten.index.Tensor, call(aten.permute.default, x, _first(x, dims)), tensors)
    return call(aten.permute.default, picked, _to_place(picked, x, dims))


def _index_put(
    call: NodeMaker,
    x: torch.fx.Node,
    indices: Sequence[torch.fx.Node | None],
    values: torch.fx.Node,
    accumulate: bool = False,
) -> torch.fx.Node:
    dims, tensors = _indexed(indices)
    order = _first(x, dims)
    moved = call(aten.permute.default, x, order)
    picked = aten.index.Tensor(moved.meta["val"], [tensor.meta["val"] for tensor in tensors])
    place = _to_place(picked, x, dims)
    whole = call(aten.expand.default, values, [picked.shape[dim] for dim in place])
    sent = call(aten.permute.default, whole, inverse(place))
    put = call(aten.index_put.default, moved, tensors, sent, accumulate)
    return call(aten.permute.default, put, inverse(order))


_REWRITES: dict[Target, Callable[..., torch.fx.Node]] = {
    aten.index.Tensor: _index,
    aten._unsafe_index.Tensor: _index,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
}


def _indexed(indices: Sequence[torch.fx.Node | None]) -> tuple[list[int], list[torch.fx.Node]]:
    pairs = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    return [dim for dim, _ in pairs], [index for _, index in pairs]


def _first(x: torch.fx.Node, dims: list[int]) -> list[int]:
    """Return the order of the dims of `x` that moves `dims` to the front."""
    return [*dims, *(dim for dim in range(x.meta["val"].dim()) if dim not in dims)]


def _to_place(picked: torch.fx.Node | torch.Tensor, x: torch.fx.Node, dims: list[int]) -> list[int]:
    """
    Return the order of dims that moves the result dims of the indices to their place in torch's result.

    In `picked` these dims come first. Torch puts them in the place of the indexed dims if those are adjacent, and
    leaves them in front otherwise.
    """
    value = picked.meta["val"] if isinstance(picked, torch.fx.Node) else picked
    rest = x.meta["val"].dim() - len(dims)
    indexed = list(range(value.dim() - rest))
    others = list(range(len(indexed), value.dim()))
    before = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    return [*others[:before], *indexed, *others[before:]]
