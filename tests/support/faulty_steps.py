"""Faults of ranks, as functions of the rank for `faulty_jobs`. Rank 1 fails by default, in or after step 3."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from plan_keywords import with_plan
from split_cluster import split_cluster
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter

import shardwright as sw
from shardwright.api.distributed_step import DistributedStep
from shardwright.ir.cluster import Link
from shardwright.ir.mesh import Mesh
from shardwright.runtime import replicas
from shardwright.runtime.faults import FaultBounds
from shardwright.runtime.judge import Judge
from shardwright.runtime.profile.clock import Clock

AT, STEPS, ROWS = 3, 6, 8
BOUNDS = FaultBounds(gone=2.0, silent=2.0)
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same batch on every rank."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, 6, generator=generator), torch.randint(3, (ROWS,), generator=generator)


def planned(world: int = 2, **options: Any) -> DistributedStep:
    """Return a data-parallel step on all ranks of the job."""
    torch.manual_seed(0)
    model = options.pop("model", nn.Sequential)(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    cluster = options.pop("cluster", split_cluster(Mesh.of(gpu=world)))
    if options.pop("slow_links", False):
        # Any communication costs more than computing everything on every rank.
        cluster = replace(cluster, links=(Link("gpu", 1.0, 1e-3),))
    options = {"pins": "dp", "faults": BOUNDS, "seed": None, **options}
    return sw.parallelize(model, nn.functional.cross_entropy, SGD, batch(), cluster, **with_plan(options))


def trained(step: DistributedStep, steps: int = AT) -> None:
    """Run a few steps."""
    for _ in range(steps):
        step(batch())


def fine(rank: int) -> None:
    """There is no fault; rank 1 is busy with other work for longer than a rank may be silent."""
    step = planned()
    trained(step)
    if rank == 1:
        # No other rank waits for rank 1 here.
        time.sleep(1.5 * BOUNDS.silent)
    else:
        time.sleep(BOUNDS.silent)
    trained(step)


def killed(rank: int) -> None:
    """Rank 1 is killed, as the kernel may do."""
    step = planned()
    trained(step)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    trained(step)


def stopped(rank: int) -> None:
    """Rank 1 is stopped by SIGSTOP."""
    step = planned()
    trained(step)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    trained(step)


def stopped_rank_0(rank: int) -> None:
    """Rank 0 is stopped: the rank that compares replicas and is the first to judge others."""
    step = planned(3)
    trained(step)
    if rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    trained(step)


def killed_rank_0(rank: int) -> None:
    """Rank 0 is killed; if it holds the store of the job, the others cannot ask which ranks are alive."""
    step = planned()
    trained(step)
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    trained(step)


def hung_before_the_first_step(rank: int) -> None:
    """Rank 1 hangs in user code, after planning."""
    step = planned()
    if rank == 1:
        read_for_ever()
    trained(step)


def never_came(rank: int) -> None:
    """Rank 1 hangs before it joins the job."""
    if rank == 1:
        read_for_ever()
    planned(faults=replace(BOUNDS, start=2.0))


def made_no_model(rank: int) -> None:
    """Rank 1 hangs before it makes its model, while the other rank already has its part of the weights."""
    planned(faults=replace(BOUNDS, start=2.0))
    if rank == 1:
        read_for_ever()
    planned()


class _Hangs(nn.Sequential):
    """A model that hangs in `forward`, on rank 0, which plans."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Hang."""
        read_for_ever()
        return super().forward(inputs)


def hung_planner(rank: int) -> None:
    """Rank 0 hangs while planning, in user code."""
    planned(faults=replace(BOUNDS, plan=2.0), model=_Hangs)


def stopped_while_measured(rank: int) -> None:
    """Rank 1 is stopped by SIGSTOP while the job measures its cluster."""
    os.environ["XDG_CACHE_HOME"] = os.environ["TMPDIR"]
    if rank == 1:
        setattr(Clock, "wait_for_all", lambda _: os.kill(os.getpid(), signal.SIGSTOP))
    planned(cluster="auto")


def hung_before_a_save(rank: int) -> None:
    """Rank 1 hangs in user code while the other rank saves for the first time."""
    step = planned()
    trained(step)
    if rank == 1:
        read_for_ever()
    step.save(Path(os.environ["TMPDIR"], "runs"))


def hung_between_saves(rank: int) -> None:
    """Rank 1 hangs in user code while the other rank saves again."""
    step = planned()
    for _ in range(AT):
        step(batch())
        step.save(Path(os.environ["TMPDIR"], "runs"))
    if rank == 1:
        read_for_ever()
    step.save(Path(os.environ["TMPDIR"], "runs"))


def hung_in_a_save(rank: int) -> None:
    """Rank 1 hangs in a save, on a disk that does not answer."""
    _save(rank, asynchronous=False)


def hung_beside_training(rank: int) -> None:
    """Rank 1 hangs in an asynchronous save, in a thread, on a disk that does not answer."""
    _save(rank, asynchronous=True)


def _save(rank: int, *, asynchronous: bool) -> None:
    step = planned(faults=replace(BOUNDS, save=2.0))
    trained(step)
    if rank == 1:
        setattr(FileSystemWriter, "write_data", lambda *_: read_for_ever())
    step.save(Path(os.environ["TMPDIR"], "runs"), asynchronous=asynchronous)
    trained(step)
    step.wait_saved()


def hung(rank: int) -> None:
    """Rank 1 hangs in user code."""
    step = planned()
    trained(step)
    if rank == 1:
        read_for_ever()
    trained(step)


def hung_finder(rank: int) -> None:
    """Rank 1 hangs, detects it first and takes long to log it; the other rank would kill it meanwhile."""
    step = planned()
    trained(step)
    if rank == 1:
        logging.getLogger("shardwright").addFilter(lambda _: time.sleep(1.0) is None)
        read_for_ever()
    setattr(Judge, "see", lambda *_: None)
    trained(step)


def read_for_ever() -> None:
    """Sleep for ever."""
    time.sleep(1e6)


def left_early(rank: int) -> None:
    """The script of rank 1 ends early with exit code 0."""
    step = planned()
    trained(step)
    if rank == 1:
        sys.exit(0)
    trained(step)


def one_step_more(rank: int) -> None:
    """Rank 1 trains one step more."""
    step = planned()
    trained(step, AT + rank)


def one_step_more_alone(rank: int) -> None:
    """Rank 1 trains one step more in a program without communication: only the number of steps reveals it."""
    step = planned(pins=None, algorithm="eliminate", compared=0, slow_links=True)
    assert "comm.all_reduce" not in step.program
    trained(step, AT + rank)


def raised(rank: int) -> None:
    """Rank 1 raises an error in user code."""
    step = planned()
    trained(step)
    if rank == 1:
        raise LookupError("no such sample")
    trained(step)


def out_of_memory(rank: int) -> None:
    """Rank 1 runs out of memory in user code; a step reports the error in the same way."""
    step = planned()
    trained(step)
    if rank == 1:
        torch.empty(1 << 60)
    trained(step)


def told_to_end(rank: int) -> None:
    """Only rank 1 gets SIGTERM."""
    step = planned()
    trained(step)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1e6)
    trained(step)


def nan_in_the_batch(rank: int) -> None:
    """The rows of rank 1 have a NaN."""
    step = planned()
    trained(step)
    inputs, labels = batch()
    inputs[ROWS - 1, 2] = torch.nan
    step((inputs, labels))


def nan_of_the_step(rank: int) -> None:
    """The learning rate is far too high, so that the step computes NaN."""
    step = planned()
    for _ in range(40):
        step(batch(), lr=1e30)


def nan_ignored(rank: int) -> None:
    """The learning rate is far too high, and the user has asked to ignore NaN."""
    step = planned(on_nan="ignore")
    for _ in range(5):
        step(batch(), lr=1e30)


def _compared_soon() -> None:
    """Compare replicas as often as possible, at any cost."""
    replicas._SECONDS_APART, replicas._SHARE = 0.2, 1.0


def other_weights(rank: int) -> None:
    """The weights of rank 1 are overwritten outside the step."""
    _compared_soon()
    step = planned(compared=0)
    for number in range(100_000):
        step(batch())
        if rank == 1 and number == AT:
            value = next(each for each in step._executor.plan.inputs if each.name == "0.weight")
            step._executor.local(value).mul_(1.5)


def other_rate(rank: int) -> None:
    """The learning rate of rank 1 differs after the first steps, whose values are all compared."""
    _compared_soon()
    step = planned(compared=0)
    for number in range(100_000):
        step(batch(), lr=1e-3 if number < AT or rank == 0 else 2e-3)


def other_batch(rank: int) -> None:
    """Rank 1 has another batch."""
    _compared_soon()
    step = planned(compared=0)
    inputs, labels = batch()
    for _ in range(100_000):
        step((inputs + 0.01 * rank, labels), lr=1e-6)


def slow(rank: int) -> None:
    """Rank 1 is slow in every step."""
    step = planned(faults=FaultBounds(gone=2.0))
    for _ in range(30):
        time.sleep(0.05 * rank)
        step(batch())
    time.sleep(0.6)


def refused(rank: int) -> None:
    """All ranks raise the same error, and one of them prints it."""
    planned(on_nan="leave out")


def alive_after_agent(rank: int) -> None:
    """Train for ever and print it: a script for torchrun."""
    step = planned()
    trained(step)
    print("training", os.getpid(), flush=True)
    trained(step, 1_000_000)


def killed_once(folder: str) -> None:
    """Train without and with checkpoints; rank 1 is killed once, and the restarted ranks resume."""
    attempt, steps = os.environ["TORCHELASTIC_RESTART_COUNT"], 8
    if attempt == "0":
        whole = planned(seed=0)
        for number in range(steps):
            _say(whole.rank, f"whole {number + 1}", whole(batch()))
    step = planned(seed=0)
    step.resume(folder)
    while step.steps < steps:
        loss = step(batch())
        _say(step.rank, f"attempt {attempt} {step.steps}", loss)
        step.save(folder)
        if attempt == "0" and step.rank == 1 and step.steps == AT:
            os.kill(os.getpid(), signal.SIGKILL)


def _say(rank: int, what: str, loss: torch.Tensor) -> None:
    if rank == 0:
        print(what, float(loss.detach()).hex(), flush=True)


def forks() -> None:
    """Fork children of a rank that exit, fail, step and load data."""
    # No rank is silent by a fault here, and one may be slow to fork on a busy machine.
    step = planned(faults=FaultBounds(gone=BOUNDS.gone, silent=30.0))
    trained(step)
    for child in (lambda: sys.exit(3), lambda: {}["no such sample"], lambda: step(batch())):
        if not (pid := os.fork()):
            child()
            sys.exit(0)
        print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    samples = [*zip(*batch(), strict=True)]
    for rows in step.loader(cast("Any", samples), num_workers=2, multiprocessing_context="fork"):
        step(rows)
    trained(step)
    print("done", flush=True)
