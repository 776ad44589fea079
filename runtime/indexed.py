"""
Ops with indices into a dim that is split over devices, on this rank's part of the dim.

These functions replace torch's ops in a generated program if the indexed dim is split over devices, such as the
vocabulary of an embedding. They take the arguments of the ops and `part`, which is ``(start, stop, size)``: the first
operand holds the positions from `start` to `stop` of a dim with `size` positions on all devices together.

A read gives zero for positions of other parts, so the results of all parts add up to the op's. A write skips
positions of other parts. No rank gathers or allocates the full tensor. Indices outside the full dim are an error
here as in torch: RuntimeError on the CPU, an assertion on the device elsewhere.

`take_rows` and `add_rows` access rows of several lists by index: tokens on the way to their experts and back, each
sequence separately. Places ``[p, n]`` are indices into each of p lists; they are not checked against the list's length.
A row is moved as one block: torch's `gather` and `scatter_add`, which take an index per element, are many times
slower on a CPU. Their `part` is None if all rows are local.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

aten = torch.ops.aten

Part = tuple[int, int, int]
"""Start and stop of a part, and the size of the full dim."""

_IGNORED = -100


def within(index: torch.Tensor, part: Part, *, wraps: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Return the local positions of `index`, zero for positions of other parts, and a mask of the indices in this part.

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
    """Compute `aten.embedding` on some rows of the weight."""
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
    """Compute some rows of the result of `aten.embedding_dense_backward`; `num_weights` counts all rows."""
    places, held = within(indices, part)
    # Skipped indices become the padding index, an extra row at the end.
    rows = part[1] - part[0]
    places = torch.where(held & (indices != padding_idx), places, rows)
    return aten.embedding_dense_backward(grad_output, places, rows + 1, rows, scale_grad_by_freq)[:rows]


def gather_part(
    x: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False, part: Part
) -> torch.Tensor:
    """Compute `aten.gather` from a part along `dim`."""
    places, held = within(index, part)
    return aten.gather(x, dim, places).masked_fill_(~held, 0)


def scatter_value_part(x: torch.Tensor, dim: int, index: torch.Tensor, value: float, *, part: Part) -> torch.Tensor:
    """Compute `aten.scatter.value` to a part along `dim`."""
    places, held = within(index, part)
    return _with_spare(x, dim).scatter_(dim, _to_spare(places, held, x, dim), value).narrow(dim, 0, x.shape[dim])


def scatter_src_part(x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, *, part: Part) -> torch.Tensor:
    """Compute `aten.scatter.src` to a part along `dim`."""
    places, held = within(index, part)
    return _with_spare(x, dim).scatter_(dim, _to_spare(places, held, x, dim), src).narrow(dim, 0, x.shape[dim])


def _with_spare(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Copy `x` with one more position along `dim`, which receives skipped writes."""
    spare = x.new_zeros([1 if d == dim % x.dim() else size for d, size in enumerate(x.shape)])
    return torch.cat([x, spare], dim)


def _to_spare(places: torch.Tensor, held: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.where(held, places, x.shape[dim])


def scatter_add_part(x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, *, part: Part) -> torch.Tensor:
    """Compute `aten.scatter_add` to a part along `dim`."""
    places, held = within(index, part)
    used = src[tuple(map(slice, index.shape))]
    return aten.scatter_add(x, dim, places, used.masked_fill(~held, 0))


def index_select_part(x: torch.Tensor, dim: int, index: torch.Tensor, *, part: Part) -> torch.Tensor:
    """Compute `aten.index_select` from a part along `dim`."""
    places, held = within(index, part)
    return aten.index_select(x, dim, places).masked_fill_(~_along(held, x, dim), 0)


def index_add_part(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: float = 1, part: Part
) -> torch.Tensor:
    """Compute `aten.index_add` to a part along `dim`."""
    places, held = within(index, part)
    return aten.index_add(x, dim, places, source.masked_fill(~_along(held, x, dim), 0), alpha=alpha)


def _along(held: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    """Reshape a mask with one entry per index so that it broadcasts to slices of `x` along `dim`."""
    return held.reshape([-1 if d == dim % x.dim() else 1 for d in range(x.dim())])


def index_tensor_part(x: torch.Tensor, indices: Sequence[torch.Tensor], *, part: Part) -> torch.Tensor:
    """Compute `aten.index.Tensor` with one index, from a part along the first dim."""
    places, held = within(indices[0], part, wraps=True)
    return aten.index.Tensor(x, [places]).masked_fill_(~_before(held, x), 0)


def index_put_part(
    x: torch.Tensor, indices: Sequence[torch.Tensor], values: torch.Tensor, accumulate: bool = False, *, part: Part
) -> torch.Tensor:
    """Compute `aten.index_put` with one index, to a part along the first dim."""
    places, held = within(indices[0], part, wraps=True)
    if accumulate:
        return aten.index_put(x, [places], torch.where(_before(held, x), values, 0), True)
    return _with_spare(x, 0).index_put_([_to_spare(places, held, x, 0)], values)[: x.shape[0]]


def _before(held: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Reshape a mask with one entry per index so that it broadcasts to the indexed rows of `x`."""
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
    """Compute `aten.nll_loss_forward` (sum or no reduction) on some classes; it counts only labels of these classes."""
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
    """Compute `aten.nll_loss_backward` on some classes."""
    classes = _classes(target, ignore_index, part)
    return aten.nll_loss_backward(grad_output, scores, classes, weight, reduction, _IGNORED, total_weight)


def _classes(target: torch.Tensor, ignore_index: int, part: Part) -> torch.Tensor:
    """Return local class numbers of the labels; labels of other parts become ignored labels."""
    counts = target != ignore_index
    places, held = within(torch.where(counts, target, part[0]), part)
    return torch.where(held & counts, places, _IGNORED)


def take_rows(rows: torch.Tensor, places: torch.Tensor, *, part: Part | None = None) -> torch.Tensor:
    """Return the rows of ``rows [p, t, f]`` at ``places``, ``[p, n, f]``; rows of other parts are zero."""
    local, held = (places, None) if part is None else within(places, part)
    taken = rows.flatten(0, 1).index_select(0, _joined(local, rows.size(1)))
    if held is not None:
        taken.masked_fill_(~held.view(-1, 1), 0)
    return taken.view(*places.shape, rows.size(2))


def add_rows(values: torch.Tensor, places: torch.Tensor, size: int, *, part: Part | None = None) -> torch.Tensor:
    """Return lists of `size` rows, ``[p, size, f]``, that sum the values ``[p, n, f]`` at their places."""
    length = size
    if part is not None:
        length = part[1] - part[0]
        places, held = within(places, part)
        values = values.masked_fill(~held.unsqueeze(2), 0)
    sums = values.new_zeros(len(values) * length, values.size(2))
    sums.index_add_(0, _joined(places, length), values.flatten(0, 1))
    return sums.view(len(values), length, values.size(2))


def _joined(places: torch.Tensor, length: int) -> torch.Tensor:
    """Convert indices into lists of `length` rows to indices into their concatenation, ``[p * n]``."""
    if len(places) > 1:
        places = places + length * torch.arange(len(places), device=places.device).unsqueeze(1)
    return places.flatten()
