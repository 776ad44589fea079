"""A program whose computation between collectives is compiled."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..faults import ACTIVITY
from ..stages import Stage, run_text
from .split import DECORATOR, with_compute_functions
from .usable import verify_usable


def compiled_stages(stages: Sequence[Stage], program: str, device: torch.device) -> list[Stage]:
    """
    Return stages that compute the same as the given stages, and are compiled in their first step.

    Raises:
        PlanError: as in `verify_usable`.
    """
    # Imported late: the import of Inductor takes seconds, which only a compiling job should wait for.
    from .compute import ComputeFunction

    verify_usable(device)
    text = with_compute_functions(program)
    name = f"<{stages[0].plan.name}, compiled>"
    namespace = run_text(text, name, **{DECORATOR: ComputeFunction})
    ACTIVITY.compiles = True
    return [Stage(stage.plan, namespace[stage.step.__name__]) for stage in stages]
