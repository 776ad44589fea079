"""
Replacing calls of a model while it is traced, by calls with the same result and static shapes.

``x[mask] = value`` and ``x.masked_scatter(mask, source)`` have a fixed shape, but their gradients gather as many
elements as the mask happens to have.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def rewritten(func: Callable[..., object], args: tuple[object, ...]) -> Callable[..., object]:
    """The replacement of `func`; itself for most."""
    replacement, applies = _REWRITES.get(func, (func, None))
    return replacement if applies is not None and applies(*args) else func


def _set_where(x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor | float) -> None:
    """``x[mask] = value``, where one value is for all."""
    mask = mask.reshape(*mask.shape, *[1] * (x.dim() - mask.dim()))
    x.copy_(torch.where(mask, value, x))


def _is_one_value(x: torch.Tensor, mask: object, value: object) -> bool:
    """Whether an assignment is by a mask, and its value does not have an element per element of that."""
    if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.bool or mask.dim() == 0:
        return False
    return not isinstance(value, torch.Tensor) or value.dim() <= x.dim() - mask.dim()


def _masked_scatter(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """The first elements of `source`, in order, where the mask is; `x` elsewhere."""
    x, mask = torch.broadcast_tensors(x, mask)
    hit = mask.reshape(-1)
    position = (hit.cumsum(0) - 1).clamp(0, source.numel() - 1)
    return torch.where(hit, source.reshape(-1)[position], x.reshape(-1)).view(x.shape)


def _masked_scatter_into(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return x.copy_(_masked_scatter(x, mask, source))


def _has_elements(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> bool:
    return source.numel() > 0


_REWRITES: dict[object, tuple[Callable[..., object], Callable[..., bool]]] = {
    torch.Tensor.__setitem__: (_set_where, _is_one_value),
    torch.masked_scatter: (_masked_scatter, _has_elements),
    torch.Tensor.masked_scatter: (_masked_scatter, _has_elements),
    torch.Tensor.masked_scatter_: (_masked_scatter_into, _has_elements),
}
"""By function, its replacement and the arguments that this takes."""
