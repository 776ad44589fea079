"""What `torchrun program.py` runs: the steps of a generated program on its model's example batch."""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .communicator import Communicator
from .executor import Executor, StepFunction
from .groups import TIMEOUT
from .plan import Plan, PlanError, plan_hash, verify_same_plan, verify_world
from .spawn import is_lost_peer

_PACKAGE = __name__.split(".", maxsplit=1)[0]


@dataclass(frozen=True)
class Options:
    """What the command line of a program says."""

    steps: int
    seed: int
    lr: float | None
    checked: bool


def parse_options(plan: Plan, arguments: Sequence[str] | None = None) -> Options:
    """Read a program's command line."""
    parser = argparse.ArgumentParser(
        description=f"Train {plan.name} on {plan.mesh}.",
        usage=f"torchrun --nproc-per-node {plan.mesh.device_count} %(prog)s [options]",
    )
    parser.add_argument("--steps", type=int, default=5, help="how many training steps (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (%(default)s)")
    parser.add_argument("--lr", type=float, default=None, help="learning rate (the optimizer's own)")
    parser.add_argument("--checked", action="store_true", help="compare every collective over ranks (slow)")
    return Options(**vars(parser.parse_args(arguments)))


@contextmanager
def process_group() -> Iterator[torch.device]:
    """
    The process group of a job that torchrun started, for as long as the context lasts, and the rank's device.

    Started without torchrun there is no group, and one rank. CUDA devices are used where each rank has one.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    on_cuda = torch.cuda.is_available() and torch.cuda.device_count() >= local_world
    device = torch.device("cuda", local_rank) if on_cuda else torch.device("cpu")
    if on_cuda:
        torch.cuda.set_device(device)
    if "RANK" not in os.environ:
        yield device
        return
    # Its functions have the default group as a default argument. Imported after the group is made, it would keep
    # the group alive, and a thread of gloo that meets a finished interpreter aborts the process.
    importlib.import_module("torch.distributed.nn")
    dist.init_process_group("nccl" if on_cuda else "gloo", timeout=TIMEOUT)
    try:
        yield device
    finally:
        dist.destroy_process_group()


def load_step(spec: str | None) -> Any:
    """
    The object with ``model`` and ``batch`` that a plan names.

    Args:
        spec: a shipped model's name, or ``package.module:callable``.

    Raises:
        PlanError: there is none, or it cannot be imported.
    """
    if not spec:
        raise PlanError("the plan does not say where its model comes from: use an Executor of your own")
    if ":" not in spec:
        return importlib.import_module(f"{_PACKAGE}.models.registry").training_step(spec)
    module, _, name = spec.partition(":")
    sys.path.append(os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError) as error:
        raise PlanError(
            f"the plan's model is {spec!r}: {error}; start the program where that can be imported"
        ) from error


def main(plan: Plan, step_fn: StepFunction, arguments: Sequence[str] | None = None) -> None:
    """
    Run a program: what torchrun calls on every rank.

    Rank 0 prints the loss of each step and the median seconds of a step. An error ends the process with
    exit code 1 and one message on stderr.

    Args:
        plan: the program's plan.
        step_fn: its function.
        arguments: the command line; None is that of the process.
    """
    options = parse_options(plan, arguments)
    try:
        with process_group() as device:
            verify_world(plan)
            comm = Communicator(plan.mesh, plan.process_groups(), device, checked=options.checked)
            verify_same_plan(plan_hash(_source(step_fn), plan), comm)
            run(plan, step_fn, comm, options)
    except Exception as error:
        print(f"{plan.name}: rank {os.environ.get('RANK', '0')}: {_told(error)}", file=sys.stderr, flush=True)
        sys.exit(1)


def run(plan: Plan, step_fn: StepFunction, comm: Communicator, options: Options) -> list[float]:
    """Train on the example batch; the losses, which rank 0 prints as they come."""
    step = load_step(plan.step_spec)
    executor = Executor(plan, step_fn, comm)
    executor.initialize(step.model, options.seed)
    losses: list[float] = []
    seconds: list[float] = []
    for number in range(1, options.steps + 1):
        start = time.perf_counter()
        losses.append(executor.step(step.batch, options.lr).item())
        seconds.append(time.perf_counter() - start)
        if comm.rank == 0:
            print(f"step {number}: loss {losses[-1]:.6f}", flush=True)
    if comm.rank == 0 and seconds:
        # The first step also warms caches and connections up.
        median = statistics.median(seconds[1:] or seconds)
        print(f"median {median:.4f} s per step on {comm.mesh.device_count} ranks", flush=True)
    return losses


def _source(step_fn: StepFunction) -> str:
    """The text of the program's file."""
    file = inspect.getsourcefile(step_fn)
    return Path(file).read_text() if file else ""


def _told(error: BaseException) -> str:
    if is_lost_peer(error):
        return f"lost another rank, whose own message says why ({str(error).splitlines()[0]})"
    return str(error) if isinstance(error, PlanError) else f"{type(error).__name__}: {error}"
