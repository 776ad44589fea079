"""
The shipped training steps: `training_step("gpt2-small")`, or the modules for models of other sizes.

Both names are imported on first use, because they need torch, and `names` does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .registry import MODELS, training_step

__all__ = ["MODELS", "training_step"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(".registry", __name__), name)
