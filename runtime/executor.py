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
from .faults import ACTIVITY
from .host_memory import keep_freed_memory
from .initialize import initialize
from .plan import Plan, PlanError, Result, SpreadTensor, Value, part_sizes
from .seed_table import SeedTable
from .stages import Stage, StepFunction, my_stage
from .step_recorder import RECORDING

LOSS_SCALE = "loss_scale"
"""The name of the state of a step, and of the metric, that its loss is scaled by."""

_LASTING = ("param", "state", "buffer", "step_count")
"""The roles of what lasts from step to step."""


@dataclass(frozen=True)
class RankProgram:
    """
    A program of which one rank runs its stage, and where it finds what it works on.

    Args:
        plans: of all stages.
        plan, function: of this rank's.
        comm: connects this rank.
        places: by input, its place among what the executor holds.
    """

    plans: tuple[Plan, ...]
    plan: Plan
    function: StepFunction
    comm: Communicator
    places: tuple[int, ...]

    @staticmethod
    def of(stages: Sequence[Stage], comm: Communicator, first: int = 0) -> RankProgram:
        """A program whose inputs have places of their own, from `first` on."""
        plan, function = my_stage(stages)
        places = tuple(range(first, first + len(plan.inputs)))
        return RankProgram(tuple(stage.plan for stage in stages), plan, function, comm, places)

    @cached_property
    def counted(self) -> frozenset[int]:
        """The inputs whose next value the program gives."""
        return frozenset(result.updates for result in self.plan.outputs if result.updates is not None)


class Executor:
    """
    One rank's run of a program, and of others of the same model that work on what it holds.

    Args:
        stages: of the program, one or more; this rank runs the one that it is a rank of.
        comm: connects this rank (`stages.connect`).

    Between steps `results` holds the local gradients that this rank's stage returns, by parameter name, and `metrics`
    what else the last step returned, by name, on every rank the full tensor. `main` is the program that `step` runs by
    default.
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
        self._seed, self._steps = 0, 0
        # On a GPU, what changes from step to step is where kernels read it, so that their launches do not.
        self._streams = SeedTable(comm.device) if comm.device.type == "cuda" else None
        self._rates: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def _at_first(self, value: Value) -> torch.Tensor | None:
        """What an input holds before the first step, where that takes no model."""
        if value.role == "constant":
            if value.value is None:
                raise PlanError(
                    f"plan {self.plan.name!r}: the values of {value} are missing from the plan; plan the step again"
                )
            whole = torch.tensor(value.value, dtype=value.torch_dtype).reshape(value.shape)
            return self._local(value, whole)
        if value.role in ("state", "step_count"):
            shape = value.local_shape(self.comm.mesh, self.comm.rank)
            return torch.full(shape, value.value or 0, dtype=value.torch_dtype, device=self.comm.device)
        return None

    def _local(self, value: SpreadTensor, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of a full tensor, in its own memory."""
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
                    f"plan {self.plan.name!r} has {value}, but the model's has shape {tuple(whole.shape)}: "
                    "plan the step again"
                )
            return self._local(value, whole)

        self._seed, self._steps = seed or 0, 0
        kept = initialize(model, seed, keep)
        for index, value in enumerate(self.plan.inputs):
            if value.role in ("param", "buffer"):
                if value.name not in kept:
                    raise PlanError(f"plan {self.plan.name!r} has {value}, which the model lacks: plan the step again")
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

    def adopt(self, stages: Sequence[Stage], comm: Communicator) -> RankProgram:
        """
        Another program of the same model: what lasts from step to step it shares with the first.

        Raises:
            PlanError: it keeps something in another place, or something else.
        """
        program = RankProgram.of(stages, comm, len(self._held))
        places = list(program.places)
        for number, value in enumerate(program.plan.inputs):
            if value.role not in _LASTING:
                self._held.append(self._at_first(value))
                places[number] = len(self._held) - 1
                continue
            place = self._index.get((value.role, value.name, value.state))
            kept = self.plan.inputs[place] if place is not None else None
            if place is None or kept is None or _part(kept, self.main) != _part(value, program):
                raise PlanError(f"plan {program.plan.name!r} has {value}, the plan that is trained {kept}")
            places[number] = place
        return replace(program, places=tuple(places))

    def step(self, batch: Batch | LocalRows, lr: GivenRate = None, program: RankProgram | None = None) -> torch.Tensor:
        """
        Run one training step.

        Args:
            batch: the global batch, the same on every rank: a mapping by name or a sequence; or this rank's rows of
                it. What is not a tensor in it was fixed by the plan; floating-point tensors become what the plan has.
            lr: the learning rate of this step, of all groups of parameters or of each; None is the one that the
                optimizer was made with.
            program: one that was adopted; None is the first.

        Returns:
            The loss, a tensor of no dims, the same on every rank.

        Raises:
            PlanError: the batch does not fit the plan, or `initialize` was not called.
        """
        program = program or self.main
        with nullcontext() if RECORDING.recorder is None else RECORDING.recorder.step():
            outputs = self._run(program, batch, rates_of(self.plan, lr))
        self._steps += 1
        return self._take(program, outputs)

    def forward(self, batch: Batch | LocalRows, program: RankProgram) -> list[torch.Tensor]:
        """
        Run an adopted program that changes nothing: this rank's parts of what its stage gives, in the order of its
        outputs.

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
                    counted = self.local(value) + 1
                    arguments[index] = self._held[program.places[index]] = counted
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
        """What the loss of the next step will be scaled by, where it is, the same on every rank."""
        if LOSS_SCALE in self.metrics:
            return self.metrics[LOSS_SCALE].item()
        return next((float(value.value) for value in self._loss_scales()), None)

    def _loss_scales(self) -> Iterator[Value]:
        """The state that it is, where a plan has it, of whichever stage."""
        for value in (value for plan in self.plans for value in plan.inputs):
            if (value.role, value.name, value.state) == ("state", "", LOSS_SCALE):
                yield value

    @property
    def seed(self) -> int:
        """From which the random numbers of steps are drawn."""
        return self._seed

    def resume(self, steps: int, seed: int) -> None:
        """Continue as after `steps` steps, with the random numbers of `seed` and the present states."""
        self._steps, self._seed = steps, seed
        self.metrics = {LOSS_SCALE: self.gather(value) for value in self._loss_scales()}
        ACTIVITY.before = steps - ACTIVITY.step

    @property
    def steps(self) -> int:
        """How many steps were run since `initialize`."""
        return self._steps

    def _take(self, program: RankProgram, outputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Put the program's results where they belong, and return the loss."""
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

    def _batch_part(self, value: Value, batch: Batch | LocalRows) -> torch.Tensor:
        part = part_of_batch(value, batch, self.comm.mesh, self.comm.rank)
        if self.comm.device.type == "cuda" and part.device.type == "cpu":
            # From pageable memory the copy would block until the GPU has come to it.
            part = (part if part.is_pinned() else part.pin_memory()).to(self.comm.device, non_blocking=True)
        return part.to(self.comm.device, value.torch_dtype).contiguous()

    def _rate(self, value: Value, rates: Sequence[float]) -> torch.Tensor:
        """The learning rate of a group of parameters, which the name of the input numbers."""
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
        """What the random numbers of this step are drawn from."""
        seed = step_seed(self._seed, self._steps)
        if self._streams is None:
            return torch.tensor(seed)
        self._streams.begin(seed)
        return self._streams

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
        The full tensor of an input of any stage, or of a gradient of the last step, on every rank; all ranks must call
        it.

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
            ACTIVITY.wait(f"{value.role} {value.name!r}", lambda: dist.broadcast(whole, owner.ranks[0]))
        return whole

    def state_dict(self) -> dict[str, torch.Tensor]:
        """
        Parameters and persistent buffers of all stages, as full tensors in the host's memory, by their single-device
        names; all ranks must call it. A GPU holds at most one full tensor at a time.
        """
        state: dict[str, torch.Tensor] = {}
        for value in (value for plan in self.plans for value in plan.inputs):
            if value.keys and value.keys[0] not in state:
                state |= dict.fromkeys(value.keys, self.gather(value).cpu())
        return state


GivenRate: TypeAlias = "float | torch.Tensor | Sequence[float | torch.Tensor] | None"
"""A learning rate for all groups of parameters, or one for each; with None the optimizer has its own."""


def rates_of(plan: Plan, lr: GivenRate) -> list[float]:
    """
    Return the learning rates of a step by group of parameters; without an optimizer and `lr` the list is empty.

    Raises:
        PlanError: one is not a finite number from 0, or there are more or fewer than groups.
    """
    groups = plan.parameter_groups
    given: Any = [group["lr"] for group in groups] if lr is None else lr
    given = given if isinstance(given, Sequence) else [given] * (len(groups) or 1)
    rates = [float(each) if isinstance(each, SupportsFloat) and not getattr(each, "ndim", 0) else -1 for each in given]
    if (groups and len(rates) != len(groups)) or not all(0 <= rate < math.inf for rate in rates):
        what = (
            f"a finite number from 0, or a tensor without dims, or one for each of {len(groups)} groups of parameters"
        )
        raise PlanError(f"the learning rate is {given!r:.80}, expected {what}")
    return rates


def _part(value: Value, program: RankProgram) -> tuple[object, ...]:
    """What this rank holds of a value, and as what."""
    return value.shape, value.dtype, value.slices(program.plan.mesh, program.comm.rank)


def gather(value: SpreadTensor, local: torch.Tensor, comm: Communicator, *, rows: bool = False) -> torch.Tensor:
    """
    The full tensor of a value of which each rank holds a part, in memory of its own on every rank.

    Args:
        rows: whether the first dim stays as it is split.
    """
    whole = local.clone(memory_format=torch.contiguous_format)
    for dim, spread in enumerate(value.spread.dims):
        if spread.axes and not (rows and dim == 0):
            whole = comm.all_gather(whole, dim, spread.axes, part_sizes(value, dim, comm.mesh))
    for reduction, axes in value.partial_axes().items():
        whole = comm.all_reduce(whole, axes, reduction)
    return whole
