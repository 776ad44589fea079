"""The main function of `torchrun program.py`: runs steps of a generated program on its model's example batch."""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import statistics
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from ..ir.overlap_table import measured_table
from ..ir.text_file import write_atomically
from .communicator import Communicator
from .compiled.load import compiled_stages
from .ending import await_ranks, error_text, fail, report_errors_once, stay_on_loopback, verify_launcher, watch_job
from .executor import Executor, rates_of
from .faults import ACTIVITY, FaultBounds
from .groups import job_rank
from .layer_ranges import ProfiledLayers
from .lifetime import die_with_parent
from .measured import gathered, recorder_of
from .non_finite import FiniteLosses, OnNan, skips
from .plan import Plan, PlanError, plan_hash, verify_same_plan, verify_world
from .rank_devices import agree_on_device, single_device, usual_backend
from .recording import drawn_alike
from .replicas import REPLICAS
from .saving import SaveOptions, Saving
from .stages import Stage, StepFunction, connect

_PACKAGE = __name__.split(".", maxsplit=1)[0]


@dataclass(frozen=True)
class LaunchOptions:
    """The options on the command line of a program."""

    steps: int
    seed: int
    lr: float | None
    checked: bool
    bounds: FaultBounds
    on_nan: OnNan
    compile: bool
    overlap: Path | None
    saving: SaveOptions


def parse_options(plans: Sequence[Plan], arguments: Sequence[str] | None = None) -> LaunchOptions:
    """Read a program's command line."""
    meshes = ", then ".join(str(plan.mesh) for plan in plans)
    parser = argparse.ArgumentParser(
        description=f"Train {plans[0].name} on {meshes}.",
        usage=f"torchrun --nproc-per-node {_rank_count(plans)} %(prog)s [options]",
    )
    steps_help = "number of training steps, including the steps before a resumed checkpoint (%(default)s)"
    parser.add_argument("--steps", type=int, default=5, help=steps_help)
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and random numbers (%(default)s)")
    parser.add_argument("--lr", type=float, default=None, help="learning rate (the optimizer's own)")
    parser.add_argument("--checked", action="store_true", help="compare every collective over ranks (slow)")
    for bound, (name, text) in _BOUNDS.items():
        usual = getattr(FaultBounds, bound)
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=float, default=usual, help=f"seconds {text} (%(default)s)")
    usual_nan = "skip" if skips(plans) else "raise"
    nan_help = "what to do if a loss is NaN or infinite (%(default)s)"
    parser.add_argument("--on-nan", choices=("raise", "skip", "ignore"), default=usual_nan, help=nan_help)
    compile_help = "compile the computation between collectives in the first step, as by torch.compile"
    parser.add_argument("--compile", action="store_true", help=compile_help)
    overlap_help = "measure how much communication overlaps computation, and write it to FILE for simulate --measured"
    parser.add_argument("--overlap", type=Path, metavar="FILE", help=overlap_help)
    SaveOptions.add_to(parser)
    parsed = vars(parser.parse_args(arguments))
    try:
        saving = SaveOptions.taken_from(parsed)
    except ValueError as error:
        parser.error(str(error))
    bounds = FaultBounds(**{bound: parsed.pop(name) for bound, (name, _) in _BOUNDS.items()})
    return LaunchOptions(**parsed, bounds=bounds, saving=saving)


_BOUNDS = {
    "gone": ("gone_after", "after which a rank that is dead or has left ends the job"),
    "silent": ("silent_after", "after which a rank that does not answer ends the job"),
    "start": ("start_within", "within which ranks join the job, and then reach the first step"),
    "save": ("save_within", "within which a rank must write or read its part of a checkpoint"),
}
"""The bounds of faults that a command line may change, each with its option and the option's meaning."""


@contextmanager
def process_group(
    name: str, bounds: FaultBounds = FaultBounds(), *, report_errors: bool = False
) -> Generator[torch.device, None, None]:
    """
    Create the process group of a job that torchrun started, for the time of the context, and yield the rank's device.

    A process started by other means is the only rank, and has no group. GPUs are used if every rank has its own GPU.
    Inside the context a fault of any rank ends all ranks (`watch`), and so does an error that leaves the context. The
    process ends with its parent process.

    Args:
        report_errors: whether to report an error when it ends the script, even if it never reaches the context.
    """
    if "RANK" not in os.environ:
        yield single_device()
        return
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()
    stay_on_loopback()
    # Its functions have the default group as a default argument. If it were imported after the group exists, it would
    # keep the group alive, and a gloo thread that outlives the interpreter aborts the process.
    importlib.import_module("torch.distributed.nn")
    # The parent process may have ended before `die_with_parent` took effect.
    verify_launcher(name, bounds.gone)
    store, rank, world = next(rendezvous("env://", timeout=timedelta(seconds=bounds.start)))
    # torchrun keeps its store when it restarts ranks, with the addresses of the ranks of earlier attempts.
    store = PrefixStore(f"attempt/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    await_ranks(name, store, rank, world, bounds)
    device = agree_on_device(name, store, rank, world)
    store.set_timeout(bounds.timeout)
    dist.init_process_group(usual_backend(device), store=store, rank=rank, world_size=world, timeout=bounds.timeout)
    try:
        watch = watch_job(name, bounds)
        if watch is not None and report_errors:
            report_errors_once(watch)
        try:
            yield device
        except BaseException as error:
            if watch is None or ACTIVITY.forked:
                raise
            fail(watch, error)
            watch.end()
        if watch is not None and not ACTIVITY.forked:
            watch.close()
    finally:
        if not ACTIVITY.forked:
            dist.destroy_process_group()


class LoadedStep(Protocol):
    """A model and its example batch, which a plan names."""

    @property
    def model(self) -> torch.nn.Module: ...
    @property
    def batch(self) -> Any: ...


def load_step(spec: str | None) -> LoadedStep:
    """
    Load the object with ``model`` and ``batch`` that a plan names; all ranks draw the same random numbers in it.

    Args:
        spec: name of a shipped model, ``hf:`` and an argument of `shardwright.from_hf`, or ``package.module:callable``.

    Raises:
        PlanError: the plan names no object, or it cannot be imported.
    """
    if not spec:
        raise PlanError(
            "the plan does not name the function that builds its model; create an Executor in a script of your own"
        )
    if ":" not in spec:
        return importlib.import_module(f"{_PACKAGE}.models.registry").training_step(spec)
    module, _, name = spec.partition(":")
    if module == "hf":
        with drawn_alike():
            return importlib.import_module(f"{_PACKAGE}.models.hf.step").hf_step(name)
    sys.path.append(os.getcwd())
    try:
        make = getattr(importlib.import_module(module), name)
        with drawn_alike():
            return make()
    except (ImportError, AttributeError) as error:
        raise PlanError(
            f"the plan's model is {spec!r}: {error}; start the program where that can be imported"
        ) from error


def main(plan: Plan, step_fn: StepFunction, arguments: Sequence[str] | None = None) -> None:
    """Run a program with one stage; see `launch`."""
    launch((Stage(plan, step_fn),), arguments)


def launch(stages: Sequence[Stage], arguments: Sequence[str] | None = None) -> None:
    """
    Run a program; torchrun calls this on every rank.

    Rank 0 prints the loss of each step and the median seconds of a step. An error ends the processes with exit
    code 1 and one message on stderr.

    Args:
        stages: stages of the program, in order; each rank runs its own stage.
        arguments: the command line; defaults to the command line of the process.
    """
    plans = [stage.plan for stage in stages]
    name, options = plans[0].name, parse_options(plans, arguments)
    with _errors_told(name), process_group(name, options.bounds) as device:
        verify_world(plans)
        comm = connect(stages, device, checked=options.checked)
        file = inspect.getsourcefile(stages[0].step)
        program = Path(file).read_text() if file else ""
        verify_same_plan(plan_hash(program, plans))
        if options.compile:
            stages = compiled_stages(stages, program, device)
        run(stages, comm, options, program)


@contextmanager
def _errors_told(name: str) -> Generator[None, None, None]:
    """For a single rank, print a message and exit with code 1 on errors; with more ranks the watch reports them."""
    try:
        yield
    except Exception as error:
        print(f"{name}: rank {os.environ.get('RANK', '0')}: {error_text(error)}", file=sys.stderr, flush=True)
        raise SystemExit(1) from error


def run(stages: Sequence[Stage], comm: Communicator, options: LaunchOptions, program: str) -> list[float]:
    """
    Train on the example batch.

    Returns:
        The losses, which rank 0 prints during training.
    """
    executor = Executor(stages, comm)
    layers = ProfiledLayers(executor, program)
    recorder = recorder_of(executor, compiled=options.compile) if options.overlap is not None else None
    step = load_step(executor.plan.step_spec)
    executor.initialize(step.model, options.seed)
    replicas, finite = REPLICAS.add(executor), FiniteLosses(executor, options.on_nan)
    speaks = job_rank() == 0
    rates = rates_of(executor.plan, options.lr)
    losses: list[float] = []
    seconds: list[float] = []
    saving = Saving(options.saving, executor, options.lr)
    if (done := saving.begin()) and speaks:
        print(f"resumed after step {done}" + ("" if done < options.steps else "; no step is left"), flush=True)
    for number in range(done + 1, options.steps + 1):
        start = time.perf_counter()
        # The first step also warms up caches and connections.
        is_measured = recorder is not None and (number > done + 1 or options.steps == number)
        with recorder.recording() if recorder is not None and is_measured else nullcontext(), ACTIVITY.stepping():
            if not options.compile:
                layers.follow_profiler()
            replicas.look(step.batch, rates)
            loss = executor.step(step.batch, rates)
            finite.see(number, loss, step.batch)
        replicas.took(loss)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
        if speaks:
            print(f"step {number}: loss {losses[-1]:.6f}", flush=True)
        saving.after(number, options.steps)
    if speaks and seconds:
        median = statistics.median(seconds[1:] or seconds)
        print(f"median {median:.4f} s per step on {_rank_count(executor.plans)} ranks", flush=True)
    if recorder is not None and options.overlap is not None:
        measured = gathered(recorder, executor)
        if measured is not None and speaks:
            write_atomically(options.overlap, measured.text())
            print(measured_table(measured), end="", flush=True)
    return losses


def _rank_count(plans: Sequence[Plan]) -> int:
    return sum(len(plan.ranks) for plan in plans)
