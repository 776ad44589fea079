"""
What a fused op is to the lowering: one descriptor, in the file that defines the op.

`docs/adding-a-fused-op.md` goes through all that a new one needs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

Definition: TypeAlias = Callable[..., torch.Tensor | tuple[torch.Tensor | None, ...] | list[torch.Tensor]]
"""What an op or a function of the runtime computes, in plain arithmetic."""


@dataclass(frozen=True)
class FusedOp:
    """
    An op that the runtime computes in one call, where torch has several or one for each device.

    The name of its definition is that of its op in the IR (a row of `ir/ops`), and of the runtime's fast function
    (`runtime.__init__`).

    Args:
        definition: what it computes, in plain arithmetic on tensors: what the interpreter runs and the runtime's
            function is tested against. Parameters without a default, and not annotated as ``| None``, are required.
        stands_for: the ops of torch that capture replaces by it, by full name, each with the names under which its
            schema has the definition's arguments; none where it has the same arguments in the same order.
        told_device: whether a call takes the device of its result as an argument.
    """

    definition: Definition
    stands_for: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    takes_device: bool = False

    @property
    def name(self) -> str:
        """The name that it has everywhere."""
        return self.definition.__name__

    @property
    def parameters(self) -> tuple[FusedParameter, ...]:
        """The parameters of the definition, in order."""
        return tuple(map(_parameter, inspect.signature(self.definition).parameters.values()))


@dataclass(frozen=True)
class FusedParameter:
    """A parameter of a fused op; `default` is its value where a call omits it."""

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
