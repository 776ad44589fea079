"""`step.optimizer`: an optimizer for torch's learning-rate schedulers and for loops that set the rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import torch

from ..ir.not_supported import OPTIMIZER_STATE, OPTIMIZER_STEP, OTHER_SETTING
from ..runtime.plan import PlanError

RATE = "lr"


class OptimizerHandle(torch.optim.Optimizer):
    """
    The settings of the optimizer inside a step.

    It holds no parameters of a model. The next step uses the learning rate in each parameter group, which a scheduler
    of `torch.optim.lr_scheduler` may set; the other settings are part of the program.

    Args:
        groups: the settings of each group of parameters, including ``lr``.
    """

    def __init__(self, groups: Sequence[Mapping[str, object]]) -> None:
        self._stands_for_step = False
        self._fixed = [{name: value for name, value in group.items() if name != RATE} for group in groups]
        super().__init__([{"params": [torch.zeros(())], **group} for group in groups], dict(groups[0]))
        self._is_made = True

    @property
    def rates(self) -> list[float]:
        """
        The learning rates of the next step, by group.

        Raises:
            PlanError: another setting was changed, but it is a constant of the program.
        """
        for number, (group, fixed) in enumerate(zip(self.param_groups, self._fixed, strict=True)):
            for name, value in fixed.items():
                if group[name] != value:
                    raise PlanError(
                        f"{name} of group {number} of step.optimizer was set to {group[name]}, but the program was "
                        f"built with {value}: {OTHER_SETTING.instead}"
                    )
        return [float(group[RATE]) for group in self.param_groups]

    def stepped(self) -> None:
        """Tell schedulers that the step was made."""
        self._stands_for_step = True
        try:
            self.step()
        finally:
            self._stands_for_step = False

    def step(self, closure: Callable[[], object] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Do nothing, because the step updates the parameters; raise PlanError if the user calls it."""
        if not self._stands_for_step:
            raise PlanError(f"step.optimizer.step() was called: {OPTIMIZER_STEP.instead}")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing, because gradients live inside a step."""

    def state_dict(self) -> NoReturn:
        """Raise PlanError, because the optimizer's state belongs to the step."""
        raise PlanError(f"step.optimizer has no state; {OPTIMIZER_STATE.instead}")

    def load_state_dict(self, state_dict: object) -> NoReturn:
        """Raise PlanError, because the optimizer's state belongs to the step."""
        raise PlanError(f"step.optimizer has no state; {OPTIMIZER_STATE.instead}")

    def add_param_group(self, param_group: dict[str, object]) -> None:
        """Raise PlanError, because the plan fixes which parameters are trained."""
        if getattr(self, "_is_made", False):
            raise PlanError("step.optimizer cannot get another parameter group; call parallelize again")
        super().add_param_group(param_group)
