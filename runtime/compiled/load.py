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
    Check that there is what Inductor needs to compile for a device.

    Raises:
        PlanError: there is no C++ compiler, or for a GPU no Triton.
    """
    # Whoever does not compile does not wait for the import of Inductor, which takes seconds; here and below.
    from .usable import verify_inductor

    verify_inductor(device)


def compiled_stages(stages: Sequence[Stage], program: str, device: torch.device) -> list[Stage]:
    """
    Stages that do the same as those of a program, and are compiled in their first step.

    Args:
        program: the text that the stages are from.

    Raises:
        PlanError: as `verify_usable`.
    """
    from .compute import ComputeFunction

    verify_usable(device)
    text = with_compute_functions(program)
    name = f"<{stages[0].plan.name}, compiled>"
    made = run_text(text, name, **{DECORATOR: ComputeFunction})
    ACTIVITY.compiles = True
    return [Stage(stage.plan, made[stage.step.__name__]) for stage in stages]
