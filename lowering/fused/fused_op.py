"""
The descriptor of a fused op, which the file that defines the op creates.

`docs/adding-a-fused-op.md` explains how to add a fused op.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

Definition: TypeAlias = Callable[..., torch.Tensor | tuple[torch.Tensor | None, ...] | list[torch.Tensor]]
"""The definition of an op or of a function of the runtime, in plain arithmetic."""


@dataclass(frozen=True)
class FusedOp:
    """
    An op that the runtime computes in one call, whereas torch needs several ops, or one op for each device.

    The definition, the op in the IR (a row of `ir/ops`) and the runtime's fast function (`runtime.__init__`) share one
    name.

    Args:
        definition: the definition in plain arithmetic on tensors, which the interpreter runs and the runtime's function
            is tested against. A parameter is required if it lacks both a default and ``| None`` in its annotation.
        stands_for: full name of a torch op that capture replaces by this op -> names of the definition's arguments in
            the schema of the torch op, or an empty tuple if the arguments are the same.
        takes_device: whether a call takes the device of its result as an argument.
    """

    definition: Definition
    stands_for: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    takes_device: bool = False

    @property
    def name(self) -> str:
        """The name of the op."""
        return self.definition.__name__

    @property
    def parameters(self) -> tuple[FusedParameter, ...]:
        """The parameters of the definition, in order."""
        return tuple(map(_parameter, inspect.signature(self.definition).parameters.values()))


@dataclass(frozen=True)
class FusedParameter:
    """A parameter of a fused op; `default` is its value if a call omits it."""

    name: str
    default: object
    required: bool
    is_tensor: bool
    keyword_only: bool


def _parameter(parameter: inspect.Parameter) -> FusedParameter:
    annotation, has_default = str(parameter.annotation), parameter.default is not inspect.Parameter.empty
    return FusedParameter(
        parameter.name,
        parameter.default if has_default else None,
        not has_default and "None" not in annotation,
        "Tensor" in annotation,
        parameter.kind is inspect.Parameter.KEYWORD_ONLY,
    )
