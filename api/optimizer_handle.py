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

    It holds no parameters of a model. The learning rate in a parameter group is that of the next step, and a
    scheduler of `torch.optim.lr_scheduler` may set it; the other settings are part of the program.

    Args:
        groups: by group of parameters its settings, ``lr`` among them.
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
            PlanError: another setting was changed, which a program cannot follow.
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
        """Tell schedulers that the step has been made."""
        self._stands_for_step = True
        try:
            self.step()
        finally:
            self._stands_for_step = False

    def step(self, closure: Callable[[], object] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Nothing: the step updates the parameters. PlanError where somebody else calls it."""
        if not self._stands_for_step:
            raise PlanError(f"step.optimizer.step() was called: {OPTIMIZER_STEP.instead}")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing: gradients live inside a step."""

    def state_dict(self) -> NoReturn:
        """PlanError: the optimizer's state is the step's."""
        raise PlanError(f"step.optimizer has no state of its own; {OPTIMIZER_STATE.instead}")

    def load_state_dict(self, state_dict: object) -> NoReturn:
        """PlanError: the optimizer's state is the step's."""
        raise PlanError(f"step.optimizer has no state of its own; {OPTIMIZER_STATE.instead}")

    def add_param_group(self, param_group: dict[str, object]) -> None:
        """PlanError: which parameters are trained was decided by the plan."""
        if getattr(self, "_is_made", False):
            raise PlanError("step.optimizer cannot get another parameter group: call parallelize again")
        super().add_param_group(param_group)
