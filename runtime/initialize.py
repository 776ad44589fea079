"""Initialization: every rank's part of the weights that the model has on one device under the same seed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch
from torch import nn

from .recording import Keep, keep_all, named_tensors, record


@contextmanager
def drawn_alike(seed: int = 0) -> Generator[None, None, None]:
    """Inside, seed torch's random numbers with `seed` in every process; outside they continue as before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def initialize(model: nn.Module | Callable[[], nn.Module], seed: int | None, keep: Keep) -> dict[str, torch.Tensor]:
    """
    Build a model's tensors one at a time and keep a part of each.

    The parts equal the parts of ``torch.manual_seed(seed); model()`` bit for bit. A model that takes random numbers
    from elsewhere (`random`, numpy) must seed them itself.

    Args:
        model: the module, or a function that builds it. With a function only one of its tensors exists at a time,
            unless the model needs several at once.
        seed: seed of torch's random numbers; if None, torch's state is left alone.
        keep: function of a tensor's first name and the tensor that returns the part to keep, or None.

    Returns:
        The kept parts, by every name of every parameter, buffer and plain tensor attribute.

    Warns:
        RuntimeWarning: the full model is built, because it cannot be built tensor by tensor; the message says why.
    """
    if seed is not None:
        torch.manual_seed(seed)
    if isinstance(model, nn.Module):
        return keep_all(keep, named_tensors(model))
    state = torch.get_rng_state()
    try:
        recording = record(model)
    # The model's own code runs here, and may raise any error when it meets tensors without numbers.
    except Exception as error:
        warnings.warn(
            f"every rank builds the full model, because its construction cannot be recorded: "
            f"{type(error).__name__}: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        torch.set_rng_state(state)
        return keep_all(keep, named_tensors(model()))
    return recording.replay(keep).kept
