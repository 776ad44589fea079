"""Lookup of the training step that a command line names."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from ..ir.plain import did_you_mean
from ..runtime.recording import drawn_alike
from .step_names import OR_OWN
from .training_step import TrainingStep

_HUGGING_FACE = "hf:"


class StepError(ValueError):
    """A name that leads to no training step; the message says which part was not found and how to fix it."""


def find_step(spec: str) -> TrainingStep:
    """
    Return the training step with a name.

    The name is a shipped model, a Hugging Face model as `hf:TYPE?setting=value`, or `package.module:callable` for a
    callable that returns a `TrainingStep`. Modules are searched in the working directory first. The callable's random
    draws (a batch, the weights of a model) are the same at every call, in every process.

    Raises:
        StepError: no training step has this name.
    """
    if spec.startswith(_HUGGING_FACE):
        return _hugging_face(spec.removeprefix(_HUGGING_FACE))
    if ":" not in spec:
        from ..models.registry import training_step

        try:
            return training_step(spec)
        except ValueError as error:
            raise StepError(f"{error}; {OR_OWN}") from error
    make = _callable(spec)
    try:
        with drawn_alike():
            step = make()
    except Exception as error:
        raise StepError(f"{spec} failed: {_reason(error)}") from error
    if not isinstance(step, TrainingStep):
        raise StepError(
            f"{spec} returned a {type(step).__name__}, expected a shardwright.TrainingStep: end it in "
            "`return TrainingStep(model, loss, optimizer, batch)`"
        )
    return step


def _hugging_face(spec: str) -> TrainingStep:
    from ..models.hf.step import hf_step

    try:
        with drawn_alike():
            return hf_step(spec)
    except ValueError as error:
        raise StepError(f"{_HUGGING_FACE}{spec}: {error}") from error


def _callable(spec: str) -> Callable[[], object]:
    module_name, _, name = spec.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise StepError(f"{spec}: there is no module {error.name!r}, here or installed") from error
    except Exception as error:
        raise StepError(f"{spec}: {module_name} cannot be imported: {_reason(error)}") from error
    target: object = module
    for part in name.split("."):
        target = getattr(target, part, None)
    if not callable(target):
        known = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        listed = ", ".join(known) or "none"
        raise StepError(f"{spec}: {module_name} has no callable {name!r}; it has {listed}{did_you_mean(name, known)}")
    return target


def _reason(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
