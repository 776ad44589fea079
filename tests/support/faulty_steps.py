"""What can go wrong on a rank: functions of the rank, for `faulty_jobs`. Rank 1 is at fault, in or after step 3."""

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
    """The same on every rank."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, 6, generator=generator), torch.randint(3, (ROWS,), generator=generator)


def planned(world: int = 2, **options: Any) -> DistributedStep:
    """A step on all ranks of the job, data parallel."""
    torch.manual_seed(0)
    model = options.pop("model", nn.Sequential)(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    cluster = options.pop("cluster", split_cluster(Mesh.of(gpu=world)))
    if options.pop("slow_links", False):
        # Sending anything costs more than to compute all of it everywhere.
        cluster = replace(cluster, links=(Link("gpu", 1.0, 1e-3),))
    options = {"pins": "dp", "faults": BOUNDS, "seed": None, **options}
    return sw.parallelize(model, nn.functional.cross_entropy, SGD, batch(), cluster, **with_plan(options))


def trained(step: DistributedStep, steps: int = AT) -> None:
    """Make a few steps."""
    for _ in range(steps):
        step(batch())


def fine(rank: int) -> None:
    """Nothing goes wrong; rank 1 is busy with itself for longer than a rank may be silent."""
    step = planned()
    trained(step)
    if rank == 1:
        # Nobody waits for it.
        time.sleep(1.5 * BOUNDS.silent)
    else:
        time.sleep(BOUNDS.silent)
    trained(step)


def killed(rank: int) -> None:
    """By the kernel, say."""
    step = planned()
    trained(step)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    trained(step)


def stopped(rank: int) -> None:
    """By SIGSTOP."""
    step = planned()
    trained(step)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    trained(step)


def stopped_rank_0(rank: int) -> None:
    """The rank that compares replicas, and which judges first."""
    step = planned(3)
    trained(step)
    if rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    trained(step)


def killed_rank_0(rank: int) -> None:
    """Where it holds the store of the job, nobody can ask who else is there."""
    step = planned()
    trained(step)
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    trained(step)


def hung_before_the_first_step(rank: int) -> None:
    """In code of the user's, once all is planned."""
    step = planned()
    if rank == 1:
        read_for_ever()
    trained(step)


def never_came(rank: int) -> None:
    """Stuck before it joins the job."""
    if rank == 1:
        read_for_ever()
    planned(faults=replace(BOUNDS, start=2.0))


def made_no_model(rank: int) -> None:
    """Stuck where models are made, while the other has its part of the weights."""
    planned(faults=replace(BOUNDS, start=2.0))
    if rank == 1:
        read_for_ever()
    planned()


class _Hangs(nn.Sequential):
    """On rank 0, which plans."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Never comes back."""
        read_for_ever()
        return super().forward(inputs)


def hung_planner(rank: int) -> None:
    """Rank 0 is stuck in planning, in code of the user's."""
    planned(faults=replace(BOUNDS, plan=2.0), model=_Hangs)


def stopped_while_measured(rank: int) -> None:
    """By SIGSTOP, where the job has a cluster of its own made."""
    os.environ["XDG_CACHE_HOME"] = os.environ["TMPDIR"]
    if rank == 1:
        setattr(Clock, "wait_for_all", lambda _: os.kill(os.getpid(), signal.SIGSTOP))
    planned(cluster="auto")


def hung_before_a_save(rank: int) -> None:
    """In code of the user's, where the other saves for the first time."""
    step = planned()
    trained(step)
    if rank == 1:
        read_for_ever()
    step.save(Path(os.environ["TMPDIR"], "runs"))


def hung_between_saves(rank: int) -> None:
    """In code of the user's, where the other saves for the second time."""
    step = planned()
    for _ in range(AT):
        step(batch())
        step.save(Path(os.environ["TMPDIR"], "runs"))
    if rank == 1:
        read_for_ever()
    step.save(Path(os.environ["TMPDIR"], "runs"))


def hung_in_a_save(rank: int) -> None:
    """On a disk that does not answer."""
    _save(rank, asynchronous=False)


def hung_beside_training(rank: int) -> None:
    """On such a disk, in a thread."""
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
    """In code of the user's."""
    step = planned()
    trained(step)
    if rank == 1:
        read_for_ever()
    trained(step)


def hung_finder(rank: int) -> None:
    """The rank at fault finds that first, and takes long to write it: the other would kill it meanwhile."""
    step = planned()
    trained(step)
    if rank == 1:
        logging.getLogger("shardwright").addFilter(lambda _: time.sleep(1.0) is None)
        read_for_ever()
    setattr(Judge, "see", lambda *_: None)
    trained(step)


def read_for_ever() -> None:
    """What never comes back."""
    time.sleep(1e6)


def left_early(rank: int) -> None:
    """Its script is at its end, as if all were well."""
    step = planned()
    trained(step)
    if rank == 1:
        sys.exit(0)
    trained(step)


def one_step_more(rank: int) -> None:
    """On one rank."""
    step = planned()
    trained(step, AT + rank)


def one_step_more_alone(rank: int) -> None:
    """Where no rank waits for another, nothing but the count tells."""
    step = planned(pins=None, algorithm="eliminate", compared=0, slow_links=True)
    assert "comm.all_reduce" not in step.program
    trained(step, AT + rank)


def raised(rank: int) -> None:
    """An error of the user's own."""
    step = planned()
    trained(step)
    if rank == 1:
        raise LookupError("no such sample")
    trained(step)


def out_of_memory(rank: int) -> None:
    """In code of the user's; a step says the same."""
    step = planned()
    trained(step)
    if rank == 1:
        torch.empty(1 << 60)
    trained(step)


def told_to_end(rank: int) -> None:
    """By SIGTERM, which nobody else gets."""
    step = planned()
    trained(step)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1e6)
    trained(step)


def nan_in_the_batch(rank: int) -> None:
    """In the rows of rank 1."""
    step = planned()
    trained(step)
    inputs, labels = batch()
    inputs[ROWS - 1, 2] = torch.nan
    step((inputs, labels))


def nan_of_the_step(rank: int) -> None:
    """A learning rate that is far too high."""
    step = planned()
    for _ in range(40):
        step(batch(), lr=1e30)


def nan_ignored(rank: int) -> None:
    """As the user says."""
    step = planned(on_nan="ignore")
    for _ in range(5):
        step(batch(), lr=1e30)


def _compared_soon() -> None:
    """Replicas are compared as soon as may be, whatever that costs."""
    replicas._SECONDS_APART, replicas._SHARE = 0.2, 1.0


def other_weights(rank: int) -> None:
    """Somebody writes to those of rank 1 behind the step's back."""
    _compared_soon()
    step = planned(compared=0)
    for number in range(100_000):
        step(batch())
        if rank == 1 and number == AT:
            value = next(each for each in step._executor.plan.inputs if each.name == "0.weight")
            step._executor.local(value).mul_(1.5)


def other_rate(rank: int) -> None:
    """A scheduler that has gone further on rank 1, after the steps in which everything is compared."""
    _compared_soon()
    step = planned(compared=0)
    for number in range(100_000):
        step(batch(), lr=1e-3 if number < AT or rank == 0 else 2e-3)


def other_batch(rank: int) -> None:
    """Rank 1 shuffles otherwise."""
    _compared_soon()
    step = planned(compared=0)
    inputs, labels = batch()
    for _ in range(100_000):
        step((inputs + 0.01 * rank, labels), lr=1e-6)


def slow(rank: int) -> None:
    """Rank 1 takes long for every step."""
    step = planned(faults=FaultBounds(gone=2.0))
    for _ in range(30):
        time.sleep(0.05 * rank)
        step(batch())
    time.sleep(0.6)


def refused(rank: int) -> None:
    """An error that all ranks have, and one tells."""
    planned(on_nan="leave out")


def alive_after_agent(rank: int) -> None:
    """Trains for ever, and says so: a script for torchrun."""
    step = planned()
    trained(step)
    print("training", os.getpid(), flush=True)
    trained(step, 1_000_000)


def killed_once(folder: str) -> None:
    """Trains without and with checkpoints; rank 1 is killed once, and whoever is started again resumes."""
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
    """Children that a rank has forked exit, fail, step, and load data."""
    step = planned()
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
