"""`parallelize`: turns a training step into one on all ranks of a torchrun job, from the user's own script."""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from xdsl.dialects.builtin import ModuleOp

from ..ir.cluster import Cluster
from ..ir.cluster_file import find_cluster
from ..ir.mesh import Mesh
from ..ir.not_supported import AUTOCAST, HALF, ON_META
from ..ir.plan_options import refusal
from ..ir.submesh import on_mesh
from ..lowering.capture.calling import Batch, LossFunction, MakeOptimizer, MetricsFunction, Precision, ReduceDtype
from ..passes.planning.state_placement import StatePlacement
from ..passes.search.pin_file import PinError
from ..runtime.agreement import LOG, made_by_rank_0, share_random_state, share_weights, verify_alike, verify_replicas
from ..runtime.ending import report_errors_once, watch_job
from ..runtime.executor import Executor
from ..runtime.faults import ACTIVITY, FaultBounds
from ..runtime.groups import world_size
from ..runtime.launch import process_group
from ..runtime.non_finite import OnNan, verify_on_nan
from ..runtime.plan import PlanError, plan_hash, verify_same_plan
from ..runtime.rank_devices import device_of_group
from ..runtime.watch import Watch
from .batch_form import BatchForm, BatchValues
from .calibration.auto_cluster import AUTO, auto_cluster, mesh_of
from .compile import CompiledStep, Observer, PlanOptions, verify_pins
from .distributed_step import DistributedStep
from .earlier_plan import EarlierPlan
from .finalists import MOST, compile_finalists, fastest, step_seconds
from .plan_log import PhaseLog, is_first_rank, log_plan
from .plan_record import PlanRecord
from .plan_report import PlanReport
from .training_step import LossScaling, TrainingStep
from .variants import Connections, Planner, Variants


def parallelize(
    model: nn.Module | Callable[[], nn.Module],
    loss: LossFunction | None,
    optimizer: MakeOptimizer,
    example_batch: Batch,
    cluster: str | Path | Cluster | DeviceMesh = "auto",
    *,
    plan: PlanOptions = PlanOptions(),
    seed: int | None = 0,
    compared: int = 10,
    measure: int | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    metrics: MetricsFunction | None = None,
    precision: Precision | None = None,
    reduce_dtype: ReduceDtype | None = None,
    loss_scaling: LossScaling | None = None,
    shapes: Sequence[Batch] = (),
    rows: Sequence[str | int] | None = None,
    on_nan: OnNan = "raise",
    faults: FaultBounds = FaultBounds(),
    replan_from: str | Path | None = None,
    **former: Any,
) -> DistributedStep:
    """
    Plan a training step for a cluster and return it on every rank of the job, ready to run.

    Rank 0 plans, and all ranks run its plan. Without torchrun there is one rank, and the plan is for one device of the
    cluster. As with DDP, a module's weights are taken from rank 0; afterwards the step holds them, and the module can
    be used only inside ``with step.module():``. Rank 0 logs each phase with its seconds, the plan and its predicted
    time to the logger ``shardwright``. Without any configuration of `logging` the log appears on standard error;
    ``logging.getLogger("shardwright").setLevel(logging.WARNING)`` silences it.

    Args:
        model, loss, optimizer, example_batch, clip_norm, clip_value, metrics, precision, reduce_dtype, loss_scaling,
            rows: as in `TrainingStep`. With a model function each rank keeps only its parts of the weights.
        cluster: a cluster, its file, or the name of a shipped one; ``auto`` measures the ranks of the job, in less than
            a minute, and keeps the result for the next time. The ranks of a `DeviceMesh` are measured too.
        plan: the options of the plan: the algorithm, and decisions that are not left to the search, such as the mesh.
        seed: seed of torch's generator for the weights of a model function (None: unchanged), and of steps (None: 0).
        measure: the number of plans, the best of different kinds, that are timed for a few steps to choose the fastest;
            1 relies on predictions. The default is four if the cluster is ``auto``, else one.
        compared: the number of first steps that check whether all ranks get the same batch and learning rate.
        shapes: further batches that the step accepts, with the example's items in other numbers of rows or other
            lengths, such as the last batch of an epoch. Parameters have the same placement in their plans.
        on_nan: the reaction to a loss that is nan or infinite: ``raise`` an error on all ranks; ``skip`` updates whose
            loss or gradients are not finite; or ``ignore`` it.
        faults: how soon a rank that is dead, left early or does not answer ends the job; only the first call's count.
        replan_from: a folder of checkpoints, or one of `shardwright plan`. A plan in it is adapted to the present
            devices, so that little state has to move; the search runs only if no such plan fits or satisfies the other
            options. No state is loaded: call `resume` of the step.
        former: options of the plan by the keywords of the last release; they warn, and will be removed.

    Raises:
        PlanError: on every rank, if the cluster has another number of devices than the job has ranks, planning failed,
            ranks were given different models or seeds, a batch of `shapes` does not match, or `compile` is impossible.
    """
    if former:
        plan = _with_former(plan, former)
    # Join the job before anything that may fail, so that only one rank reports the error.
    device = _join_job(_name_of(model), faults)
    verify_on_nan(on_nan)
    step = TrainingStep(
        model,
        loss,
        optimizer,
        example_batch,
        clip_norm,
        clip_value,
        metrics,
        precision=precision,
        reduce_dtype=reduce_dtype,
        loss_scaling=loss_scaling,
        skip_non_finite=on_nan == "skip",
        rows=rows,
    )
    others = {"seed": seed, "compared": compared, "measure": measure, "replan_from": replan_from}
    options = {name: value for name, value in others.items() if value is not None}
    if (reason := refusal({**plan.given, **options})) is not None:
        raise PlanError(reason)
    earlier_folder = Path(replan_from) if replan_from is not None else None
    connections = Connections(device, compiles=plan.compile)
    distributed = _parallelized(step, connections, cluster, plan, seed, compared, measure, on_nan, earlier_folder)
    for batch in shapes:
        distributed.declare(batch)
    return distributed


def _with_former(plan: PlanOptions, former: Mapping[str, Any]) -> PlanOptions:
    """Return plan options with the values of former keywords of `parallelize`, and warn that these are deprecated."""
    if unknown := sorted(former.keys() - {option.name for option in fields(PlanOptions)}):
        raise TypeError(f"parallelize() got an unexpected keyword argument {unknown[0]!r}")
    names = ", ".join(f"{name}=..." for name in former)
    text = f"parallelize({names}) is deprecated, and will be removed; write parallelize(plan=PlanOptions({names}))"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
    return replace(plan, **former)


def _parallelized(
    step: TrainingStep,
    connections: Connections,
    cluster: str | Path | Cluster | DeviceMesh,
    options: PlanOptions,
    seed: int | None,
    compared: int,
    measure: int | None,
    on_nan: OnNan,
    replan_from: Path | None,
) -> DistributedStep:
    began, model, device = time.perf_counter(), step.model, connections.device
    phases = PhaseLog(_name_of(model))
    _refuse(step, options)
    connections.verify()
    verify_alike("seeds", seed)
    if isinstance(model, nn.Module):
        share_weights(model, device)
    is_measured = isinstance(cluster, DeviceMesh) or cluster == AUTO
    measure = measure if measure is not None else MOST if is_measured else 1
    device_mesh = cluster if isinstance(cluster, DeviceMesh) else None
    with _random_numbers_kept(device):
        if isinstance(cluster, DeviceMesh):
            cluster = auto_cluster(device, mesh_of(cluster))
        elif cluster == AUTO:
            cluster = auto_cluster(device)
        if is_measured:
            phases.ended("measured the ranks, or read earlier measurements,")
        compiled = partial(_compiled, step, cluster, options, measure, replan_from, phases)
        planned, modules = _planned_by_rank_0(compiled)
        phases.ended(f"compiled {len(planned)} program{'s' if len(planned) > 1 else ''}")
        best, report = _fastest(planned, step, device, seed)
        if len(planned) > 1:
            phases.ended(f"timed {len(planned)} programs")
    program = planned[best][0]
    loaded = connections.load(program, f"<the program of {report['name']}>")
    verify_same_plan(plan_hash(program, [stage.plan for stage in loaded]))
    if is_first_rank():
        log_plan(report, [stage.plan for stage in loaded], time.perf_counter() - began)
    executor = Executor(loaded, connections.connect(loaded))
    _initialize(executor, model, seed, device)
    planner = _planner(step, options, modules[best]) if modules else None
    record = PlanRecord.of(modules[best], report) if modules else None
    variants = Variants(executor, BatchForm(step.batch, step.loss is not None, step.no_rows), connections, planner)
    return DistributedStep(
        executor,
        report,
        program,
        variants,
        model,
        compared,
        BatchValues.of(step.batch),
        device_mesh,
        on_nan,
        record,
        modules[best] if modules else None,
    )


def _planner(step: TrainingStep, options: PlanOptions, module: ModuleOp) -> Planner:
    """Return the planner of additional programs, which keep parameters where the plan `module` has them."""
    independent = options.random == "independent"
    homes = StatePlacement.of(module)
    if options.keep_activations is not None:
        homes = replace(homes, keep=options.keep_activations)
    return Planner(step, homes, _name_of(step.model), options.dtype, independent, options.probe)


def _refuse(step: TrainingStep, options: PlanOptions) -> None:
    """Raise PlanError if the step cannot be trained, and warn if it trains badly."""
    try:
        verify_pins(step, options)
    except PinError as error:
        raise PlanError(str(error)) from None
    if options.dtype == torch.float16:
        raise PlanError(f"PlanOptions has dtype=torch.float16, but small gradients underflow to 0; {HALF.instead}")
    if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
        raise PlanError(
            f"parallelize was called under torch.autocast, which does not apply to its step; use {AUTOCAST.instead}"
        )
    if isinstance(step.model, nn.Module):
        parameters = dict(step.model.named_parameters())
        if unmade := [name for name, value in parameters.items() if value.is_meta]:
            raise PlanError(f"{unmade[0]!r} is on the meta device; {ON_META.instead}")
        if narrow := [name for name, value in parameters.items() if value.dtype == torch.float16]:
            text = "parameter %r is in float16, in which small gradients underflow to 0; %s"
            LOG.warning(text, narrow[0], HALF.instead)
        if (last := next((name for name, value in parameters.items() if _is_channels_last(value)), None)) is not None:
            LOG.warning(
                "parameter %r is in channels_last, and the step holds it contiguous: the numbers are the same, the "
                "time of convolutions may differ",
                last,
            )


def _is_channels_last(value: torch.Tensor) -> bool:
    given = {4: torch.channels_last, 5: torch.channels_last_3d}.get(value.dim())
    return given is not None and value.is_contiguous(memory_format=given) and not value.is_contiguous()


def _initialize(
    executor: Executor, model: nn.Module | Callable[[], nn.Module], seed: int | None, device: torch.device
) -> None:
    """Give all ranks their parts of the same weights; without a seed, a model function uses the user's generator."""
    draws = seed is None and not isinstance(model, nn.Module)
    if draws:
        share_random_state()
    with _random_numbers_kept(device, enabled=not draws):
        executor.initialize(model, seed)
    verify_replicas(executor)


def _random_numbers_kept(device: torch.device, *, enabled: bool = True) -> AbstractContextManager[None]:
    """Restore the state of the user's random generators at exit."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [], enabled=enabled)


def _compiled(
    step: TrainingStep,
    cluster: str | Path | Cluster,
    options: PlanOptions,
    measure: int,
    replan_from: Path | None,
    observe: Observer,
) -> list[CompiledStep]:
    """Return the best plan for the ranks of this job, followed by other plans that may be faster."""
    world, name = world_size(), _name_of(step.model)
    fitted = _fitted(cluster if isinstance(cluster, Cluster) else find_cluster(cluster), world)
    old = EarlierPlan.find(replan_from) if replan_from is not None else None

    def compiled(asked: PlanOptions) -> list[CompiledStep]:
        return compile_finalists(step, fitted, asked, measure if world > 1 else 1, name=name, observe=observe)

    return old.made(compiled, options, fitted) if old is not None else compiled(options)


def _planned_by_rank_0(compiled: Callable[[], list[CompiledStep]]) -> tuple[_Planned, list[ModuleOp]]:
    """Return the programs and reports of plans that rank 0 compiles and, on rank 0, their modules."""
    modules: list[ModuleOp] = []

    def made() -> _Planned:
        steps = compiled()
        modules.extend(step.module for step in steps)
        return [(step.program, step.report) for step in steps]

    return made_by_rank_0(made, _failure), modules


def _failure(error: Exception) -> PlanError:
    """Return the error of all ranks for an error of planning."""
    if isinstance(error, PlanError):
        return error
    failure = PlanError(f"{type(error).__name__}: {error}")
    if type(error).__module__.partition(".")[0] != __name__.partition(".")[0]:
        # An error of this package is complete by itself; its cause would only add a traceback of torch.
        failure.__cause__ = error
    return failure


def _name_of(model: nn.Module | Callable[[], nn.Module]) -> str:
    model = getattr(model, "func", model)
    return type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", "model")


def _join_job(name: str, faults: FaultBounds) -> torch.device:
    """Join the process group of the job until the process ends, unless the user has; return this rank's device."""
    if not dist.is_initialized():
        job = ExitStack()
        device = job.enter_context(process_group(name, faults, report_errors=True))
        _at_end(_leave_job, job)
        _JOINED.append(name)
        return device
    if not _JOINED and (watch := watch_job(name, faults)) is not None:
        report_errors_once(watch)
        _at_end(_leave, watch)
    _JOINED.append(name)
    return device_of_group()


Ended = TypeVar("Ended")


def _at_end(function: Callable[[Ended], None], argument: Ended) -> None:
    """Call a function at the end of this process, by a finalizer if `multiprocessing` started the process."""
    if multiprocessing.parent_process() is None:
        atexit.register(function, argument)
    else:
        multiprocessing.util.Finalize(None, function, (argument,), exitpriority=_FIRST)


_FIRST = 100
"""The priority of a finalizer: higher ones run first."""

_JOINED: list[str] = []
"""The names of the programs in this process; the first one started the watch over the job."""


def _leave(watch: Watch) -> None:
    if ACTIVITY.forked:
        return
    if getattr(sys, "last_value", None) is not None:
        watch.end()
    watch.close()


def _leave_job(job: ExitStack) -> None:
    """Leave the job with the error that ends the script, if there is one, so that the other ranks end too."""
    error: BaseException | None = getattr(sys, "last_value", None)
    # Python has already printed the error.
    with suppress(BaseException):
        job.__exit__(type(error) if error is not None else None, error, None)


def _fitted(cluster: Cluster, world: int) -> Cluster:
    """Return the cluster for a job of `world` ranks; PlanError if it has another number of devices."""
    devices = cluster.mesh.device_count
    if world == 1 and "RANK" not in os.environ:
        return on_mesh(cluster, Mesh(tuple(replace(axis, size=1) for axis in cluster.mesh.axes)))
    if devices != world:
        raise PlanError(
            f"cluster {cluster.name!r} has {devices} devices (mesh {cluster.mesh}), but the job has {world} ranks; "
            f"start it with torchrun --nproc-per-node {devices}, or describe a cluster of {world}"
        )
    return cluster


_Planned: TypeAlias = "list[tuple[str, PlanReport]]"


def _fastest(plans: _Planned, step: TrainingStep, device: torch.device, seed: int | None) -> tuple[int, PlanReport]:
    """Return the index of the program that runs fastest on this job, and its report; every rank must call this."""
    if len(plans) == 1:
        return 0, plans[0][1]
    seconds = step_seconds([program for program, _ in plans], step.model, step.batch, device, seed)
    return fastest([report for _, report in plans], seconds)
