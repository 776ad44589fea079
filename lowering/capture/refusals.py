"""Refuse modules with features that a captured step would lose, such as hooks, and advise what to do instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from ...ir.not_supported import (
    AVERAGED_STATISTICS,
    BACKWARD_HOOK,
    COMPILED,
    COMPUTED_WEIGHT,
    FULLY_SHARD,
    FULLY_SHARDED,
    LAZY,
    MAX_NORM,
    PARAMETER_HOOK,
    QUANTIZED,
    REPLICATED,
    SCRIPTED,
    SPARSE_GRADIENT,
    SYNCED_BATCH_NORM,
    Refusal,
)

_CLASSES = {
    "DistributedDataParallel": REPLICATED,
    "DataParallel": REPLICATED,
    "FullyShardedDataParallel": FULLY_SHARDED,
    "FSDPModule": FULLY_SHARD,
    "OptimizedModule": COMPILED,
    "ScriptModule": SCRIPTED,
    "SyncBatchNorm": SYNCED_BATCH_NORM,
}
"""Torch classes that wrap a module or are mixed into it, by name, since some versions of torch lack some classes."""

_QUANTIZED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")

_COMPUTING = tuple(f"torch.nn.utils.{name}" for name in ("weight_norm", "spectral_norm", "prune"))
"""Python modules with hooks that replace a weight by a computed tensor."""

_SETTINGS: tuple[tuple[type[nn.Module], str, Callable[[Any], bool], Refusal], ...] = (
    (nn.Embedding, "max_norm", lambda layer: layer.max_norm is not None, MAX_NORM),
    (nn.EmbeddingBag, "max_norm", lambda layer: layer.max_norm is not None, MAX_NORM),
    (nn.Embedding, "sparse", lambda layer: layer.sparse, SPARSE_GRADIENT),
    (nn.EmbeddingBag, "sparse", lambda layer: layer.sparse, SPARSE_GRADIENT),
    (
        nn.modules.batchnorm._NormBase,
        "momentum",
        lambda layer: layer.momentum is None and layer.track_running_stats and layer.training,
        AVERAGED_STATISTICS,
    ),
)
"""Refused settings of layers: class, name of the setting, predicate that detects it, and refusal."""

_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_TENSOR_HOOKS = {
    "_backward_hooks": "register_hook",
    "_post_accumulate_grad_hooks": "register_post_accumulate_grad_hook",
}


def first_refusal(model: nn.Module) -> str | None:
    """Return the first reason why a module cannot be planned, with advice, or None."""
    return next(_refusals(model), None)


def _refusals(model: nn.Module) -> Iterator[str]:
    if any(getattr(nn.modules.module, f"_global{kind}", None) for kind in _BACKWARD_HOOKS):
        yield f"there is a backward hook of all modules, which a captured step never calls; {BACKWARD_HOOK.instead}"
    for path, module in model.named_modules():
        where = f"its module {path!r}" if path else "it"
        if not is_text(path):
            yield f"{where} has a name that UTF-8 cannot write, so that no plan can hold it; rename it"
        yield from _of_class(where, type(module))
        for kind, name, has_it, refusal in _SETTINGS:
            if isinstance(module, kind) and has_it(module):
                yield f"{where} is a {type(module).__name__} with {name}={getattr(module, name)}; {refusal.instead}"
        if any(getattr(module, kind, None) for kind in _BACKWARD_HOOKS):
            yield f"{where} has a backward hook, which a captured step never calls; {BACKWARD_HOOK.instead}"
        for hook in module._forward_pre_hooks.values():
            if type(hook).__module__ in _COMPUTING:
                yield f"{where} has a weight that a {type(hook).__name__} computes; {COMPUTED_WEIGHT.instead}"
    yield from _of_parameters(model)


def is_text(name: str) -> bool:
    """Return whether UTF-8 can encode a name; it cannot encode an unpaired surrogate."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _of_class(where: str, kind: type[nn.Module]) -> Iterator[str]:
    for base in kind.__mro__:
        if base.__name__ in _CLASSES and base.__module__.startswith("torch."):
            yield f"{where} is a {base.__name__}; {_CLASSES[base.__name__].instead}"
        if base.__module__.startswith(_QUANTIZED):
            yield f"{where} is a quantized {base.__name__}; {QUANTIZED.instead}"


def _of_parameters(model: nn.Module) -> Iterator[str]:
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            yield f"its parameter {name!r} has no shape yet; {LAZY.instead}"
        for kind, registered in _TENSOR_HOOKS.items():
            if getattr(parameter, kind, None):
                yield (
                    f"its parameter {name!r} has a hook ({registered}), which a captured step never calls; "
                    f"{PARAMETER_HOOK.instead}"
                )
