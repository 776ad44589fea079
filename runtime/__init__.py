"""What runs on a worker: process groups, collectives, executor, profiler, checkpoint."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..ir.mesh import Mesh
    from .communicator import Communicator
    from .executor import Executor
    from .fused_attention import attention, attention_backward
    from .launch import main
    from .optimizers import adamw_, increment, sgd_
    from .plan import Plan, Result, Value
    from .spawn import run_ranks

__all__ = [
    "Communicator",
    "Executor",
    "Mesh",
    "Plan",
    "Result",
    "Value",
    "adamw_",
    "attention",
    "attention_backward",
    "increment",
    "main",
    "run_ranks",
    "sgd_",
]

_HOMES = {
    "Communicator": ".communicator",
    "Executor": ".executor",
    "Mesh": "..ir.mesh",
    "Plan": ".plan",
    "Result": ".plan",
    "Value": ".plan",
    "adamw_": ".optimizers",
    "attention": ".fused_attention",
    "attention_backward": ".fused_attention",
    "increment": ".optimizers",
    "main": ".launch",
    "run_ranks": ".spawn",
    "sgd_": ".optimizers",
}


def __getattr__(name: str) -> object:
    """Import the public name `name` from its home; AttributeError for a name that is not public."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(home, __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
