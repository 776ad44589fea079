"""The shipped training steps: `training_step("gpt2-small")`, or the modules for models of other sizes."""

from .registry import MODELS, training_step

__all__ = ["MODELS", "training_step"]
