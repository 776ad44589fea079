"""Ops to measure, as data that any rank can run without the compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ...ir.op_cost import OpWork

REFUSALS = (RuntimeError, IndexError, TypeError, ValueError)
"""What torch raises for operands that an op does not take."""


@dataclass(frozen=True)
class TensorSpec:
    """
    An operand: its local shape and torch's name of its dtype; integers are drawn from 0 to `high - 1`.

    Floating-point numbers are between 0.5 and 1.5, so that no op meets one that it is slow or undefined for.
    """

    shape: tuple[int, ...]
    dtype: str
    high: int = 2


@dataclass(frozen=True)
class OpSample:
    """
    One op with its local shapes.

    Args:
        work: what it does; `work.key` names the sample.
        expression: Python of the operands `x0`, `x1`, ..., as in a generated program.
        operands: in order.
        changes: whether it writes to operands, as updates do.
    """

    work: OpWork
    expression: str
    operands: tuple[TensorSpec, ...]
    changes: bool = False


class Arena:
    """
    Memory that the operands of all samples lie in, so that none has to be drawn twice.

    Args:
        elements: of floating-point numbers, at least as many as the operands of one sample have together.
    """

    def __init__(self, elements: int, device: torch.device) -> None:
        self.device = device
        self._generator = torch.Generator().manual_seed(0)
        self._floats = torch.rand(max(elements, 1), generator=self._generator).add_(0.5).to(device)
        self._by_dtype: dict[str, torch.Tensor] = {"float32": self._floats}

    def operands(self, sample: OpSample) -> list[torch.Tensor]:
        """The operands of a sample, one after the other in memory; copies where it writes to them."""
        at, made = 0, list[torch.Tensor]()
        for spec in sample.operands:
            count = _elements(spec)
            dtype: torch.dtype = getattr(torch, spec.dtype)
            if dtype.is_floating_point:
                tensor = self._of(spec.dtype)[at : at + count].view(spec.shape)
                at += count
            else:
                tensor = self._integers(spec, dtype)
            made.append(tensor.clone() if sample.changes else tensor)
        return made

    def _of(self, dtype: str) -> torch.Tensor:
        if dtype not in self._by_dtype:
            self._by_dtype[dtype] = self._floats.to(getattr(torch, dtype))
        return self._by_dtype[dtype]

    def _integers(self, spec: TensorSpec, dtype: torch.dtype) -> torch.Tensor:
        drawn = torch.randint(0, max(spec.high, 1), spec.shape, generator=self._generator)
        # What counts steps and seeds generators is in the memory of the host.
        return drawn.to(dtype) if not spec.shape else drawn.to(self.device, dtype)


def arena_for(samples: Sequence[OpSample], device: torch.device) -> Arena:
    """An arena that has room for each of `samples`."""
    sizes = (sum(_elements(spec) for spec in sample.operands) for sample in samples)
    return Arena(max(sizes, default=1), device)


def callable_of(sample: OpSample, arena: Arena) -> Callable[[], object]:
    """
    A function that runs the sample once.

    Raises:
        RuntimeError: torch refuses the operands.
    """
    from ... import runtime

    names = ", ".join(f"x{i}" for i in range(len(sample.operands)))
    known: dict[str, object] = {"torch": torch, "aten": torch.ops.aten, "rt": runtime, "device": arena.device}
    known["__builtins__"] = {"float": float}
    function = eval(f"lambda {names}: {sample.expression}", known)
    operands = arena.operands(sample)
    return lambda: function(*operands)


def _elements(spec: TensorSpec) -> int:
    count = 1
    for size in spec.shape:
        count *= size
    return count
