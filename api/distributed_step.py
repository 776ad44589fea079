"""`DistributedStep`: a planned training step on one rank of a job, for use in the user's training loop."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NoReturn, SupportsIndex, overload

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import DataLoader, Dataset, default_collate
from xdsl.dialects.builtin import ModuleOp

from ..ir.not_supported import AUTOCAST, COPIED_STEP, MODE, NO_GRAD, WRITTEN
from ..ir.text_file import write_atomically
from ..ir.units import bytes_text, seconds_text
from ..lowering.capture.calling import Batch, batch_items
from ..runtime.agreement import GivenAlike, verify_alike
from ..runtime.batches import LocalRows, ShareSampler, batch_rows, no_rows
from ..runtime.executor import Executor, GivenRate, rates_of
from ..runtime.faults import ACTIVITY
from ..runtime.layer_ranges import ProfiledLayers
from ..runtime.non_finite import FiniteLosses, OnNan
from ..runtime.plan import PlanError
from ..runtime.recording import named_tensors
from ..runtime.replicas import REPLICAS
from .batch_form import BatchValues
from .evaluation import Evaluation, RowsOfOutput, evaluate, predict
from .loading import share_loader
from .module_guard import Guard, StaleModuleError, guard
from .plan_log import log_first_step
from .plan_record import PlanRecord
from .plan_report import PlanReport, plan_html, plan_name
from .step_profile import StepProfile, profiled
from .step_state import StepState
from .trained_loss import trained_loss, warn_on_one_rank
from .variants import Variants


class DistributedStep(StepState):
    """
    A planned training step, on one rank of a job: call it with the global batch to train one step.

    Every method has to be called on all ranks. `StepState` has the methods that read, replace, save and load the state.

    Args:
        executor: holds this rank's part of all values and runs the program.
        plan: the report of the plan, as in `plan.json`.
        program: the text of the program that this rank runs.
        variants: the additional programs, for evaluation and for batches of other shapes.
        model: the planned model; a module is guarded from now on (`module_guard`).
        compared: the number of first steps, and of first evaluations, that compare the inputs of the ranks.
        values: the plain values of the planned batch, which are part of the step.
        device_mesh: the user's DeviceMesh, if the plan was made for one.
        on_nan: the reaction to a loss that is nan or infinite.
        record: the record of the plan, on rank 0.
        module: the planned step, on rank 0.
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
        module: ModuleOp | None = None,
    ) -> None:
        super().__init__(executor, device_mesh, record)
        self.plan = plan
        self.program = program
        self._planned = module
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
        self._is_new = True

    def __repr__(self) -> str:
        report = self.plan
        figures = {
            "plan": repr(plan_name(report)),
            "mesh": report["mesh"],
            "ranks": report["ranks"],
            "predicted_step": repr(seconds_text(report["predicted_step_s"])),
            "predicted_peak_memory": repr(bytes_text(max(report["peak_bytes"]))),
        }
        return f"DistributedStep({report['name']!r}, {', '.join(f'{name}={text}' for name, text in figures.items())})"

    def explain(self) -> str:
        """
        Return the figures of the plan, and the best plan of every other kind with the reason why it lost.

        It is the text of ``shardwright explain`` about a whole plan. Any rank may call this alone.
        """
        from .plan_tables import plan_parts, text_of

        return text_of(plan_parts(self.plan))

    def __call__(self, batch: Batch | LocalRows, lr: GivenRate = None) -> torch.Tensor:
        """
        Train one step.

        Args:
            batch: the global batch, the same on every rank, in the shape of the example or of a declared one
                (`shapes`); or this rank's own rows of it, marked by `local`.
            lr: the learning rate of this step, or one for each group of parameters, as numbers or tensors without dims;
                if None, the rates in `optimizer`, which a scheduler or the loop may set.

        Returns:
            The loss, the same on every rank.

        Raises:
            PlanError: the batch does not match the example or has a shape that was not declared; in the first steps,
                the ranks were given different ones; or the step is called under autocast or `no_grad`, or with layers
                in other modes.
            NonFiniteError: the loss is nan or infinite and ``on_nan`` is ``raise``; on CUDA, the loss of the step
                before. Parameters and states have been updated by then.
        """
        began = perf_counter()
        self._verify_modes()
        self._values.verify(batch)
        given = batch if isinstance(batch, LocalRows) else batch_items(batch)
        chosen_rate = lr if lr is not None or self.optimizer is None else self.optimizer.rates
        rates = rates_of(self._executor.plan, chosen_rate)
        with ACTIVITY.stepping():
            # Compare first, so that a batch that only one rank rejects is an error on all ranks.
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
        if self._is_new:
            self._is_new = False
            log_first_step(self.plan, loss, began)
        return trained_loss(loss)

    def profile(self) -> AbstractContextManager[StepProfile]:
        """
        Measure how much of the communication of steps overlaps with computation.

        ::

            with step.profile() as profile:
                for batch in batches:
                    step(batch)
            print(profile)                      # seconds by phase and axis; the same on every rank
            profile.save("measured.json")       # for shardwright simulate PLAN --measured measured.json

        Steps outside are not measured. The first step inside takes longer, so profile several.
        """
        return profiled(self._executor, compiled=self._variants.connections.compiles)

    def report(self, path: str | Path | None = None, profile: StepProfile | None = None) -> str:
        """
        Return the HTML of a page about the plan: its shardings, its predicted step, its memory and why it was chosen.

        The page is as `shardwright report` writes it. It needs ``pip install "shardwright[report]"`` on rank 0, which
        has the plan; the other ranks do nothing and return an empty text.

        Args:
            path: file to write the page to.
            profile: measurements of `profile()` to compare with the prediction.

        Raises:
            ReportError: a package is missing.
        """
        if self._planned is None:
            return ""
        from .report.page import report_page
        from .report.planned import Planned

        measured = profile.steps if profile is not None else None
        page = report_page(Planned(self.plan, self._planned, measured=measured))
        if path is not None:
            write_atomically(Path(path), page)
        return page

    def _repr_html_(self) -> str:
        return plan_html(self.plan)

    def declare(self, batch: Batch) -> None:
        """
        Plan the step for batches of another shape, too, as `shapes` of `parallelize` does.

        Raises:
            PlanError: the batch does not match the example, or planning failed.
        """
        self._variants.declare(batch)

    def evaluate(self, batch: Batch | LocalRows) -> Evaluation:
        """
        Return the loss and metrics of a batch in eval mode, whatever mode the module is in.

        Parameters and buffers keep their placement. Training continues as if the evaluation had not happened: it
        changes no random number, metric or buffer.

        Args:
            batch: the global batch, the same on every rank, with the items of the example and any number of rows and
                any lengths. Rank 0 plans a program once for every new shape. Or this rank's rows of a batch of the
                example's shape, as `loader` gives them.

        Returns:
            The loss and the metrics of this batch alone, the same on every rank.

        Raises:
            PlanError: the batch does not match the example, or it would exceed the number of shapes (`most_programs`);
                or, in the first evaluations, the ranks were given different batches.
        """
        self._verify_given(batch, "evaluate()")
        return evaluate(self._variants, batch)

    @overload
    def predict(self, batch: Batch | LocalRows, part: Literal["whole"] = "whole") -> Any: ...

    @overload
    def predict(self, batch: Batch | LocalRows, part: Literal["rows"]) -> RowsOfOutput: ...

    def predict(self, batch: Batch | LocalRows, part: Literal["whole", "rows"] = "whole") -> Any:
        """
        Return the model's output for a batch in eval mode, in the model's tuples, lists, dicts and data classes.

        Args:
            batch: as in `evaluate`; labels and optional arguments of the model may be missing.
            part: ``whole``, the full output on every rank; or ``rows``, the rows that this rank computed.

        Raises:
            PlanError: as in `evaluate`; or tensors of the output have different rows on this rank.
        """
        if part not in ("whole", "rows"):
            raise PlanError(f"predict() was given part={part!r}, expected 'whole' or 'rows'")
        self._verify_given(batch, "predict()")
        return predict(self._variants, batch, part)

    def _verify_given(self, batch: Batch | LocalRows, call: str) -> None:
        self._verify_autocast(call)
        self._evaluated.verify(batch if isinstance(batch, LocalRows) else batch_items(batch))

    @property
    def most_programs(self) -> int:
        """The largest number of batch shapes that `evaluate` and `predict` accept; each shape needs a program."""
        return self._variants.most

    @most_programs.setter
    def most_programs(self, most: int) -> None:
        self._variants.most = most

    def _verify_autocast(self, call: str) -> None:
        """Raise PlanError if a call is under autocast, which has no effect on a planned step."""
        if torch.is_autocast_enabled(self._executor.comm.device.type):
            raise PlanError(f"{call} was called under torch.autocast, which has no effect on it: {AUTOCAST.instead}")

    def _verify_modes(self) -> None:
        """Raise PlanError for modes that would change a step on one device but have no effect on a planned one."""
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
        The metrics of the last step, as full tensors that are the same on every rank: the user's metrics, and
        ``grad_norm`` if gradients are clipped by norm.
        """
        return dict(self._executor.metrics)

    @property
    def loss_scale(self) -> float | None:
        """The loss scale of the next step, or None without loss scaling."""
        return self._executor.loss_scale

    @property
    def skipped_steps(self) -> int:
        """The number of steps that ``on_nan="skip"`` skipped because the loss or a gradient was not finite."""
        return self._finite.skipped

    @property
    def rows(self) -> range:
        """
        The rows that this rank computes on, of every global batch with the example's shape (all rows without a split).

        Raises:
            PlanError: the items of the batch are split differently.
        """
        return batch_rows(self._executor.plan, self._executor.comm.rank, self._executor.plans)[1]

    def sampler(self, length: int, seed: int | None = 0) -> ShareSampler:
        """Return the sampler of this rank's rows, for a data set of `length` samples; see `ShareSampler`."""
        verify_alike("lengths or seeds of step.sampler()", (length, seed))
        count, rows = batch_rows(self._executor.plan, self._executor.comm.rank, self._executor.plans)
        return ShareSampler(length, count, rows, seed)

    def loader(
        self, dataset: Dataset[Any], seed: int | None = 0, *, drop_last: bool = True, **options: Any
    ) -> DataLoader[Any]:
        """
        Return a DataLoader that loads this rank's rows of every batch, marked for the step.

        It loads the global batch if the items of a batch are split differently. Its `batch_sampler` has `set_epoch`.

        Args:
            seed: as in `sampler`, the same on every rank.
            drop_last: whether to drop the incomplete last batch of an epoch; otherwise its shape must be declared, by
                `parallelize(..., shapes=[batch])`.
            options: options of `DataLoader`, such as ``num_workers``. ``collate_fn`` takes samples, as usual;
                ``shuffle=False`` means ``seed=None``; a ``batch_size`` must equal the planned one.

        Raises:
            PlanError: the incomplete last batch is kept, and its number of rows was not declared; an option would
                choose other rows; or, on every rank, the ranks were given different orders.
        """
        loader = share_loader(self._executor, self._variants, dataset, seed, drop_last=drop_last, options=options)
        self._add_loader(loader)
        return loader

    def local(self, batch: Batch, rows: int | None = None) -> LocalRows:
        """
        Mark a batch as this rank's own rows of the global one.

        Args:
            rows: number of rows of the global batch; by default as many as in the example.
        """
        return LocalRows(batch_items(batch), rows)

    def collate(self, samples: list[Any]) -> Any:
        """Collate as torch's `default_collate`, or into empty tensors without samples: the `collate_fn` of a loader."""
        return default_collate(samples) if samples else no_rows(self._executor.plan)

    @contextmanager
    def module(self) -> Generator[nn.Module, None, None]:
        """
        Return the planned module with the trained weights, for use inside the context: to evaluate, save or average it.

        It holds full tensors, on every rank. Changes to its weights inside the context do not affect training.

        Raises:
            PlanError: the step was planned from a function that makes the model, so there is no module.
            StaleModuleError: a parameter of the module was changed inside the context.
        """
        if self._model is None or self._guard is None:
            raise PlanError(
                "step.module() needs the module, but parallelize was given a function that builds it; load "
                "step.state_dict() into one that you build"
            )
        with self._guard.open():
            tensors, inputs = (
                named_tensors(self._model),
                (value for plan in self._executor.plans for value in plan.inputs),
            )
            with torch.no_grad():
                for value in {value.name: value for value in inputs if value.role in ("param", "buffer")}.values():
                    tensors[value.name].copy_(self._executor.gather(value))
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
