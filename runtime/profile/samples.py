"""Ops to measure, as data that any rank can run without the compiler."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ...ir.op_cost import OpWork

REFUSALS = (RuntimeError, IndexError, TypeError, ValueError)
"""The exceptions that torch raises for operands that an op rejects."""


@dataclass(frozen=True)
class TensorSpec:
    """
    The local shape of an operand and torch's name of its dtype; integers are drawn from 0 to `high - 1`.

    Floating-point numbers are between 0.5 and 1.5, where every op is defined and fast.
    """

    shape: tuple[int, ...]
    dtype: str
    high: int = 2


@dataclass(frozen=True)
class OpSample:
    """
    One op with its local shapes.

    Args:
        work: the work of the op; `work.key` names the sample.
        expression: Python expression of the operands `x0`, `x1`, ..., as in a generated program.
        operands: the operands in order.
        changes: whether the op writes to operands, as updates do.
    """

    work: OpWork
    expression: str
    operands: tuple[TensorSpec, ...]
    changes: bool = False


class Arena:
    """
    Memory shared by the operands of all samples, so that their numbers are drawn only once.

    Args:
        elements: number of floating-point elements, at least as many as the operands of any one sample have in total.
    """

    def __init__(self, elements: int, device: torch.device) -> None:
        self.device = device
        self._generator = torch.Generator().manual_seed(0)
        self._floats = torch.rand(max(elements, 1), generator=self._generator).add_(0.5).to(device)
        self._by_dtype: dict[str, torch.Tensor] = {"float32": self._floats}

    def operands(self, sample: OpSample) -> list[torch.Tensor]:
        """Return the operands of a sample, consecutive in memory; they are copies if the op writes to them."""
        at, operands = 0, list[torch.Tensor]()
        for spec in sample.operands:
            count = math.prod(spec.shape)
            dtype: torch.dtype = getattr(torch, spec.dtype)
            if dtype.is_floating_point:
                if spec.dtype not in self._by_dtype:
                    self._by_dtype[spec.dtype] = self._floats.to(dtype)
                tensor = self._by_dtype[spec.dtype][at : at + count].view(spec.shape)
                at += count
            else:
                drawn = torch.randint(0, max(spec.high, 1), spec.shape, generator=self._generator)
                # Step counts and seeds are scalars in host memory.
                tensor = drawn.to(dtype) if not spec.shape else drawn.to(self.device, dtype)
            operands.append(tensor.clone() if sample.changes else tensor)
        return operands


def arena_for(samples: Sequence[OpSample], device: torch.device) -> Arena:
    """Return an arena large enough for each of `samples`."""
    sizes = (sum(math.prod(spec.shape) for spec in sample.operands) for sample in samples)
    return Arena(max(sizes, default=1), device)


def callable_of(sample: OpSample, arena: Arena) -> Callable[[], object]:
    """
    Return a function that runs the sample once.

    Raises:
        RuntimeError: torch rejects the operands.
    """
    from ... import runtime

    names = ", ".join(f"x{i}" for i in range(len(sample.operands)))
    names_in_scope: dict[str, object] = {"torch": torch, "aten": torch.ops.aten, "rt": runtime, "device": arena.device}
    names_in_scope["__builtins__"] = {"float": float}
    function = eval(f"lambda {names}: {sample.expression}", names_in_scope)
    operands = arena.operands(sample)
    return lambda: function(*operands)
