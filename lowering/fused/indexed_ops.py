"""
Define lookups by index in one shard of a tensor, by torch's ops on the full tensor.

`part` is ``(start, stop, size)``: the first operand holds the positions from `start` to `stop` of a dim with `size`
positions on all devices together. A lookup in another shard gives zero, so that the results of all shards add up to the
op's result; a write to another shard is skipped. All else is as in the torch op of the same name. The interpreter runs
these definitions, and the runtime's fast functions of the same names are tested against them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .fused_op import Definition

aten = torch.ops.aten

Part = tuple[int, int, int]


def _whole(x: torch.Tensor, dim: int, part: Part) -> torch.Tensor:
    """Return the full tensor with `x` in its place and zeros for all other shards."""
    start, stop, size = part
    shape = list(x.shape)
    shape[dim] = size
    whole = x.new_zeros(shape)
    whole.narrow(dim, start, stop - start).copy_(x)
    return whole


def _cut(x: torch.Tensor, dim: int, part: Part) -> torch.Tensor:
    start, stop, _ = part
    return x.narrow(dim, start, stop - start).contiguous()


def embedding_part(
    weight: torch.Tensor,
    indices: torch.Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    part: Part,
) -> torch.Tensor:
    """Compute `aten.embedding` with some rows of the weight."""
    return aten.embedding(_whole(weight, 0, part), indices, padding_idx, scale_grad_by_freq, sparse)


def embedding_dense_backward_part(
    grad_output: torch.Tensor,
    indices: torch.Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
    *,
    part: Part,
) -> torch.Tensor:
    """Compute some rows of `aten.embedding_dense_backward`; `num_weights` is the number of all rows."""
    grad = aten.embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq)
    return _cut(grad, 0, part)


def gather_part(
    x: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False, part: Part
) -> torch.Tensor:
    """Compute `aten.gather` from a shard along `dim`."""
    return aten.gather(_whole(x, dim, part), dim, index, sparse_grad=sparse_grad)


def scatter_value_part(x: torch.Tensor, dim: int, index: torch.Tensor, value: float, *, part: Part) -> torch.Tensor:
    """Compute `aten.scatter.value` to a shard along `dim`."""
    return _cut(aten.scatter.value(_whole(x, dim, part), dim, index, value), dim, part)


def scatter_src_part(x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, *, part: Part) -> torch.Tensor:
    """Compute `aten.scatter.src` to a shard along `dim`."""
    return _cut(aten.scatter.src(_whole(x, dim, part), dim, index, src), dim, part)


def scatter_add_part(x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, *, part: Part) -> torch.Tensor:
    """Compute `aten.scatter_add` to a shard along `dim`."""
    return _cut(aten.scatter_add(_whole(x, dim, part), dim, index, src), dim, part)


def index_select_part(x: torch.Tensor, dim: int, index: torch.Tensor, *, part: Part) -> torch.Tensor:
    """Compute `aten.index_select` from a shard along `dim`."""
    return aten.index_select(_whole(x, dim, part), dim, index)


def index_add_part(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: float = 1, part: Part
) -> torch.Tensor:
    """Compute `aten.index_add` to a shard along `dim`."""
    return _cut(aten.index_add(_whole(x, dim, part), dim, index, source, alpha=alpha), dim, part)


def index_tensor_part(x: torch.Tensor, indices: Sequence[torch.Tensor], *, part: Part) -> torch.Tensor:
    """Compute `aten.index.Tensor` with one index, from a shard along the first dim."""
    return aten.index.Tensor(_whole(x, 0, part), indices)


def index_put_part(
    x: torch.Tensor,
    indices: Sequence[torch.Tensor],
    values: torch.Tensor,
    accumulate: bool = False,
    *,
    part: Part,
) -> torch.Tensor:
    """Compute `aten.index_put` with one index, to a shard along the first dim."""
    return _cut(aten.index_put(_whole(x, 0, part), indices, values, accumulate), 0, part)


def nll_loss_forward_part(
    scores: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    *,
    part: Part,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `aten.nll_loss_forward` (sum or no reduction) with some classes; it counts the labels in them."""
    counted = _whole(scores.new_ones(scores.shape[-1]) if weight is None else weight, 0, part)
    return aten.nll_loss_forward(_whole(scores, -1, part), target, counted, reduction, ignore_index)


def nll_loss_backward_part(
    grad_output: torch.Tensor,
    scores: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
    *,
    part: Part,
) -> torch.Tensor:
    """Compute `aten.nll_loss_backward` with some classes."""
    whole = None if weight is None else _whole(weight, 0, part)
    scores = _whole(scores, -1, part)
    grad = aten.nll_loss_backward(grad_output, scores, target, whole, reduction, ignore_index, total_weight)
    return _cut(grad, -1, part)


FUNCTIONS: dict[str, Definition] = {
    function.__name__: function
    for function in (
        embedding_part,
        embedding_dense_backward_part,
        gather_part,
        scatter_value_part,
        scatter_src_part,
        scatter_add_part,
        index_select_part,
        index_add_part,
        index_tensor_part,
        index_put_part,
        nll_loss_forward_part,
        nll_loss_backward_part,
    )
}
"""Name -> definition; the runtime's functions of the same names avoid the full tensor."""
