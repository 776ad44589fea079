"""`Executor`: holds this rank's part of everything a program needs, and runs its steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, SupportsFloat, TypeAlias

import torch
import torch.distributed as dist
from torch import nn

from ..ir.counter import step_seed
from .batches import Batch, LocalRows, part_of_batch
from .communicator import Communicator
from .counter_random import SeedTable
from .faults import ACTIVITY
from .host_memory import keep_freed_memory
from .plan import Plan, PlanError, Result, SpreadTensor, Value, part_sizes
from .recording import initialize
from .stages import Stage, StepFunction, my_stage
from .step_recorder import RECORDING

LOSS_SCALE = "loss_scale"
"""The name of the loss scale, both as a state of a step and as a metric."""

_LASTING = ("param", "state", "buffer", "step_count")
"""The roles of values that persist from step to step."""


@dataclass(frozen=True)
class RankProgram:
    """
    A program with the stage that this rank runs, and the storage of its inputs.

    Args:
        places: index of each input in the executor's list of tensors.
    """

    plans: tuple[Plan, ...]
    plan: Plan
    function: StepFunction
    comm: Communicator
    places: tuple[int, ...]

    @staticmethod
    def of(stages: Sequence[Stage], comm: Communicator, first: int = 0) -> RankProgram:
        """Return a program whose inputs have consecutive places, starting at `first`."""
        plan, function = my_stage(stages)
        places = tuple(range(first, first + len(plan.inputs)))
        return RankProgram(tuple(stage.plan for stage in stages), plan, function, comm, places)

    @cached_property
    def counted(self) -> frozenset[int]:
        """The indices of the inputs whose next value is an output of the program."""
        return frozenset(result.updates for result in self.plan.outputs if result.updates is not None)


class Executor:
    """
    Runs a program on one rank, and other programs of the same model that share its persistent values.

    Args:
        stages: one or more stages of the program; this rank runs the stage of its mesh.

    Between steps `results` holds the local gradients that this rank's stage returns, by parameter name, and `metrics`
    the other outputs of the last step, by name, as full tensors on every rank. `main` is the program that `step` runs
    by default, `steps` the number of steps since `initialize`, and `seed` the seed of the random numbers of all steps.
    """

    def __init__(self, stages: Sequence[Stage], comm: Communicator) -> None:
        if comm.device.type == "cpu":
            keep_freed_memory()
        self.main = RankProgram.of(stages, comm)
        self.plans, self.plan, self.comm = self.main.plans, self.main.plan, comm
        self.results: dict[str, torch.Tensor] = {}
        self.metrics: dict[str, torch.Tensor] = {}
        self._held: list[torch.Tensor | None] = [self._at_first(value) for value in self.plan.inputs]
        self._index = {(value.role, value.name, value.state): i for i, value in enumerate(self.plan.inputs)}
        self.seed, self.steps = 0, 0
        # A GPU keeps varying inputs (seed, learning rate) at fixed addresses, so that kernel launches never change.
        self._streams = SeedTable(comm.device) if comm.device.type == "cuda" else None
        self._rates: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def _at_first(self, value: Value) -> torch.Tensor | None:
        """Return the initial value of an input that does not come from the model, otherwise None."""
        if value.role == "constant":
            if value.value is None:
                raise PlanError(
                    f"plan {self.plan.name!r}: the values of {value} are missing from the plan; plan the step again"
                )
            return self._local(value, torch.tensor(value.value, dtype=value.torch_dtype).reshape(value.shape))
        if value.role in ("state", "step_count"):
            shape = value.local_shape(self.comm.mesh, self.comm.rank)
            return torch.full(shape, value.value or 0, dtype=value.torch_dtype, device=self.comm.device)
        return None

    def _local(self, value: SpreadTensor, whole: torch.Tensor) -> torch.Tensor:
        """Copy this rank's part of a full tensor to new memory."""
        part = whole[value.slices(self.comm.mesh, self.comm.rank)]
        local = torch.empty(part.shape, dtype=value.torch_dtype, device=self.comm.device)
        return local.copy_(part)

    def initialize(self, model: nn.Module | Callable[[], nn.Module], seed: int | None = 0) -> None:
        """
        Initialize parameters and buffers with the values that `model` has on one device.

        Args:
            model: the module, or a function that builds it; in that case never more than this rank's parts are
                kept in memory.
            seed: seed of torch's generator before the model is built, and of the random numbers of steps. With None
                torch's generator keeps its state, and the steps use seed 0.

        Raises:
            PlanError: the model lacks a tensor of the plan, or the tensor has another shape.
        """
        wanted = {value.name: value for value in self.plan.inputs if value.role in ("param", "buffer")}

        def keep(name: str, whole: torch.Tensor) -> torch.Tensor | None:
            value = wanted.get(name)
            if value is None:
                return None
            if tuple(whole.shape) != value.shape:
                raise PlanError(
                    f"plan {self.plan.name!r} has {value}, but the model's has shape {tuple(whole.shape)}: "
                    "plan the step again"
                )
            return self._local(value, whole)

        self.seed, self.steps = seed or 0, 0
        tensors = initialize(model, seed, keep)
        for index, value in enumerate(self.plan.inputs):
            if value.role in ("param", "buffer"):
                if value.name not in tensors:
                    raise PlanError(f"plan {self.plan.name!r} has {value}, which the model lacks: plan the step again")
                self._held[index] = tensors[value.name]

    def fill(self, make: Callable[[Value, tuple[int, ...]], torch.Tensor]) -> None:
        """
        Initialize parameters and buffers without a model.

        Args:
            make: function of a value and its local shape that returns this rank's part, in new memory.
        """
        for index, value in enumerate(self.plan.inputs):
            if value.role in ("param", "buffer"):
                shape = value.local_shape(self.comm.mesh, self.comm.rank)
                self._held[index] = make(value, shape).to(self.comm.device)

    def adopt(self, stages: Sequence[Stage], comm: Communicator) -> RankProgram:
        """
        Add another program of the same model, which shares its persistent values with the first.

        Raises:
            PlanError: a persistent value of the program is missing in the first program, or is split differently.
        """
        program = RankProgram.of(stages, comm, len(self._held))
        places = list(program.places)
        for number, value in enumerate(program.plan.inputs):
            if value.role not in _LASTING:
                self._held.append(self._at_first(value))
                places[number] = len(self._held) - 1
                continue
            place = self._index.get((value.role, value.name, value.state))
            trained = self.plan.inputs[place] if place is not None else None
            if place is None or trained is None or _part(trained, self.main) != _part(value, program):
                raise PlanError(f"plan {program.plan.name!r} has {value}, but the plan that is trained has {trained}")
            places[number] = place
        return replace(program, places=tuple(places))

    def step(self, batch: Batch | LocalRows, lr: GivenRate = None, program: RankProgram | None = None) -> torch.Tensor:
        """
        Run one training step.

        Args:
            batch: the global batch, the same on every rank: a mapping by name or a sequence; or this rank's rows of
                it. Items other than tensors are ignored: the plan fixed them. Floating-point tensors are converted to
                the plan's dtype.
            lr: the learning rate of this step, for all groups of parameters or for each; the optimizer's own rates if
                None.
            program: an adopted program; the first program if None.

        Returns:
            The loss, a tensor of no dims, the same on every rank.

        Raises:
            PlanError: the batch does not fit the plan, or `initialize` has yet to be called.
        """
        program = program or self.main
        with nullcontext() if RECORDING.recorder is None else RECORDING.recorder.step():
            outputs = self._run(program, batch, rates_of(self.plan, lr))
        self.steps += 1
        loss: torch.Tensor | None = None
        for result, tensor in zip(program.plan.outputs, outputs, strict=True):
            if result.updates is not None:
                self._held[program.places[result.updates]] = tensor
            elif result.role == "grad":
                self.results[result.name] = tensor
            elif result.role == "metric":
                self.metrics[result.name] = tensor
            elif result.role == "loss":
                loss = tensor if result.spread.is_replicated else gather(result, tensor, program.comm)
        if loss is None:
            raise PlanError(f"plan {program.plan.name!r} has no output of role 'loss'")
        return loss

    def forward(self, batch: Batch | LocalRows, program: RankProgram) -> list[torch.Tensor]:
        """
        Run an adopted program that changes no state; return this rank's parts of its stage's outputs, in order.

        Raises:
            PlanError: as in `step`.
        """
        return self._run(program, batch, ())

    def _run(self, program: RankProgram, batch: Batch | LocalRows, rates: Sequence[float]) -> list[torch.Tensor]:
        arguments: list[torch.Tensor | SeedTable | None] = [self._held[place] for place in program.places]
        for index, value in enumerate(program.plan.inputs):
            match value.role:
                case "batch":
                    arguments[index] = self._batch_part(value, batch)
                case "learning_rate":
                    arguments[index] = self._rate(value, rates)
                case "seed":
                    arguments[index] = self._seed_of_step()
                case "step_count" if index not in program.counted:
                    arguments[index] = self._held[program.places[index]] = self.local(value) + 1
                case _ if arguments[index] is None:
                    raise self._missing(value)
                case _:
                    pass
        with torch.no_grad():
            outputs = program.function(program.comm, *arguments)
        program.comm.finish_transfers()
        if outputs is None:
            return []
        return [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)

    @property
    def loss_scale(self) -> float | None:
        """The scale of the next step's loss, the same on every rank, or None for an unscaled loss."""
        if LOSS_SCALE in self.metrics:
            return self.metrics[LOSS_SCALE].item()
        return next((float(value.value) for value in self._loss_scales()), None)

    def _loss_scales(self) -> Iterator[Value]:
        """Yield the loss scale's state, if the plan of any stage has it."""
        for value in (value for plan in self.plans for value in plan.inputs):
            if (value.role, value.name, value.state) == ("state", "", LOSS_SCALE):
                yield value

    def resume(self, steps: int, seed: int) -> None:
        """Continue after `steps` steps, with the random numbers of `seed` and the present states."""
        self.steps, self.seed = steps, seed
        self.metrics = {LOSS_SCALE: self.gather(value) for value in self._loss_scales()}
        ACTIVITY.before = steps - ACTIVITY.step

    def _batch_part(self, value: Value, batch: Batch | LocalRows) -> torch.Tensor:
        part = part_of_batch(value, batch, self.comm.mesh, self.comm.rank)
        if self.comm.device.type == "cuda" and part.device.type == "cpu":
            # A copy from pageable memory would block until the GPU reaches it.
            part = (part if part.is_pinned() else part.pin_memory()).to(self.comm.device, non_blocking=True)
        return part.to(self.comm.device, value.torch_dtype).contiguous()

    def _rate(self, value: Value, rates: Sequence[float]) -> torch.Tensor:
        """Return the learning rate of a group of parameters; the name of the input is the group's number."""
        if not rates:
            raise PlanError(f"plan {self.plan.name!r} names no optimizer: give step() a learning rate")
        group = int(value.name or 0)
        rate = rates[group]
        if self.comm.device.type != "cuda":
            return torch.tensor(rate, dtype=value.torch_dtype)
        key = (group, value.torch_dtype)
        if key not in self._rates:
            self._rates[key] = torch.empty((), dtype=value.torch_dtype, device=self.comm.device)
        return self._rates[key].fill_(rate)

    def _seed_of_step(self) -> torch.Tensor | SeedTable:
        seed = step_seed(self.seed, self.steps)
        if self._streams is None:
            return torch.tensor(seed)
        self._streams.begin(seed)
        return self._streams

    def _missing(self, value: Value) -> PlanError:
        return PlanError(f"{value} has no value yet: call initialize() before the first step")

    def local(self, value: Value) -> torch.Tensor:
        """Return this rank's part of an input of its stage."""
        held = self._held[self._index[value.role, value.name, value.state]]
        if held is None:
            raise self._missing(value)
        return held

    def gather(self, value: Value | Result) -> torch.Tensor:
        """
        Gather an input of any stage, or a gradient of the last step, to every rank as a full tensor; all ranks must
        call it.

        Raises:
            KeyError: the program does not return the gradient.
        """
        owner = next(plan for plan in self.plans if any(other is value for other in (*plan.inputs, *plan.outputs)))
        if isinstance(value, Result) and value.updates is not None:
            value = owner.inputs[value.updates]
        if owner is self.plan:
            local = self.local(value) if isinstance(value, Value) else self.results[value.name]
            whole = gather(value, local, self.comm)
        else:
            whole = torch.empty(value.shape, dtype=value.torch_dtype, device=self.comm.device)
        if len(self.plans) > 1:
            ACTIVITY.wait(f"{value.role} {value.name!r}", lambda: dist.broadcast(whole, owner.ranks[0]))
        return whole

    def state_dict(self) -> dict[str, torch.Tensor]:
        """
        Return parameters and persistent buffers of all stages, as full tensors in host memory, by single-device name;
        all ranks must call it. A GPU holds at most one full tensor at a time.
        """
        state: dict[str, torch.Tensor] = {}
        for value in (value for plan in self.plans for value in plan.inputs):
            if value.keys and value.keys[0] not in state:
                state |= dict.fromkeys(value.keys, self.gather(value).cpu())
        return state


GivenRate: TypeAlias = "float | torch.Tensor | Sequence[float | torch.Tensor] | None"
"""A learning rate for all groups of parameters, or one rate per group; the optimizer's own rates if None."""


def rates_of(plan: Plan, lr: GivenRate) -> list[float]:
    """
    Return the learning rates of a step by group of parameters; without an optimizer and `lr` the list is empty.

    Raises:
        PlanError: a rate is not a finite number from 0, or the numbers of rates and groups differ.
    """
    groups = plan.parameter_groups
    requested: Any = [group["lr"] for group in groups] if lr is None else lr
    requested = requested if isinstance(requested, Sequence) else [requested] * (len(groups) or 1)
    rates = [float(r) if isinstance(r, SupportsFloat) and not getattr(r, "ndim", 0) else -1 for r in requested]
    if (groups and len(rates) != len(groups)) or not all(0 <= rate < math.inf for rate in rates):
        expected = (
            f"a finite number from 0, or a tensor without dims, or one for each of {len(groups)} groups of parameters"
        )
        raise PlanError(f"the learning rate is {requested!r:.80}, expected {expected}")
    return rates


def _part(value: Value, program: RankProgram) -> tuple[object, ...]:
    """Return shape, dtype and slices of this rank's part of a value, for comparison between programs."""
    return value.shape, value.dtype, value.slices(program.plan.mesh, program.comm.rank)


def gather(value: SpreadTensor, local: torch.Tensor, comm: Communicator, *, rows: bool = False) -> torch.Tensor:
    """
    Gather a value from the parts on all ranks: return the full tensor on every rank, in new memory.

    Args:
        rows: whether the first dim stays split.
    """
    whole = local.clone(memory_format=torch.contiguous_format)
    for dim, spread in enumerate(value.spread.dims):
        if spread.axes and not (rows and dim == 0):
            whole = comm.all_gather(whole, dim, spread.axes, part_sizes(value, dim, comm.mesh))
    for reduction, axes in value.partial_axes().items():
        whole = comm.all_reduce(whole, axes, reduction)
    return whole
