"""Hugging Face models as training steps: `from_hf`, tasks, example batches, and tiny configs by name."""

from .step import from_hf, hf_step

__all__ = ["from_hf", "hf_step"]
