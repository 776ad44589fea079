"""A function of a program that only computes, and is compiled at its first call."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from .graph import Function, Results, TracedGraph

LOG = logging.getLogger("shardwright")

_Function: TypeAlias = "Callable[[object, list[Any]], Results]"
"""A function of a communicator and a list of tensors and numbers."""

_UNTRACEABLE = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)


class ComputeFunction:
    """
    A replacement for a function of a communicator and a list of values, which empties the list.

    Numbers in the list, such as the part of a batch, are constants of the compiled function: other numbers compile
    another function. Shapes and strides of tensors are fixed by the first call. A function that cannot be traced, or
    has nothing to fuse, runs uncompiled.
    """

    def __init__(self, function: _Function) -> None:
        self._function = function
        self._numbers: list[int] | None = None
        self._made: dict[tuple[object, ...], _Function] = {}

    def __call__(self, comm: object, given: list[Any]) -> Results:
        if self._numbers is None:
            self._numbers = [index for index, value in enumerate(given) if not isinstance(value, torch.Tensor)]
        key = tuple([given[index] for index in self._numbers])
        if (compiled := self._made.get(key)) is None:
            compiled = self._made[key] = self._compiled(comm, given, self._numbers)
        return compiled(comm, given)

    def _compiled(self, comm: object, given: list[Any], numbers: list[int]) -> _Function:
        constants = {index: given[index] for index in numbers}
        tensors = [value for value in given if isinstance(value, torch.Tensor)]

        def traced(values: list[torch.Tensor]) -> Results:
            rest = iter(values)
            return self._function(comm, [constants[i] if i in constants else next(rest) for i in range(len(given))])

        name = self._function.__name__
        try:
            graph = TracedGraph.of(traced, tensors)
        except _UNTRACEABLE as error:
            LOG.warning("%s is not compiled: %s", name, str(error).splitlines()[0])
            return self._function
        return _called(graph.compiled(name), numbers) if graph.is_worth_compiling else self._function


def _called(function: Function, numbers: list[int]) -> _Function:
    """Adapt a function of tensors to a communicator and a list with numbers at some indices."""
    if not numbers:
        return lambda _, given: function(given)

    def without_numbers(_: object, given: list[Any]) -> Results:
        for index in reversed(numbers):
            del given[index]
        return function(given)

    return without_numbers
