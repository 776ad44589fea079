"""
Ops that look something up by index, on a part of what is looked up.

These take the place of torch's ops in a generated program where the dim that is looked up is split over devices, as the
vocabulary of an embedding may be. Their arguments are those of the ops, and `part`, which is ``(start, stop, size)``:
the first operand holds the positions from `start` to `stop` of a dim that has `size` of them on all devices together.

Looking up gives zero for what another part holds, so the results of all parts add up to the op's. Writing leaves out
what goes to another part. Nothing is gathered, and no tensor of the full size is allocated. Indices that no part holds
are an error here as in torch: RuntimeError on the CPU, an assertion on the device elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

aten = torch.ops.aten

Part = tuple[int, int, int]
"""Where a part starts and stops, and how much all of them hold."""

_IGNORED = -100


def within(index: torch.Tensor, part: Part, *, wraps: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """
    The places of `index` in this part, zero for those in another, and whether each is in this one.

    Args:
        wraps: whether negative indices count from the end.
    """
    start, stop, size = part
    if wraps:
        index = torch.where(index < 0, index + size, index)
    legal = ((index >= 0) & (index < size)).all()
    aten._assert_async.msg(legal, f"an index is not in the range of 0 to {size - 1}")
    held = (index >= start) & (index < stop)
    return torch.where(held, index - start, 0), held


def embedding_part(
    weight: torch.Tensor,
    indices: torch.Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    part: Part,
) -> torch.Tensor:
    """`aten.embedding` with some rows of the weight."""
    places, held = within(indices, part)
    return aten.embedding(weight, places).masked_fill_(~held.unsqueeze(-1), 0)


def embedding_dense_backward_part(
    grad_output: torch.Tensor,
    indices: torch.Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
    *,
    part: Part,
) -> torch.Tensor:
    """`aten.embedding_dense_backward`, some rows of its result; `num_weights` are all."""
    places, held = within(indices, part)
    # What is left out is padding of one row more.
    rows = part[1] - part[0]
    places = torch.where(held & (indices != padding_idx), places, rows)
    return aten.embedding_dense_backward(grad_output, places, rows + 1, rows, scale_grad_by_freq)[:rows]


def gather_part(
    x: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False, part: Part
) -> torch.Tensor:
    """`aten.gather` from a part along `dim`."""
    places, held = within(index, part)
    return aten.gather(x, dim, places).masked_fill_(~held, 0)


def scatter_value_part(x: torch.Tensor, dim: int, index: torch.Tensor, value: float, *, part: Part) -> torch.Tensor:
    """`aten.scatter.value` to a part along `dim`."""
    places, held = within(index, part)
    return _with_spare(x, dim).scatter_(dim, _to_spare(places, held, x, dim), value).narrow(dim, 0, x.shape[dim])


def scatter_src_part(x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, *, part: Part) -> torch.Tensor:
    """`aten.scatter.src` to a part along `dim`."""
    places, held = within(index, part)
    return _with_spare(x, dim).scatter_(dim, _to_spare(places, held, x, dim), src).narrow(dim, 0, x.shape[dim])


def _with_spare(x: torch.Tensor, dim: int) -> torch.Tensor:
    """A copy of `x` with one place more along `dim`, for what is left out."""
    spare = x.new_zeros([1 if d == dim % x.dim() else size for d, size in enumerate(x.shape)])
    return torch.cat([x, spare], dim)


def _to_spare(places: torch.Tensor, held: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.where(held, places, x.shape[dim])


def scatter_add_part(x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, *, part: Part) -> torch.Tensor:
    """`aten.scatter_add` to a part along `dim`."""
    places, held = within(index, part)
    used = src[tuple(map(slice, index.shape))]
    return aten.scatter_add(x, dim, places, used.masked_fill(~held, 0))


def index_select_part(x: torch.Tensor, dim: int, index: torch.Tensor, *, part: Part) -> torch.Tensor:
    """`aten.index_select` from a part along `dim`."""
    places, held = within(index, part)
    return aten.index_select(x, dim, places).masked_fill_(~_along(held, x, dim), 0)


def index_add_part(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: float = 1, part: Part
) -> torch.Tensor:
    """`aten.index_add` to a part along `dim`."""
    places, held = within(index, part)
    return aten.index_add(x, dim, places, source.masked_fill(~_along(held, x, dim), 0), alpha=alpha)


def _along(held: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    """A mask of one number per index, in the shape that broadcasts to slices of `x` along `dim`."""
    return held.reshape([-1 if d == dim % x.dim() else 1 for d in range(x.dim())])


def index_tensor_part(x: torch.Tensor, indices: Sequence[torch.Tensor], *, part: Part) -> torch.Tensor:
    """`aten.index.Tensor` of one index, from a part along the first dim."""
    places, held = within(indices[0], part, wraps=True)
    return aten.index.Tensor(x, [places]).masked_fill_(~_before(held, x), 0)


def index_put_part(
    x: torch.Tensor,
    indices: Sequence[torch.Tensor],
    values: torch.Tensor,
    accumulate: bool = False,
    *,
    part: Part,
) -> torch.Tensor:
    """`aten.index_put` of one index, to a part along the first dim."""
    places, held = within(indices[0], part, wraps=True)
    if accumulate:
        return aten.index_put(x, [places], torch.where(_before(held, x), values, 0), True)
    return _with_spare(x, 0).index_put_([_to_spare(places, held, x, 0)], values)[: x.shape[0]]


def _before(held: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A mask of what an index picks, in the shape that broadcasts to it."""
    return held.reshape(*held.shape, *(1,) * (x.dim() - 1))


def nll_loss_forward_part(
    scores: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    *,
    part: Part,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`aten.nll_loss_forward`, reduced by sum or not at all, with some classes; it counts the labels of those."""
    return aten.nll_loss_forward(scores, _classes(target, ignore_index, part), weight, reduction, _IGNORED)


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
    """`aten.nll_loss_backward` with some classes."""
    classes = _classes(target, ignore_index, part)
    return aten.nll_loss_backward(grad_output, scores, classes, weight, reduction, _IGNORED, total_weight)


def _classes(target: torch.Tensor, ignore_index: int, part: Part) -> torch.Tensor:
    """The classes of this part; labels of another are ignored, as those that were before."""
    counts = target != ignore_index
    places, held = within(torch.where(counts, target, part[0]), part)
    return torch.where(held & counts, places, _IGNORED)
