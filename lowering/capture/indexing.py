"""
Indexing in the form that the IR has: a tensor for each of the first dims, none left out.

``x[:, i]`` does not index its first dim, which torch writes as None among the index tensors. It is rewritten to
``x.permute(1, 0)[i]`` with the dims put back afterwards, and its gradient, an ``index_put``, likewise.
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
    """Rewrite every index and index_put that leaves out a dim before one that it indexes."""
    for node in list(graph.nodes):
        rewrite = _REWRITES.get(node.target)
        if rewrite is None or all(isinstance(index, torch.fx.Node) for index in node.args[1]):
            continue
        with graph.inserting_before(node):
            node.replace_all_uses_with(rewrite(NodeMaker(graph, node), *node.args))
        graph.erase_node(node)


class NodeMaker:
    """Makes nodes that replace one, with its origin."""

    def __init__(self, graph: torch.fx.Graph, replaced: torch.fx.Node) -> None:
        self._graph, self._replaced = graph, replaced

    def __call__(self, target: OpOverload, *args: Argument, **kwargs: Argument) -> torch.fx.Node:
        """A node that calls `target`, and its fake value."""
        node = self._graph.call_function(target, args, kwargs)
        value = target(*map_arg(args, lambda arg: arg.meta["val"]), **kwargs)
        node.meta = {"val": value, ORIGIN: self._replaced.meta[ORIGIN]}
        return node


def permuted(call: NodeMaker, x: torch.fx.Node, order: Sequence[int]) -> torch.fx.Node:
    """`x` with its dims in this order."""
    return x if list(order) == sorted(order) else call(aten.permute.default, x, list(order))


def inverse(order: Sequence[int]) -> list[int]:
    """The order that puts dims back that were permuted."""
    return [order.index(dim) for dim in range(len(order))]


def reshaped(call: NodeMaker, x: torch.fx.Node, shape: Sequence[int]) -> torch.fx.Node:
    """A view of this shape; where strides forbid that, of a copy."""
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
    """The dims that are indexed, and by what."""
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    return [dim for dim, _ in given], [index for _, index in given]


def _first(x: torch.fx.Node, dims: list[int]) -> list[int]:
    """The dims of `x` with `dims` before all others."""
    return [*dims, *(dim for dim in range(x.meta["val"].dim()) if dim not in dims)]


def _to_place(picked: torch.fx.Node | torch.Tensor, x: torch.fx.Node, dims: list[int]) -> list[int]:
    """
    The order of dims that puts what the indices gave where torch has it.

    In `picked` it comes first. Torch leaves it there where the indexed dims have another between them, and else
    puts it where they were.
    """
    value = picked.meta["val"] if isinstance(picked, torch.fx.Node) else picked
    rest = x.meta["val"].dim() - len(dims)
    given = list(range(value.dim() - rest))
    others = list(range(len(given), value.dim()))
    before = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    return [*others[:before], *given, *others[before:]]
