"""`Executor`: holds this rank's part of everything a program needs, and runs its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..ir.counter import step_seed
from .batches import Batch, LocalRows, part_of_batch
from .communicator import Communicator
from .host_memory import keep_freed_memory
from .initialize import initialize
from .plan import PlanError, Result, Spread, Value, part_sizes
from .stages import Stage, my_stage


class Executor:
    """
    One rank's run of a program.

    Args:
        stages: of the program, one or more; this rank runs the one that it is a rank of.
        comm: connects this rank (`stages.connect`).

    Between steps `results` holds the local gradients that this rank's stage returns, by parameter name, and `metrics`
    what else the last step gave, whole, by name. `step_fn` is the function of the stage that `step` calls.
    """

    def __init__(self, stages: Sequence[Stage], comm: Communicator) -> None:
        if comm.device.type == "cpu":
            keep_freed_memory()
        self.plans = tuple(stage.plan for stage in stages)
        self.plan, self.step_fn = plan, _ = my_stage(stages)
        self.comm = comm
        self.results: dict[str, torch.Tensor] = {}
        self.metrics: dict[str, torch.Tensor] = {}
        self._held: list[torch.Tensor | None] = [self._at_first(value) for value in plan.inputs]
        self._index = {(value.role, value.name, value.state): i for i, value in enumerate(plan.inputs)}
        self._batch = [i for i, value in enumerate(plan.inputs) if value.role == "batch"]
        self._seeds = [i for i, value in enumerate(plan.inputs) if value.role == "seed"]
        self._seed, self._steps = 0, 0
        self._rates = [i for i, value in enumerate(plan.inputs) if value.role == "learning_rate"]
        updated = {result.updates for result in plan.outputs}
        self._counts = [
            i for i, value in enumerate(plan.inputs) if value.role == "step_count" and i not in updated
        ]

    def _at_first(self, value: Value) -> torch.Tensor | None:
        """What an input holds before the first step, where that takes no model."""
        if value.role == "constant":
            if value.value is None:
                raise PlanError(f"plan {self.plan.name!r}: {value} has no numbers; plan the step again")
            whole = torch.tensor(value.value, dtype=value.torch_dtype).reshape(value.shape)
            return self._local(value, whole)
        if value.role in ("state", "step_count"):
            shape = value.local_shape(self.comm.mesh, self.comm.rank)
            return torch.zeros(shape, dtype=value.torch_dtype, device=self.comm.device)
        return None

    def _local(self, value: Spread, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of a whole tensor, in memory of its own."""
        part = whole[value.slices(self.comm.mesh, self.comm.rank)]
        local = torch.empty(part.shape, dtype=value.torch_dtype, device=self.comm.device)
        return local.copy_(part)

    def initialize(self, model: nn.Module | Callable[[], nn.Module], seed: int | None = 0) -> None:
        """
        Give parameters and buffers their first values: those that `model` has on one device.

        Args:
            model: a function that makes the model, of which no more than this rank's parts are ever kept;
                or the module itself.
            seed: for torch's generator, before the model is made; None leaves it alone. The random numbers of
                steps are drawn from it too, from seed 0 where it is None.

        Raises:
            PlanError: the model lacks a tensor of the plan, or has it in another shape.
        """
        wanted = {value.name: value for value in self.plan.inputs if value.role in ("param", "buffer")}

        def keep(name: str, whole: torch.Tensor) -> torch.Tensor | None:
            value = wanted.get(name)
            if value is None:
                return None
            if tuple(whole.shape) != value.shape:
                raise PlanError(
                    f"plan {self.plan.name!r} has {value}, the model has it in shape {tuple(whole.shape)}: "
                    "plan the step again"
                )
            return self._local(value, whole)

        self._seed, self._steps = seed or 0, 0
        kept = initialize(model, seed, keep)
        for index, value in enumerate(self.plan.inputs):
            if value.role in ("param", "buffer"):
                if value.name not in kept:
                    raise PlanError(
                        f"plan {self.plan.name!r} has {value}, which the model lacks: plan the step again"
                    )
                self._held[index] = kept[value.name]

    def fill(self, make: Callable[[Value, tuple[int, ...]], torch.Tensor]) -> None:
        """
        Give parameters and buffers values that no model has.

        Args:
            make: this rank's part of one, given its local shape; in memory of its own.
        """
        for index, value in enumerate(self.plan.inputs):
            if value.role in ("param", "buffer"):
                shape = value.local_shape(self.comm.mesh, self.comm.rank)
                self._held[index] = make(value, shape).to(self.comm.device)

    def step(self, batch: Batch | LocalRows, lr: float | Sequence[float] | None = None) -> torch.Tensor:
        """
        Run one training step.

        Args:
            batch: the global batch, the same on every rank: a mapping by name or a sequence; or this rank's rows of
                it. What is not a tensor in it was fixed by the plan; floating-point tensors become what the plan has.
            lr: the learning rate of this step, of all groups of parameters or of each; None is the one that the
                optimizer was made with.

        Returns:
            The loss, a tensor of no dims, the same on every rank.

        Raises:
            PlanError: the batch does not fit the plan, or `initialize` was not called.
        """
        arguments = list(self._held)
        for index in self._batch:
            arguments[index] = self._batch_part(self.plan.inputs[index], batch)
        for index in self._rates:
            arguments[index] = self._rate(self.plan.inputs[index], lr)
        for index in self._seeds:
            # Read as a number for every draw: in the memory of the host that waits for nothing.
            arguments[index] = torch.tensor(step_seed(self._seed, self._steps))
        for index in self._counts:
            arguments[index] = self._held[index] = self.local(self.plan.inputs[index]) + 1
        self._require_held(arguments)
        with torch.no_grad():
            outputs = self.step_fn(self.comm, *arguments)
        self.comm.finish_transfers()
        self._steps += 1
        return self._take(outputs)

    @property
    def steps(self) -> int:
        """How many steps were run since `initialize`."""
        return self._steps

    def _take(self, outputs: Any) -> torch.Tensor:
        """Put the program's results where they belong, and return the loss."""
        if isinstance(outputs, torch.Tensor):
            outputs = (outputs,)
        loss: torch.Tensor | None = None
        for result, tensor in zip(self.plan.outputs, outputs, strict=True):
            if result.updates is not None:
                self._held[result.updates] = tensor
            elif result.role == "grad":
                self.results[result.name] = tensor
            elif result.role == "metric":
                self.metrics[result.name] = tensor
            elif result.role == "loss":
                loss = tensor if result.spread.is_replicated else gather(result, tensor, self.comm)
        if loss is None:
            raise PlanError(f"plan {self.plan.name!r} has no output of role 'loss'")
        return loss

    def _batch_part(self, value: Value, batch: Batch | LocalRows) -> torch.Tensor:
        part = part_of_batch(value, batch, self.comm.mesh, self.comm.rank)
        return part.to(self.comm.device, value.torch_dtype).contiguous()

    def _rate(self, value: Value, lr: float | Sequence[float] | None) -> torch.Tensor:
        """The learning rate of a group of parameters, which the name of the input numbers."""
        if lr is None:
            if not self.plan.optimizer:
                raise PlanError(f"plan {self.plan.name!r} names no optimizer: give step() a learning rate")
            lr = [group["lr"] for group in self.plan.parameter_groups]
        group = int(value.name or 0)
        if isinstance(lr, Sequence) and group >= len(lr):
            raise PlanError(f"step() was given {len(lr)} learning rates, and {value} is that of group {group}")
        return torch.tensor(lr[group] if isinstance(lr, Sequence) else lr, dtype=value.torch_dtype)

    def _require_held(self, arguments: Sequence[torch.Tensor | None]) -> None:
        for value, argument in zip(self.plan.inputs, arguments, strict=True):
            if argument is None:
                raise self._missing(value)

    def _missing(self, value: Value) -> PlanError:
        return PlanError(f"{value} has no value yet: call initialize() before the first step")

    def local(self, value: Value) -> torch.Tensor:
        """This rank's part of an input of its stage."""
        held = self._held[self._index[value.role, value.name, value.state]]
        if held is None:
            raise self._missing(value)
        return held

    def gather(self, value: Value | Result) -> torch.Tensor:
        """
        The whole of an input of any stage, or of a gradient of the last step, on every rank; all ranks must call it.

        Raises:
            KeyError: a gradient that the program does not return.
        """
        owner = next(plan for plan in self.plans if any(each is value for each in (*plan.inputs, *plan.outputs)))
        if isinstance(value, Result) and value.updates is not None:
            value = owner.inputs[value.updates]
        if owner is self.plan:
            local = self.local(value) if isinstance(value, Value) else self.results[value.name]
            whole = gather(value, local, self.comm)
        else:
            whole = torch.empty(value.shape, dtype=value.torch_dtype, device=self.comm.device)
        if len(self.plans) > 1:
            dist.broadcast(whole, owner.ranks[0])
        return whole

    def state_dict(self) -> dict[str, torch.Tensor]:
        """
        Parameters and persistent buffers of all stages, whole, by their single-device names; all ranks must call it.
        """
        state: dict[str, torch.Tensor] = {}
        for value in (value for plan in self.plans for value in plan.inputs):
            kept = value.role == "param" or (value.role == "buffer" and value.persistent)
            if kept and value.name not in state:
                whole = self.gather(value)
                state |= dict.fromkeys((value.name, *value.tied), whole)
        return state


def gather(value: Spread, local: torch.Tensor, comm: Communicator) -> torch.Tensor:
    """The whole of a value of which each rank holds its part, in memory of its own on every rank."""
    whole = local.clone(memory_format=torch.contiguous_format)
    for dim, spread in enumerate(value.spread.dims):
        if spread.axes:
            whole = comm.all_gather(whole, dim, spread.axes, part_sizes(value, dim, comm.mesh))
    for reduction, axes in value.partial_axes().items():
        whole = comm.all_reduce(whole, axes, reduction)
    return whole
