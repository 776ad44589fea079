"""What a module may carry that its captured step would lose: refused by name, with the way out."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

_WRAPPERS = {
    "DistributedDataParallel": "give its .module: replicas are the compiler's to make",
    "DataParallel": "give its .module: replicas are the compiler's to make",
    "FullyShardedDataParallel": "give the module before it is wrapped: sharding is the compiler's to do",
    "FSDPModule": "give the module before fully_shard: sharding is the compiler's to do",
    "OptimizedModule": "give the module before torch.compile",
}
"""Classes that stand around a module or were mixed into it, by name: not all of them are in every torch."""

_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_TENSOR_HOOKS = {
    "_backward_hooks": "register_hook",
    "_post_accumulate_grad_hooks": "register_post_accumulate_grad_hook",
}


def first_refusal(model: nn.Module) -> str | None:
    """The first thing about a module that keeps it from being planned, and what to do; None where there is none."""
    return next(_refusals(model), None)


def _refusals(model: nn.Module) -> Iterator[str]:
    for path, module in model.named_modules():
        where = f"its module {path!r}" if path else "it"
        for kind in type(module).__mro__:
            if kind.__name__ in _WRAPPERS and kind.__module__.startswith("torch."):
                yield f"{where} is a {kind.__name__}; {_WRAPPERS[kind.__name__]}"
        if any(getattr(module, kind, None) for kind in _BACKWARD_HOOKS):
            yield f"{where} has a backward hook, which a captured step never calls; remove it"
    for name, parameter in model.named_parameters():
        for kind, registered in _TENSOR_HOOKS.items():
            if getattr(parameter, kind, None):
                yield f"its parameter {name!r} has a hook ({registered}), which a captured step never calls; remove it"
