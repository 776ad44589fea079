"""The driver: imports a training step, runs the passes for a cluster, and lowers the result to a program."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from time import perf_counter, time
from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from ..dialects.text import module_text
from ..ir.cluster import Cluster
from ..ir.garbage import collector_paused
from ..ir.plan_options import OPTIONS, WHOLE_PLANS, are_shares, differing, refusal, taken_by, ways_of
from ..lowering.capture.calling import batch_items
from ..lowering.capture.capture import CaptureError, capture_step, make_fake_model
from ..lowering.capture.fake import Fakes
from ..lowering.codegen.emit_python import emit_python
from ..lowering.importer.step import import_step
from ..lowering.probe.at_use import inferred_uses, narrow_rules, refuted_rules
from ..passes.add_cluster import add_cluster
from ..passes.add_pins import AddPinsPass
from ..passes.balance_ratios import BalanceRatiosPass
from ..passes.clip_gradients import ClipGradientsPass
from ..passes.draw_independently import DrawIndependentlyPass
from ..passes.errors import PassError
from ..passes.fit_memory import FitMemoryPass
from ..passes.fixed_point import FixedPointPass
from ..passes.mark_compiled import MarkCompiledPass
from ..passes.pipeline import Pipeline, run_pipeline
from ..passes.planning.processes import side_by_side
from ..passes.recompute import RecomputePass
from ..passes.reuse_buffers import ReuseBuffersPass
from ..passes.scale_loss import ScaleLossPass
from ..passes.search.algorithms.table import AlgorithmName
from ..passes.search.pin_file import load_pins, verify_names
from ..passes.search_plan import SearchPlanPass
from ..passes.search_strategy import SearchStrategyPass, WholePlan
from ..passes.set_reduce_dtype import SetReduceDtypePass
from ..passes.skip_non_finite import SkipNonFinitePass
from ..passes.verification import first_fault
from ..runtime.plan import PlanError
from .files import PLANNED, UNDECIDED, swap_folder, text_digest
from .plan_record import RECORD, PlanRecord
from .plan_report import PlanReport, plan_html, report, versions
from .training_step import LossScaling, TrainingStep

PlanAlgorithm: TypeAlias = AlgorithmName | WholePlan
"""The algorithm that finds a plan; see `PlanOptions`."""

Observer = Callable[[str], None]


@dataclass(frozen=True)
class PlanOptions:
    """
    The options of a plan: how it is found, and which decisions are not left to the search (`docs/options.md`).

    Args:
        algorithm: ``auto`` (`search-plan`) and ``anneal`` (AMP's search) decide on everything. All others are
            algorithms of `search-strategy`, on the cluster's own mesh without micro-batches. The default is ``auto``,
            but ``fixed`` for a preset without an option of the whole plan, and ``eliminate`` for explicit shares.
        pins: a pin file, the name of a preset, or pins as TOML text. With options of the whole plan (mesh, stages, ...)
            a preset fixes only the strategy; pins that name axes or values keep the cluster's mesh.
        dtype: the dtype of floating-point parameters, buffers and batch items; by default each keeps its own.
        gradients: whether the program also returns the gradients.
        pipeline: passes, or their text form, that replace the usual ones. Their options replace pins, algorithm,
            ratios, random and everything that a search decides; these options cannot be combined with a pipeline.
        ratios: the shares of devices. ``even``; ``balanced`` by `balance-ratios`; ``auto``, balanced if the devices of
            the cluster differ; or the shares themselves, such as ``0.4,0.3,0.2,0.1``, on a mesh of one axis.
        random: ``exact``, the same random numbers as on one device, for every sharding of the step; or ``independent``,
            each rank draws the numbers of its part, which depend on the sharding.
        probe: whether the rules of ops that the table lacks are inferred by running these ops.
        mesh: the mesh of all devices, such as ``4x16``; by default the search chooses this option and the next five.
        stages: number of pipeline stages, 1 for no pipeline.
        micro_batches: number of micro-batches, 1 for none: accumulated one after the other (``stages=1``), or sent
            through the stages of a pipeline. A step is still one update, by the full batch.
        duplex: whether parts of the batch compute while others communicate; `auto` if simulation finds it faster.
        idle: whether ranks may idle: `auto` if the step is faster without them. They still get the loss and metrics.
        keep_activations: the fraction of activations, by bytes, that is kept for backward: 1 keeps all of them, and 0
            only those between layers. The rest is recomputed. The search keeps all activations that fit by default.
            Layers under `torch.utils.checkpoint` are always recomputed.
        budget: seconds after which the search ends with the best plan so far.
        candidate: the plan that `search-plan` rebuilds instead of searching: a `plan.json` file, or its JSON text.
        adapt: whether the candidate may belong to another cluster and is adapted to this one.
        compile: whether the computation between collectives is compiled, as by `torch.compile`, in the first step. The
            plan takes this into account: a chain of elementwise ops costs as much as one kernel.
        processes: the number of processes in which `search-plan` tries candidates; the plan does not depend on it. The
            processes are forked, so use 1 if a process group or a GPU is in use.

    Raises:
        PlanError: an option does not take its value, or two options exclude each other (`ir/plan_options.py`).
    """

    algorithm: PlanAlgorithm | None = OPTIONS["algorithm"].default
    pins: str | Path | None = OPTIONS["pins"].default
    dtype: torch.dtype | None = OPTIONS["dtype"].default
    gradients: bool = OPTIONS["gradients"].default
    pipeline: str | Pipeline | None = OPTIONS["pipeline"].default
    ratios: str = OPTIONS["ratios"].default
    random: Literal["exact", "independent"] = OPTIONS["random"].default
    probe: bool = OPTIONS["probe"].default
    mesh: str | None = OPTIONS["mesh"].default
    stages: int | None = OPTIONS["stages"].default
    micro_batches: int | None = OPTIONS["micro_batches"].default
    duplex: Literal["auto", "yes", "no"] = OPTIONS["duplex"].default
    idle: Literal["auto", "no"] = OPTIONS["idle"].default
    keep_activations: float | None = OPTIONS["keep_activations"].default
    budget: float | None = OPTIONS["budget"].default
    candidate: str | None = OPTIONS["candidate"].default
    adapt: bool = OPTIONS["adapt"].default
    compile: bool = OPTIONS["compile"].default
    processes: int = OPTIONS["processes"].default

    def __post_init__(self) -> None:
        if (why := refusal(self.given)) is not None:
            raise PlanError(why)

    @property
    def given(self) -> dict[str, object]:
        """Return the options that differ from their defaults, by name."""
        return differing({option.name: getattr(self, option.name) for option in fields(self)})

    def passes(self, cluster: Cluster) -> Pipeline:
        """
        Return the passes that plan an imported step for `cluster`.

        Raises:
            PipelineError, PinError: the user's pipeline or pins cannot be read.
        """
        marks = [MarkCompiledPass()] if self.compile else []
        if self.pipeline is not None:
            users = Pipeline.of(marks, self.pipeline)
            # The emitted program needs the decisions about which buffers may be overwritten.
            decides = any(isinstance(item, ReuseBuffersPass) for item in users)
            return users if decides else Pipeline.of(users, ReuseBuffersPass())
        algorithm = self._algorithm()
        whole: WholePlan | None = algorithm if algorithm == "auto" or algorithm == "anneal" else None
        keep = self.keep_activations if whole is None else None
        pipeline = Pipeline.of(
            [DrawIndependentlyPass()] if self.random == "independent" else [],
            marks,
            "prepare",
            RecomputePass() if keep is None else RecomputePass(keep),
            [AddPinsPass(str(self.pins))] if self.pins is not None else [],
            SearchPlanPass(algorithm=whole, **{name: getattr(self, name) for name in taken_by("search-plan")})
            if whole is not None
            else self._flat(cluster, SearchStrategyPass(algorithm)),
            "finish",
        )
        # Passes do not check their option values when they are constructed; the parser does, and names the option.
        return Pipeline.parse(str(pipeline))

    def _algorithm(self) -> PlanAlgorithm:
        if self.algorithm is not None:
            return self.algorithm
        searched = any(ways_of(name, value) <= WHOLE_PLANS for name, value in self.given.items())
        if self.pins is not None and not searched and any(pin.preset for pin in load_pins(self.pins)):
            return "fixed"
        return "eliminate" if are_shares(self.ratios) else "auto"

    def _flat(self, cluster: Cluster, search: SearchStrategyPass) -> Pipeline:
        """Return the passes that choose a strategy and its ratios on the cluster's own mesh, without micro-batches."""
        program = "communicate,overlap"
        if self.ratios == "even" or (self.ratios == "auto" and len(cluster.kinds_used) == 1):
            # An algorithm that was requested by name is not fitted to memory; the ratios below observe its limits.
            fits = [FitMemoryPass(str(Pipeline.of(search, program)))] if search == SearchStrategyPass() else []
            return Pipeline.of(search, program, fits, "join-updates")
        if self.ratios in ("auto", "balanced"):
            strategy = Pipeline.of(FixedPointPass(str(Pipeline.of(search, BalanceRatiosPass()))))
        else:
            # The second search finds a strategy for the user's ratios.
            strategy = Pipeline.of(search, BalanceRatiosPass(self.ratios), search)
        return Pipeline.of(strategy, "program")


@dataclass(frozen=True)
class CompiledStep:
    """
    A planned training step and its program.

    Args:
        began: the start of planning, by `time.time()`.
        undecided: the step before any decision, the input of `explain`, or None if `search-plan` did not run.
        texts: the texts of `module` and `undecided`, in this order, if they are already printed; `save` writes them.
    """

    module: ModuleOp
    program: str
    report: PlanReport
    began: float
    undecided: ModuleOp | None = None
    texts: tuple[str, str | None] | None = field(default=None, repr=False)

    def _repr_html_(self) -> str:
        return plan_html(self.report)

    def save(self, folder: str | Path, began: float | None = None) -> Path:
        """
        Write `step.mlir`, `program.py` and `plan.json` into `folder`, replacing an earlier plan.

        If the plan was searched for, also write the input of `replan`: `global.mlir`, the step before any decision, and
        `replan.json`. Unless the folder has other files, either all of these are replaced or none (`swap_folder`).

        Args:
            began: the start of `total_seconds` of `plan.json`, by `time.time()`; by default the start of planning.
        """
        folder = Path(folder)
        planned, undecided = self.texts or (module_text(self.module), _text(self.undecided))
        texts: dict[str, str | None] = {PLANNED: planned, "program.py": self.program}
        # Files of an earlier plan must be deleted (None), because they would be read as part of this one.
        texts |= {UNDECIDED: undecided, RECORD: None}
        if self.undecided is not None:
            texts[RECORD] = PlanRecord.of(self.module, self.report).text(text_digest(planned))
        total = {"total_seconds": time() - (began if began is not None else self.began)}
        texts["plan.json"] = json.dumps({**self.report, **total}, indent=2) + "\n"
        swap_folder(folder, texts)
        return folder


def import_training_step(
    step: TrainingStep, *, dtype: torch.dtype | None = None, gradients: bool = False, probe: bool = True
) -> ModuleOp:
    """Return the IR of a training step, with global shapes and no decisions; CaptureError if it cannot be captured."""
    captured = capture_step(
        step.model, step.loss, step.optimizer, step.batch, metrics=step.metrics, precision=step.precision, dtype=dtype
    )
    module = import_step(
        captured, batch=batch_items(step.batch), gradients=gradients, probe=probe, no_rows=step.no_rows
    )
    if step.reduce_dtype is not None:
        SetReduceDtypePass(step.reduce_dtype).apply(Context(), module)
    if step.precision == "fp16-mixed":
        ScaleLossPass(**asdict(step.loss_scaling or LossScaling())).apply(Context(), module)
    if step.skip_non_finite:
        SkipNonFinitePass().apply(Context(), module)
    if step.clip_norm is not None or step.clip_value is not None:
        if complex_names := [item.name for item in captured.inputs if item.role == "param" and item.dtype.is_complex]:
            raise CaptureError(
                f"the parameter {complex_names[0]!r} is complex, but clipping supports only gradients of real numbers; "
                "let the model keep it as pairs of real numbers and read it by torch.view_as_complex, or do not clip"
            )
        ClipGradientsPass(step.clip_norm, step.clip_value).apply(Context(), module)
    return module


def verify_pins(step: TrainingStep, options: PlanOptions) -> None:
    """Raise PinError for pins that cannot be read or misspell a value of the step, before any slow work begins."""
    if options.pins is not None and any(pin.value for pin in load_pins(options.pins)):
        with torch.random.fork_rng([]):
            model = step.model if isinstance(step.model, nn.Module) else make_fake_model(step.model, Fakes(None))
        weights = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
        batch = [f"batch.{name}" for name in batch_items(step.batch)]
        verify_names(options.pins, [*weights, *(f"{name}.grad" for name in weights), *batch])


def imported_for(
    step: TrainingStep, cluster: Cluster, options: PlanOptions, observe: Observer
) -> tuple[ModuleOp, dict[str, float]]:
    """Return the IR of a training step that is to be planned, and the seconds of its import by the phase's name."""
    # Report a pipeline that cannot be read before the step is captured, which takes longer.
    options.passes(cluster)
    observe("import")
    start = perf_counter()
    module = import_training_step(step, dtype=options.dtype, gradients=options.gradients, probe=options.probe)
    return module, {"import": perf_counter() - start}


def compile_step(
    step: TrainingStep,
    cluster: Cluster,
    options: PlanOptions = PlanOptions(),
    *,
    name: str = "step",
    step_spec: str | None = None,
    observe: Observer = lambda _: None,
) -> CompiledStep:
    """
    Plan a training step for a cluster.

    Args:
        step_spec: where the runtime finds the step again: a shipped name or `package.module:callable`.
        observe: called with the name of each phase before it begins, to show progress.

    Raises:
        CaptureError, PassError, PipelineError, PinError: capture or planning failed, or an option cannot be read.
    """
    verify_pins(step, options)
    module, seconds = imported_for(step, cluster, options, observe)
    return lower(module, cluster, options, name=name, step_spec=step_spec, seconds=seconds, observe=observe)


def lower(
    module: ModuleOp,
    cluster: Cluster,
    options: PlanOptions,
    *,
    name: str,
    step_spec: str | None,
    seconds: dict[str, float],
    observe: Observer = lambda _: None,
) -> CompiledStep:
    """
    Plan an imported step, which is modified, and emit its program.

    If the plan splits an op by an inferred rule that does not hold there, the rule is narrowed and planning repeated.

    Args:
        seconds: the time that earlier phases took, by name.
    """
    began = time() - sum(seconds.values())
    undecided: list[ModuleOp] = []
    imported = module.clone() if inferred_uses(module) else None

    def on_before(each: ModulePass, before: ModuleOp) -> None:
        observe(each.name)
        if isinstance(each, SearchPlanPass):
            undecided.append(before.clone())

    with collector_paused():
        add_cluster(module, cluster)
        passes = options.passes(cluster)
        spent = run_pipeline(Context(), module, passes, verify_each=False, on_before=on_before)
        if imported is not None and (refuted := refuted_rules(module)):
            narrow_rules(imported, refuted)
            return lower(imported, cluster, options, name=name, step_spec=step_spec, seconds=seconds, observe=observe)
        seconds |= spent
        observe("emit")
        initial = undecided[0] if undecided else None

        def checked_report() -> PlanReport:
            if fault := first_fault(module):
                hint = "run opt-tool --verify-each to see which"
                raise PassError("plan", "invalid", f"{fault.message} ({hint})", fault.op)
            return {**report(module, seconds, name, step_spec), "pipeline": str(passes)}

        return _emitted(module, initial, checked_report, began, options.processes, name=name, step_spec=step_spec)


def _emitted(
    module: ModuleOp,
    undecided: ModuleOp | None,
    checked_report: Callable[[], PlanReport],
    began: float,
    processes: int,
    *,
    name: str,
    step_spec: str | None,
) -> CompiledStep:
    """Return a planned step with its program; several processes write program, report and texts side by side."""

    def emitted() -> tuple[str, float]:
        start = perf_counter()
        program = emit_python(module, name=name, step_spec=step_spec, versions=versions())
        return program, perf_counter() - start

    if processes == 1:
        about, (program, spent), texts = checked_report(), emitted(), None
    else:
        # Emission may fail on invalid IR. This process runs `checked_report`, so its clearer error comes first.
        jobs: list[Callable[[], Any]] = [checked_report, emitted, lambda: _text(undecided), lambda: _text(module)]
        about, (program, spent), before, planned = side_by_side(lambda job: job(), jobs, processes)
        texts = planned, before
    about["pass_seconds"]["emit"] = spent
    return CompiledStep(module, program, about, began, undecided, texts)


def _text(module: ModuleOp | None) -> str | None:
    return module_text(module) if module is not None else None
