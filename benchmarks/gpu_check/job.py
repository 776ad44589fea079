"""The code of a stage's processes: they join the job and run the cases of the stage together."""

from __future__ import annotations

import faulthandler
import os
import signal
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from shardwright.ir.mesh import Mesh
from shardwright.runtime.ending import fail, stay_on_loopback, watch_job
from shardwright.runtime.faults import FaultBounds
from shardwright.runtime.launch import process_group
from shardwright.runtime.lifetime import die_with_parent
from shardwright.runtime.profile.clock import Clock

from .results import Journal
from .settings import Settings
from .stages import Stage

if TYPE_CHECKING:
    from shardwright.api.variants import Connections

NAME = "gpu-check"
BOUNDS = FaultBounds(silent=180.0, slow=0.0)
"""Long bounds, since rank 0 computes references, and ranks plan, while others wait."""


@dataclass(frozen=True)
class Job:
    """One rank of a stage. All ranks call the methods of the clock in the same order."""

    settings: Settings
    device: torch.device
    clock: Clock

    @cached_property
    def connections(self) -> Connections:
        """Return the connections of all programs of the stage, which run one by one and share communicators."""
        from shardwright.api.variants import Connections

        return Connections(self.device)

    @property
    def rank(self) -> int:
        return self.clock.rank

    @property
    def world(self) -> int:
        return self.clock.world

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def mesh(self) -> Mesh:
        return Mesh.of(gpu=self.world)

    def grid(self) -> Mesh | None:
        """Return a mesh of hosts and their ranks, or of 2 by the rest, or None if the ranks cannot be divided so."""
        local = int(os.environ.get("LOCAL_WORLD_SIZE", self.world))
        outer = self.world // local if self.world > local > 1 and self.world % local == 0 else 2
        return Mesh.of(node=outer, gpu=self.world // outer) if self.world > 3 and self.world % outer == 0 else None

    def divide(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run each task on one rank, and return all results on all ranks; results are pickled."""
        own = {at: task() for at, task in enumerate(tasks) if at % self.world == self.rank}
        results = {at: result for share in self.clock.everyone(own) for at, result in share.items()}
        return [results[at] for at in range(len(tasks))]

    def settle(self) -> None:
        """Wait until the device has finished all queued work."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def file(self, *parts: str) -> Path:
        """Return a path in the report's folder, and create its parent folder."""
        path = self.settings.out.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def run(settings: Settings, stage: Stage) -> None:
    """Run the cases of a stage that its journal lacks, as one rank."""
    faulthandler.register(signal.SIGUSR1)
    journal = Journal.of(settings.out, stage.name)
    if settings.cpu or not torch.cuda.is_available():
        torch.set_num_threads(1)
    joined = process_group(NAME, BOUNDS) if settings.share_gpu == 1 else _sharing(settings.share_gpu)
    with joined as device:
        try:
            _run_cases(Job(settings, device, Clock(device)), stage, journal)
        except Exception:
            # The job's message only has the first line.
            traceback.print_exc()
            raise


def _run_cases(job: Job, stage: Stage, journal: Journal) -> None:
    work = stage.load()(job)
    done = [row.case for row in journal.rows()] if job.rank == 0 else []
    done = job.clock.everyone(done)[0]
    remaining = [case for case in work.cases if case not in done]
    work.prepare(remaining)
    for case in remaining:
        if job.rank == 0:
            journal.begin(case)
        row = work.run(case)
        if job.rank == 0:
            journal.add(row)
    job.clock.wait_for_all()


@contextmanager
def _sharing(ranks_each: int) -> Generator[torch.device, None, None]:
    """Join the job if several ranks share a GPU, which the library's own launch does not support."""
    if not torch.cuda.is_available():
        raise RuntimeError("--share-gpu: this node has no GPU that torch can use; run without --share-gpu")
    die_with_parent()
    stay_on_loopback()
    index = int(os.environ["LOCAL_RANK"]) // ranks_each
    if index >= torch.cuda.device_count():
        raise RuntimeError(f"--share-gpu {ranks_each}: needs GPU {index}, found {torch.cuda.device_count()} GPUs")
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    store, rank, world = next(rendezvous("env://", timeout=timedelta(seconds=BOUNDS.start)))
    dist.init_process_group("nccl", store=store, rank=rank, world_size=world, timeout=BOUNDS.timeout)
    watch = watch_job(NAME, BOUNDS)
    try:
        yield device
    except BaseException as error:
        if watch is None:
            raise
        fail(watch, error)
        watch.end()
    if watch is not None:
        watch.close()
    dist.destroy_process_group()
