"""A model with experts on two ranks that choose different experts, as devices of different kinds may."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from shardwright.lowering.codegen.load_program import load_text
from shardwright.models.registry import training_step
from shardwright.runtime import Executor, Stage
from shardwright.runtime.stages import connect


class OtherChoices(TorchDispatchMode):
    """A mode that makes `topk` return positions of other elements, as if rounding had decided between equal ones."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.topk.default:
            values, positions = result
            return values, (positions + 1) % args[0].shape[-1]
        return result


def losses(program: str, model: str, steps: int) -> list[float]:
    """Return the losses of some steps; all ranks but rank 0 choose other experts."""
    step = training_step(model)
    stages = tuple(Stage(*each) for each in load_text(program, "<program>"))
    executor = Executor(stages, connect(stages))
    executor.initialize(step.model)
    if dist.get_rank() == 0:
        return [executor.step(step.batch, 0.05).item() for _ in range(steps)]
    with OtherChoices():
        return [executor.step(step.batch, 0.05).item() for _ in range(steps)]
