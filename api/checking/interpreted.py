"""A run of a planned step by the interpreter: all ranks in this process, with results fed back after every step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, UnitAttr
from xdsl.ir import Attribute

from ...dialects import train
from ...dialects.compute import python_value
from ...dialects.step import argument_attributes, result_attributes
from ...ir.counter import step_seed
from ...lowering.capture.calling import Batch, batch_items
from ...lowering.interpreter.interpreter import find_function, interpret
from ...lowering.interpreter.random_inputs import random_inputs
from .comparison import StepValues


class InterpretedRun:
    """
    A run of a planned step function in the interpreter, with the same interface as `EagerRun`.

    Args:
        model: the model with the initial parameters and buffers, in the step's dtype.
        seed: seed of the random numbers of the steps.
        explicit: whether every change of sharding must be an op, as after `insert-resharding`.
    """

    def __init__(self, module: ModuleOp, model: nn.Module, seed: int = 0, *, explicit: bool = True) -> None:
        self._module, self._explicit = module, explicit
        self._seed, self._steps = seed, 0
        func = find_function(module)
        self._arguments = argument_attributes(func)
        self._results = result_attributes(func)
        optimizer = func.attributes["train.optimizer"]
        assert isinstance(optimizer, DictionaryAttr)
        settings = python_value(optimizer)
        self._rates = [float(group["lr"]) for group in settings.get("groups", [settings])]
        self._values = [
            _first(roles, drawn, model) for roles, drawn in zip(self._arguments, random_inputs(func), strict=True)
        ]

    def step(self, batch: Batch, factor: float = 1.0) -> StepValues:
        """Train one step, with the learning rates multiplied by `factor`."""
        items = batch_items(batch)
        for index, roles in enumerate(self._arguments):
            if train.BATCH in roles:
                self._values[index] = items[str(python_value(roles[train.BATCH]))]
            elif train.LEARNING_RATE in roles:
                group = roles[train.LEARNING_RATE]
                rate = self._rates[0 if group == UnitAttr() else python_value(group)]
                self._values[index] = torch.full_like(self._values[index], rate * factor)
            elif train.SEED in roles:
                self._values[index] = torch.tensor(step_seed(self._seed, self._steps))
        self._steps += 1
        outputs = interpret(self._module, self._values, check_replicas=True, explicit=self._explicit)
        values: dict[tuple[str, str], torch.Tensor] = {}
        for roles, value in zip(self._results, outputs, strict=True):
            if train.LOSS in roles:
                _agree(values.setdefault(("loss", "loss"), value), value)
            elif train.METRIC in roles:
                name = str(python_value(roles[train.METRIC]))
                _agree(values.setdefault(("metric", name), value), value)
            elif train.GRAD in roles:
                values["gradient", str(python_value(roles[train.GRAD]))] = value
            else:
                self._values[python_value(roles[train.UPDATES])] = value
        return values | self._kept()

    def _kept(self) -> dict[tuple[str, str], torch.Tensor]:
        kept: dict[tuple[str, str], torch.Tensor] = {}
        for roles, value in zip(self._arguments, self._values, strict=True):
            if train.PARAM in roles:
                kept["parameter", str(python_value(roles[train.PARAM]))] = value
            elif train.BUFFER in roles:
                kept["buffer", str(python_value(roles[train.BUFFER]))] = value
            elif train.STATE in roles:
                parameter, state = python_value(roles[train.STATE])
                kept[state, parameter] = value
        return kept


def _agree(one: torch.Tensor, other: torch.Tensor) -> None:
    """Raise ValueError if two stages of a pipeline return different losses or metrics."""
    if not torch.allclose(one, other, rtol=0, atol=0, equal_nan=True):
        raise ValueError(f"one stage's loss is {one.item()}, another's {other.item()}")


def _first(roles: Mapping[str, Attribute], drawn: torch.Tensor, model: nn.Module) -> torch.Tensor:
    """Return the value of an argument before the first step; the batch comes with each step."""
    if train.PARAM in roles:
        return model.get_parameter(str(python_value(roles[train.PARAM]))).detach()
    if train.BUFFER in roles:
        owner, _, name = str(python_value(roles[train.BUFFER])).rpartition(".")
        return getattr(model.get_submodule(owner), name).detach()
    if train.STATE in roles:
        return torch.full_like(drawn, python_value(roles[train.INITIAL]) if train.INITIAL in roles else 0)
    return drawn
