"""
An optimizing compiler for distributed training.

`parallelize` turns a single-device PyTorch training step into the program that trains the same model on a cluster.
`PlanOptions` control the planning. A `TrainingStep` is the input of the compiler, and `from_hf` makes one from a
Hugging Face model. A `ShareSampler` gives each rank its rows of every batch; `LossScaling` holds the settings of
float16; a `LocalShard` is a rank's part of an unevenly split tensor. `register_rule` declares how a custom op may be
split, and `check_rule` tests whether the declaration is correct. Under `counter_random` eager PyTorch draws the same
random numbers as a plan. `FaultBounds` set how soon a fault of a rank ends the job. A `NonFiniteError` reports a loss
that is NaN or infinite, and a `CheckpointError` a checkpoint that cannot be written or read.

All names are imported on first use, so that `opt-tool`, which works on IR files, starts without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api.checking.counter_random import counter_random
    from .api.checking.rule import check_rule
    from .api.compile import PlanOptions
    from .api.parallelize import parallelize
    from .api.training_step import LossScaling, TrainingStep
    from .ir.ops.registered import register_rule
    from .models.hf.step import from_hf
    from .runtime.batches import ShareSampler
    from .runtime.checkpoint_ranks import CheckpointError
    from .runtime.faults import FaultBounds
    from .runtime.non_finite import NonFiniteError
    from .runtime.plan import LocalShard

    __version__: str

__all__ = [
    "CheckpointError",
    "FaultBounds",
    "LocalShard",
    "LossScaling",
    "NonFiniteError",
    "PlanOptions",
    "ShareSampler",
    "TrainingStep",
    "__version__",
    "check_rule",
    "counter_random",
    "from_hf",
    "parallelize",
    "register_rule",
]

_HOMES = {
    "CheckpointError": ".runtime.checkpoint_ranks",
    "FaultBounds": ".runtime.faults",
    "NonFiniteError": ".runtime.non_finite",
    "LocalShard": ".runtime.plan",
    "LossScaling": ".api.training_step",
    "PlanOptions": ".api.compile",
    "ShareSampler": ".runtime.batches",
    "TrainingStep": ".api.training_step",
    "check_rule": ".api.checking.rule",
    "from_hf": ".models.hf.step",
    "counter_random": ".api.checking.counter_random",
    "parallelize": ".api.parallelize",
    "register_rule": ".ir.ops.registered",
}


def __getattr__(name: str) -> object:
    """Import the public name `name` from its module; raise AttributeError for a name that is not public."""
    if name == "__version__":
        # The installed version, which pyproject.toml alone states.
        return import_module("importlib.metadata").version(__name__)
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(home, __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
