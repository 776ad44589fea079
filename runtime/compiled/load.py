"""A program whose computation between collectives is compiled."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..faults import ACTIVITY
from ..program_text import run_text
from ..stages import Stage
from .split import DECORATOR, with_compute_functions


def verify_usable(device: torch.device) -> None:
    """
    Check that the tools which Inductor needs to compile for a device are installed.

    Raises:
        PlanError: the C++ compiler is missing, or Triton for a GPU.
    """
    # Imported late here and below: the import of Inductor takes seconds, which only a compiling job should wait for.
    from .usable import verify_inductor

    verify_inductor(device)


def compiled_stages(stages: Sequence[Stage], program: str, device: torch.device) -> list[Stage]:
    """
    Return stages that compute the same as the given stages, and are compiled in their first step.

    Args:
        program: source text of the stages.

    Raises:
        PlanError: as in `verify_usable`.
    """
    from .compute import ComputeFunction

    verify_usable(device)
    text = with_compute_functions(program)
    name = f"<{stages[0].plan.name}, compiled>"
    namespace = run_text(text, name, **{DECORATOR: ComputeFunction})
    ACTIVITY.compiles = True
    return [Stage(stage.plan, namespace[stage.step.__name__]) for stage in stages]
