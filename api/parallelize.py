"""`parallelize`: a training step that runs on all ranks of a torchrun job, from inside the user's own script."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import default_collate

from ..ir.cluster import Cluster
from ..ir.cluster_file import find_cluster
from ..ir.mesh import Mesh
from ..ir.submesh import on_mesh
from ..lowering.calling import Batch, batch_items
from ..lowering.load_program import load_text
from ..runtime.batches import LocalRows, batch_rows, no_rows
from ..runtime.executor import Executor
from ..runtime.launch import process_group
from ..runtime.plan import PlanError, plan_hash, verify_same_plan
from ..runtime.sampler import ShareSampler
from ..runtime.stages import Stage, connect
from .compile import CompiledStep, PlanOptions, compile_step
from .pin_file import pin_file
from .training_step import TrainingStep


class DistributedStep:
    """
    A planned training step, on one rank of a job: call it with the global batch to train one step.

    Every method has to be called on all ranks.

    Args:
        executor: holds this rank's part of everything.
        plan: the report of the plan: what `plan.json` holds.
        program: the text that this rank runs.
    """

    def __init__(self, executor: Executor, plan: Mapping[str, Any], program: str) -> None:
        self.plan = plan
        self.program = program
        self._executor = executor

    def __call__(self, batch: Batch | LocalRows, lr: float | None = None) -> torch.Tensor:
        """
        Train one step.

        Args:
            batch: the global batch, shaped as the example, the same on every rank; or what `local` makes of a rank's
                own rows of it.
            lr: the learning rate of this step; None is the one that the optimizer was made with.

        Returns:
            The loss, the same on every rank.

        Raises:
            PlanError: the batch is not like the example.
        """
        return self._executor.step(batch if isinstance(batch, LocalRows) else batch_items(batch), lr)

    @property
    def rows(self) -> range:
        """
        The rows of every global batch that this rank computes on: all of them where the batch is not split.

        Raises:
            PlanError: the items of the batch are split differently.
        """
        return batch_rows(self._executor.plan, self._executor.comm.rank)[1]

    def sampler(self, length: int, seed: int | None = 0) -> ShareSampler:
        """The sampler of this rank's rows of every batch, for a data set of `length` samples; see `ShareSampler`."""
        count, rows = batch_rows(self._executor.plan, self._executor.comm.rank)
        return ShareSampler(length, count, rows, seed)

    def local(self, batch: Batch) -> LocalRows:
        """Mark a batch as this rank's own rows of the global one."""
        return LocalRows(batch_items(batch))

    def collate(self, samples: list[Any]) -> Any:
        """torch's `default_collate`, and empty tensors for a rank that has no rows: the `collate_fn` of a loader."""
        return default_collate(samples) if samples else no_rows(self._executor.plan)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers, whole, under the names of the single-device model: what it can load."""
        return self._executor.state_dict()

    def gather(self, name: str) -> torch.Tensor:
        """
        A parameter or buffer, whole.

        Raises:
            KeyError: the plan has none of that name.
        """
        for value in (value for plan in self._executor.plans for value in plan.inputs):
            if value.role in ("param", "buffer") and name in (value.name, *value.tied):
                return self._executor.gather(value)
        raise KeyError(f"the plan has no parameter or buffer {name!r}")


def parallelize(
    model: nn.Module | Callable[[], nn.Module],
    loss: Callable[[Any, Any], torch.Tensor] | None,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    example_batch: Batch,
    cluster: str | Path | Cluster = "cluster.toml",
    *,
    pins: str | Path | None = None,
    dtype: torch.dtype | None = None,
    algorithm: str | None = None,
    ratios: str = "auto",
    random: Literal["exact", "independent"] = "exact",
    pipeline: str | None = None,
    seed: int | None = 0,
    mesh: str | None = None,
    stages: int | None = None,
    micro_batches: int | None = None,
    duplex: Literal["auto", "yes", "no"] = "auto",
    budget: float | None = None,
) -> DistributedStep:
    """
    Plan a training step for a cluster and return it, ready to run, on every rank of the job.

    Rank 0 plans, and all ranks run what it found. Without torchrun there is one rank, and the cluster is taken
    to be one of its devices.

    Args:
        model, loss, optimizer, example_batch: as in `TrainingStep`. A module's own weights are taken; of a model
            function's each rank makes only its parts.
        cluster: a cluster, its file, or the name of a shipped one.
        pins: a pin file, or the name of a preset.
        dtype: what every floating-point parameter, buffer and batch item becomes; None keeps each.
        algorithm: of the search.
        ratios: of the devices' shares: ``even``, ``balanced``, given as ``0.7,0.3``, or ``auto``: balanced where the
            devices of the cluster differ.
        random: ``exact``, the random numbers that one device draws, however the step is spread; or ``independent``,
            each rank draws its part by itself, with other numbers if the step is spread otherwise.
        pipeline: a pass pipeline in place of the usual one; pins and algorithm are then in its text.
        seed: of torch's random numbers before a model function makes its weights; None leaves them as they are. Also
            of the numbers that steps draw, which are of seed 0 where it is None.
        mesh: of all devices, as ``4x16``; like the following it is searched for where it is not given.
        stages: of a pipeline, 1 for none.
        micro_batches: parts of the batch, one after the other or through stages, 1 for none.
        duplex: whether two parts of the batch take turns at computing and communicating.
        budget: seconds after which the best plan so far is taken.

    Raises:
        PlanError: the cluster has another number of devices than the job has ranks, or planning failed; on every
            rank.
    """
    step = TrainingStep(model, loss, optimizer, example_batch)
    device = _join_job(_model_name(step))
    options = PlanOptions(
        algorithm,
        dtype=dtype,
        pipeline=pipeline,
        ratios=ratios,
        random=random,
        mesh=mesh,
        stages=stages,
        micro_batches=micro_batches,
        duplex=duplex,
        budget=budget,
    )
    asked = _Asked(step, cluster, options, pins)
    program, report = _from_rank_0(asked)
    loaded = [Stage(*each) for each in load_text(program, f"<the program of {report['name']}>")]
    verify_same_plan(plan_hash(program, [stage.plan for stage in loaded]))
    executor = Executor(loaded, connect(loaded, device))
    executor.initialize(model, seed)
    return DistributedStep(executor, report, program)


@dataclass(frozen=True)
class _Asked:
    """What rank 0 is to plan."""

    step: TrainingStep
    cluster: str | Path | Cluster
    options: PlanOptions
    pins: str | Path | None

    def compiled(self, world: int) -> CompiledStep:
        """The plan for `world` ranks."""
        given = self.cluster if isinstance(self.cluster, Cluster) else find_cluster(self.cluster)
        cluster = _fitted(given, world)
        with pin_file(self.pins) as path:
            options = replace(self.options, pins=path)
            return compile_step(self.step, cluster, options, name=_model_name(self.step))


def _model_name(step: TrainingStep) -> str:
    """What to call the program of a step."""
    model = getattr(step.model, "func", step.model)
    return type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", "model")


def _join_job(name: str) -> torch.device:
    """Join the process group of the job, which ends with the process, if nobody has; this rank's device."""
    if dist.is_initialized():
        on_cuda = "nccl" in str(dist.get_backend())
        return torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")
    job = ExitStack()
    device = job.enter_context(process_group(name))
    atexit.register(_leave_job, job)
    return device


def _leave_job(job: ExitStack) -> None:
    """Leave with the error that ends the script, if one does: it ends the other ranks too."""
    error: BaseException | None = getattr(sys, "last_value", None)
    # Python has shown it already.
    with suppress(BaseException):
        job.__exit__(type(error) if error is not None else None, error, None)


def _fitted(cluster: Cluster, world: int) -> Cluster:
    """The cluster for a job of `world` ranks; PlanError if it has another number of devices."""
    devices = cluster.mesh.device_count
    if world == 1 and "RANK" not in os.environ:
        return on_mesh(cluster, Mesh(tuple(replace(axis, size=1) for axis in cluster.mesh.axes)))
    if devices != world:
        raise PlanError(
            f"cluster {cluster.name!r} has {devices} devices (mesh {cluster.mesh}), the job {world} ranks: start it "
            f"with torchrun --nproc-per-node {devices}, or describe a cluster of {world}"
        )
    return cluster


def _from_rank_0(asked: _Asked) -> tuple[str, Mapping[str, Any]]:
    """The program and report that rank 0 makes; if it cannot, the PlanError on every rank says why."""
    shared: list[Any] = [None]
    if not dist.is_initialized():
        shared = [_outcome(asked, 1)]
    else:
        if dist.get_rank() == 0:
            shared = [_outcome(asked, dist.get_world_size())]
        dist.broadcast_object_list(shared, src=0)
    if isinstance(shared[0], PlanError):
        raise shared[0]
    return shared[0]


def _outcome(asked: _Asked, world: int) -> tuple[str, Mapping[str, Any]] | PlanError:
    """What came of planning; the other ranks wait for it, whatever it is."""
    try:
        compiled = asked.compiled(world)
    except PlanError as error:
        return error
    except Exception as error:
        failure = PlanError(f"{type(error).__name__}: {error}")
        failure.__cause__ = error
        return failure
    return compiled.program, dict(compiled.report)
