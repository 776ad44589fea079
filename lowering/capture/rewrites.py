"""
Replace calls of a model during tracing by calls with the same result that capture and sharding support.

``x[mask] = value`` and ``x.masked_scatter(mask, source)`` have a static shape, but the shape of their gradients depends
on the number of true elements in the mask. Bags of one size are sums of rows of an embedding, and torch's op for bags
of any sizes needs all of them at once. `gaussian_nll_loss` reads the variances to check them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

from . import recurrent


def rewritten(
    func: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Callable[..., object]:
    """Return the replacement of `func` for these arguments, or `func` if it has none."""
    replacement, applies = _REWRITES.get(func, (func, None))
    return replacement if applies is not None and applies(*args, **kwargs) else func


def _set_where(x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor | float) -> None:
    """Compute ``x[mask] = value`` for a value that broadcasts over the mask."""
    mask = mask.reshape(*mask.shape, *[1] * (x.dim() - mask.dim()))
    x.copy_(torch.where(mask, value, x))


def _is_one_value(x: torch.Tensor, mask: object, value: object) -> bool:
    """Return whether an assignment is by a mask and its value broadcasts over the mask."""
    if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.bool or mask.dim() == 0:
        return False
    return not isinstance(value, torch.Tensor) or value.dim() <= x.dim() - mask.dim()


def _masked_scatter(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Return the first elements of `source`, in order, where `mask` is true, and `x` elsewhere."""
    x, mask = torch.broadcast_tensors(x, mask)
    hit = mask.reshape(-1)
    position = (hit.cumsum(0) - 1).clamp(0, source.numel() - 1)
    return torch.where(hit, source.reshape(-1)[position], x.reshape(-1)).view(x.shape)


def _masked_scatter_into(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return x.copy_(_masked_scatter(x, mask, source))


def _has_elements(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> bool:
    return source.numel() > 0


def _embedding_bag(
    input: torch.Tensor,
    weight: torch.Tensor,
    *,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    per_sample_weights: torch.Tensor | None = None,
    **ignored: object,
) -> torch.Tensor:
    """Return the sums or means of the rows of an embedding at the indices ``[bags, size]``."""
    rows = functional.embedding(input, weight, scale_grad_by_freq=scale_grad_by_freq)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    return rows.sum(1) if mode == "sum" else rows.mean(1)


def _gaussian_nll_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    var: torch.Tensor,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """Compute torch's loss, but do not read the variances to check their sign."""
    var = (var if var.dim() == input.dim() else var.unsqueeze(-1)).clone()
    with torch.no_grad():
        var.clamp_(min=eps)
    losses = 0.5 * (var.log() + (input - target) ** 2 / var)
    losses = losses + 0.5 * math.log(2 * math.pi) if full else losses
    return losses if reduction == "none" else losses.mean() if reduction == "mean" else losses.sum()


def _has_variances(input: torch.Tensor, target: object, var: object, **settings: object) -> bool:
    """Return whether there is a variance for each element, or one for all elements of a dim."""
    # Torch's function raises the errors of other arguments.
    if not isinstance(var, torch.Tensor) or settings.get("reduction", "mean") not in ("none", "mean", "sum"):
        return False
    if var.dim() != input.dim():
        return var.shape == input.shape[:-1]
    return [own for own, size in zip(var.shape, input.shape, strict=True) if own != size] in ([], [1])


def _has_bags_of_one_size(input: torch.Tensor, weight: object, **given: object) -> bool:
    """Return whether all bags have the same number of rows, and none of the rows is left out or normalised."""
    is_plain = given.get("max_norm") is None and given.get("padding_idx") is None and not given.get("sparse")
    return is_plain and input.dim() == 2 and input.shape[1] > 0 and given.get("mode", "mean") in ("mean", "sum")


_REWRITES: dict[object, tuple[Callable[..., object], Callable[..., bool]]] = {
    torch.Tensor.__setitem__: (_set_where, _is_one_value),
    torch.masked_scatter: (_masked_scatter, _has_elements),
    torch.Tensor.masked_scatter: (_masked_scatter, _has_elements),
    torch.Tensor.masked_scatter_: (_masked_scatter_into, _has_elements),
    functional.gaussian_nll_loss: (_gaussian_nll_loss, _has_variances),
    functional.embedding_bag: (_embedding_bag, _has_bags_of_one_size),
    **{function: (recurrent.layers_of(kind), recurrent.is_plain) for function, kind in recurrent.KINDS.items()},
}
"""Function -> its replacement, and a predicate on the arguments that the replacement supports."""
