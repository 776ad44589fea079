"""First values: every rank's part of the weights that the model has on one device under the same seed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch
from torch import nn

from .recording import Keep, keep_all, named_tensors, record


@contextmanager
def drawn_alike(seed: int = 0) -> Generator[None, None, None]:
    """Inside, torch's random numbers are those of `seed`, in every process; outside they continue as before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def initialize(model: nn.Module | Callable[[], nn.Module], seed: int | None, keep: Keep) -> dict[str, torch.Tensor]:
    """
    Make a model's tensors one at a time and keep a part of each.

    The parts are bit for bit those of ``torch.manual_seed(seed); model()``. Random numbers that the model
    takes from elsewhere (`random`, numpy) it has to seed itself.

    Args:
        model: a function that makes it; no more than one of its tensors exists at a time, unless it needs
            several at once. Or the module itself.
        seed: of torch's random numbers; None leaves them as they are.
        keep: of a tensor's first name and the tensor, what to keep; None if nothing.

    Returns:
        What was kept, by every name of every parameter, buffer and plain tensor attribute.

    Warns:
        RuntimeWarning: the model is built as full tensors, for it cannot be built piece by piece; the message says why.
    """
    if seed is not None:
        torch.manual_seed(seed)
    if isinstance(model, nn.Module):
        return keep_all(keep, named_tensors(model))
    state = torch.get_rng_state()
    try:
        recording = record(model)
    # The model's own code runs here, and may raise anything when it meets tensors without numbers.
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
