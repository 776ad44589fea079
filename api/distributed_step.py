"""`DistributedStep`: a planned training step on one rank of a job, as the user's loop sees it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Literal, NoReturn, SupportsIndex, overload

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import DataLoader, Dataset, default_collate

from ..ir.not_supported import AUTOCAST, COPIED_STEP, MODE, NO_GRAD, WRITTEN
from ..lowering.capture.calling import Batch, batch_items
from ..runtime.agreement import GivenAlike, verify_alike
from ..runtime.batches import LocalRows, batch_rows, no_rows
from ..runtime.executor import Executor, GivenRate, rates_of
from ..runtime.faults import ACTIVITY
from ..runtime.non_finite import FiniteLosses, OnNan
from ..runtime.plan import PlanError
from ..runtime.profiled_layers import ProfiledLayers
from ..runtime.recording import named_tensors
from ..runtime.replicas import REPLICAS
from ..runtime.sampler import ShareSampler
from .batch_values import BatchValues
from .evaluation import Evaluation, RowsOfOutput, evaluate, predict
from .loading import share_loader
from .module_guard import Guard, StaleModuleError, guard
from .plan_record import PlanRecord
from .plan_report import PlanReport
from .step_profile import StepProfile, profiled
from .step_state import StepState
from .trained_loss import trained_loss, warn_on_one_rank
from .variants import Variants


class DistributedStep(StepState):
    """
    A planned training step, on one rank of a job: call it with the global batch to train one step.

    Every method has to be called on all ranks.

    Args:
        executor: holds this rank's part of everything.
        plan: the report of the plan: what `plan.json` holds.
        program: the text that this rank runs.
        variants: the programs beside it, for evaluation and for batches of other shapes.
        model: what was planned; a module is guarded from now on (`module_guard`).
        compared: in how many steps, and how many evaluations, the inputs of the ranks are compared.
        values: the plain values of the planned batch, which are part of the step.
        device_mesh: the one that was planned for, if one was given.
        on_nan: what to do about a loss that is nan or infinite.
        record: of the plan, on rank 0.

    The methods of `StepState` read, replace, save and load its weights and states.
    """

    def __init__(
        self,
        executor: Executor,
        plan: PlanReport,
        program: str,
        variants: Variants,
        model: nn.Module | Callable[[], nn.Module],
        compared: int,
        values: BatchValues,
        device_mesh: DeviceMesh | None = None,
        on_nan: OnNan = "raise",
        record: PlanRecord | None = None,
    ) -> None:
        super().__init__(executor, device_mesh, record)
        self.plan = plan
        self.program = program
        self._model = model if isinstance(model, nn.Module) else None
        layers = self._model.named_modules() if self._model is not None else ()
        self._modes = [(name, layer, layer.training) for name, layer in layers]
        self._values = values
        self._guard: Guard | None = guard(self._model) if self._model is not None else None
        self._variants = variants
        if self._guard is not None:
            variants.opened = self._guard.open
        warn_on_one_rank(executor.comm.rank)
        self._ranges = ProfiledLayers(executor, program)
        self._given = GivenAlike(executor.plan, executor.comm.rank, executor.plans, compared)
        self._replicas = REPLICAS.add(executor)
        self._finite = FiniteLosses(executor, on_nan)
        self._evaluated = replace(self._given, what="evaluation")

    def __call__(self, batch: Batch | LocalRows, lr: GivenRate = None) -> torch.Tensor:
        """
        Train one step.

        Args:
            batch: the global batch, shaped as the example or as one of the other `shapes` that were declared, the same
                on every rank; or a rank's own rows of it, marked by `local`.
            lr: the learning rate of this step, or one for each group of parameters, numbers or tensors without dims;
                with None the step takes the rates in `optimizer`, which a scheduler or the loop may set.

        Returns:
            The loss, the same on every rank.

        Raises:
            PlanError: the batch is not like the example, or of a shape that was not declared; in the first steps, the
                ranks were given different ones; or the step is called under autocast or `no_grad`, or with layers in
                other modes.
            NonFiniteError: the loss is nan or infinite, unless another ``on_nan`` was given; on CUDA, that of the step
                before. Parameters and states have been updated by then.
        """
        self._verify_modes()
        self._values.verify(batch)
        given = batch if isinstance(batch, LocalRows) else batch_items(batch)
        given_rate = lr if lr is not None or self.optimizer is None else self.optimizer.rates
        rates = rates_of(self._executor.plan, given_rate)
        with ACTIVITY.stepping():
            # First, so that a batch which one rank alone cannot take is an error on all.
            self._given.verify(given, rates)
            self._replicas.look(given, rates)
            if not self._variants.connections.compiles:
                self._ranges.follow_profiler()
            loss = self._executor.step(given, rates, self._variants.training(batch))
            self._finite.see(self._executor.steps, loss, given)
        if loss.device.type == "cuda":
            ACTIVITY.on_device = torch.cuda.current_stream(loss.device).record_event()
        self._replicas.took(loss)
        if self.optimizer is not None:
            self.optimizer.stepped()
        return trained_loss(loss)

    def profile(self) -> AbstractContextManager[StepProfile]:
        """
        Measure how much of the communication of steps is beside computation.

        ::

            with step.profile() as profile:
                for batch in batches:
                    step(batch)
            print(profile)                      # seconds by phase and axis; the same on every rank
            profile.save("measured.json")       # for shardwright simulate PLAN --measured measured.json

        Outside nothing is measured, at no cost. The first step inside takes longer: let one go before.
        """
        return profiled(self._executor, compiled=self._variants.connections.compiles)

    def declare(self, batch: Batch) -> None:
        """
        Plan the step for batches of another shape, too, as `shapes` of `parallelize` does.

        Raises:
            PlanError: the batch is not like the example, or there is no plan for it.
        """
        self._variants.declare(batch)

    def evaluate(self, batch: Batch | LocalRows) -> Evaluation:
        """
        Loss and metrics of a batch in eval mode, whatever mode the module is in.

        Parameters and buffers stay where and as training has them, and training continues as if nothing had been
        evaluated: no random number, metric or buffer changes.

        Args:
            batch: the global batch, the same on every rank: of the example's items, and of any number of rows and any
                lengths. For each new shape rank 0 plans a program, once. Or this rank's rows of a batch of the
                example's shape, as `loader` gives them.

        Returns:
            The loss and the metrics of this batch, the same on every rank; those of several batches are the loop's to
            add up, as on one device.

        Raises:
            PlanError: the batch is not like the example, or one shape too many (`most_programs`); or, in the first
                evaluations, the ranks were given different batches.
        """
        self._verify_given(batch, "evaluate()")
        return evaluate(self._variants, batch)

    @overload
    def predict(self, batch: Batch | LocalRows, part: Literal["whole"] = "whole") -> Any: ...

    @overload
    def predict(self, batch: Batch | LocalRows, part: Literal["rows"]) -> RowsOfOutput: ...

    def predict(self, batch: Batch | LocalRows, part: Literal["whole", "rows"] = "whole") -> Any:
        """
        The model's output for a batch in eval mode: tensors, in the model's tuples, lists, dicts and data classes.

        Args:
            batch: as in `evaluate`; labels and optional arguments of the model may be missing.
            part: ``whole``, the same on every rank; or ``rows``, those rows that this rank computed.

        Raises:
            PlanError: as in `evaluate`; or tensors of the output have different rows on this rank.
        """
        if part not in ("whole", "rows"):
            raise PlanError(f"predict() was given part={part!r}, expected 'whole' or 'rows'")
        self._verify_given(batch, "predict()")
        return predict(self._variants, batch, part)

    def _verify_given(self, batch: Batch | LocalRows, call: str) -> None:
        """Refuse a batch that other ranks do not have, in the first evaluations."""
        self._verify_autocast(call)
        self._evaluated.verify(batch if isinstance(batch, LocalRows) else batch_items(batch))

    @property
    def most_programs(self) -> int:
        """The most shapes of batches that `evaluate` and `predict` take, each of which needs a program."""
        return self._variants.most

    @most_programs.setter
    def most_programs(self, most: int) -> None:
        self._variants.most = most

    def _verify_autocast(self, call: str) -> None:
        """Refuse autocast around a call, which cannot change what was planned."""
        if torch.is_autocast_enabled(self._executor.comm.device.type):
            raise PlanError(f"{call} was called under torch.autocast, which has no effect on it: {AUTOCAST.instead}")

    def _verify_modes(self) -> None:
        """Refuse what would change a step of one device, and cannot change this one."""
        self._verify_autocast("step()")
        if not torch.is_grad_enabled():
            raise PlanError(
                f"step() was called under torch.no_grad() or inference_mode(), but it trains; {NO_GRAD.instead}"
            )
        for name, layer, was_training in self._modes:
            if layer.training != was_training:
                was, now = ("train", "eval") if was_training else ("eval", "train")
                path = f".{name}" if name else ""
                raise PlanError(
                    f"the model{path} is in {now} mode, but its step was planned in {was} mode: "
                    f"call model{path}.{was}(); {MODE.instead}"
                )

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise PlanError(
            f"a step cannot be copied or pickled, because it is part of a running job; {COPIED_STEP.instead}"
        )

    @property
    def metrics(self) -> dict[str, torch.Tensor]:
        """
        What the last step returned beside the loss, the same full tensors on every rank: the metrics that were asked
        for, and ``grad_norm``, where gradients are clipped by it.
        """
        return dict(self._executor.metrics)

    @property
    def loss_scale(self) -> float | None:
        """What the loss of the next step will be scaled by; None where it is not scaled."""
        return self._executor.loss_scale

    @property
    def skipped_steps(self) -> int:
        """How many steps were skipped, with ``on_nan="skip"``: their loss or gradients were not finite."""
        return self._finite.skipped

    @property
    def rows(self) -> range:
        """
        The rows of every global batch, shaped as the example, that this rank computes on: all of them where the batch
        is not split.

        Raises:
            PlanError: the items of the batch are split differently.
        """
        return batch_rows(self._executor.plan, self._executor.comm.rank, self._executor.plans)[1]

    def sampler(self, length: int, seed: int | None = 0) -> ShareSampler:
        """The sampler of this rank's rows of every batch, for a data set of `length` samples; see `ShareSampler`."""
        verify_alike("lengths or seeds of step.sampler()", (length, seed))
        count, rows = batch_rows(self._executor.plan, self._executor.comm.rank, self._executor.plans)
        return ShareSampler(length, count, rows, seed)

    def loader(
        self, dataset: Dataset[Any], seed: int | None = 0, *, drop_last: bool = True, **options: Any
    ) -> DataLoader[Any]:
        """
        A DataLoader that loads this rank's rows of every batch, marked for the step; the global batch where the items
        of a batch are split differently. Its `batch_sampler` has `set_epoch`.

        Args:
            dataset: with a length.
            seed: as in `sampler`, the same on every rank.
            drop_last: whether what is left over after the last full batch of an epoch is not used; if it is, its shape
                must be one of those that were declared, as `parallelize(..., shapes=[batch])`.
            options: of `DataLoader`, as ``num_workers``; ``collate_fn`` is of samples, as ever, ``shuffle=False`` is
                ``seed=None``, and a ``batch_size`` is that of the planned batch.

        Raises:
            PlanError: the last batch is to be used, and has a number of rows that was not declared; an option would
                choose other rows; or, on every rank, the ranks were given different orders.
        """
        made = share_loader(self._executor, self._variants, dataset, seed, drop_last=drop_last, options=options)
        self._add_loader(made)
        return made

    def local(self, batch: Batch, rows: int | None = None) -> LocalRows:
        """
        Mark a batch as this rank's own rows of the global one.

        Args:
            rows: how many the global one has; None for as many as the example.
        """
        return LocalRows(batch_items(batch), rows)

    def collate(self, samples: list[Any]) -> Any:
        """torch's `default_collate`, and empty tensors for a rank that has no rows: the `collate_fn` of a loader."""
        return default_collate(samples) if samples else no_rows(self._executor.plan)

    @contextmanager
    def module(self) -> Generator[nn.Module, None, None]:
        """
        The module that was planned, with the trained weights, to be used inside: evaluated, saved or averaged.

        It holds full tensors, on every rank. What is done to its weights inside changes no training.

        Raises:
            PlanError: there is none: a function that makes the model was planned.
            StaleModuleError: its parameters were changed inside.
        """
        if self._model is None or self._guard is None:
            raise PlanError(
                "step.module() needs the module, but parallelize was given a function that builds it; load "
                "step.state_dict() into one that you build"
            )
        with self._guard.open():
            self._fill(named_tensors(self._model))
            before = dict(self._model.named_parameters())
            versions = {name: value._version for name, value in before.items()}
            yield self._model
            after = dict(self._model.named_parameters())
            changed = [name for name, value in before.items() if after.get(name) is not value] or [
                name for name, value in after.items() if versions.get(name) != value._version
            ]
        if changed:
            raise StaleModuleError(
                f"inside `with step.module():` the parameter {changed[0]!r} was changed, which has no effect on "
                f"training; {WRITTEN.instead}"
            )

    def _fill(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Give a module's tensors what this step has trained."""
        values = (value for plan in self._executor.plans for value in plan.inputs if value.role in ("param", "buffer"))
        with torch.no_grad():
            for name, value in {value.name: value for value in values}.items():
                tensors[name].copy_(self._executor.gather(value))
