"""
Sides of a comparison: programs of ours and torch's own parallelism, which take steps in turn in the same processes.

The sides take their turns in random order, so that noise of the machine affects all equally.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from _report import ratio
from torch import nn

from shardwright.api.training_step import TrainingStep
from shardwright.lowering.capture.calling import batch_items
from shardwright.lowering.codegen.load_program import load_text
from shardwright.runtime import Executor, Stage, run_ranks
from shardwright.runtime.compiled.load import compiled_stages
from shardwright.runtime.stages import connect

T = TypeVar("T")
CPU = torch.device("cpu")
Run = Callable[[], Any]
"""A function that takes one step."""


class Took(NamedTuple):
    """The wall seconds of a call until all ranks are done, and the processor seconds of all threads of this rank."""

    seconds: float
    processor: float


def by_round(sides: Sequence[Callable[[], T]], rounds: int, warm: int = 0) -> list[list[T]]:
    """
    Call every side once per round, each round in another order, and return the results of the sides by round.

    `warm` rounds before these are not timed.
    """
    generator, order, rows = random.Random(0), list(range(len(sides))), list[list[T]]()
    for number in range(-warm, rounds):
        generator.shuffle(order)
        results = {index: sides[index]() for index in order}
        if number >= 0:
            rows.append([results[index] for index in range(len(sides))])
    return rows


def timed(run: Run, count: int = 1, inside: Callable[[], AbstractContextManager[Any]] = nullcontext) -> Took:
    """Time `count` calls from one barrier of all ranks to the next, in a context that is made for them."""
    with inside():
        dist.barrier()
        start, used = time.perf_counter(), time.process_time()
        for _ in range(count):
            run()
        dist.barrier()
        return Took(time.perf_counter() - start, time.process_time() - used)


def busy_seconds() -> float:
    """Return the seconds that all processors of the machine have been busy since it started."""
    user, nice, system, _, _, *rest = map(int, Path("/proc/stat").read_text().split("\n", maxsplit=1)[0].split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def until_all_are_done(run: Run) -> float:
    """Return the seconds of a call from a barrier until the last rank is done, equal on all ranks."""
    dist.barrier()
    start = time.perf_counter()
    run()
    took = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item()


def executor_of(step: TrainingStep, text: str, name: str = "program.py", *, compiles: bool = False) -> Executor:
    """Return this rank's executor of a program on the CPU, with the weights of seed 0."""
    stages = [Stage(*stage) for stage in load_text(text, name)]
    if compiles:
        stages = compiled_stages(stages, text, CPU)
    executor = Executor(stages, connect(stages, CPU))
    executor.initialize(step.model, 0)
    return executor


@dataclass(frozen=True)
class Ours:
    """A program of ours, whose computation torch may compile."""

    text: str
    compiles: bool = False

    def start(self, step: TrainingStep) -> Run:
        """Return a function that takes one step on this rank."""
        executor, batch = executor_of(step, self.text, compiles=self.compiles), batch_items(step.batch)
        return lambda: executor.step(batch)


@dataclass(frozen=True)
class Peer:
    """One of `PEERS`, which torch may compile."""

    name: str
    compiles: bool = False

    def start(self, step: TrainingStep, device: torch.device = CPU) -> Run:
        """Return a function that takes one step on this rank, and returns the loss of the rank's part of the batch."""
        torch.manual_seed(0)
        model = step.build_model().to(device)
        items, (count, rank) = batch_items(step.batch).values(), (dist.get_world_size(), dist.get_rank())
        if self.name not in ("eager", "tensor parallel"):
            items = (item.chunk(count)[rank] for item in items)
        model = PEERS[self.name](model, step, device, self.compiles)
        # FSDP2 has its own policy for mixed precision.
        local = replace(step, precision=None) if self.name == "fsdp2" else step
        return _steps_of(local, model, tuple(item.to(device) for item in items), device)


def _steps_of(step: TrainingStep, model: nn.Module, batch: tuple[torch.Tensor, ...], device: torch.device) -> Run:
    from torch.distributed.tensor import DTensor

    # Multi-tensor updates refuse a mix of DTensors and other tensors, so each kind gets its own optimizer.
    parameters = list(model.parameters())
    kinds = [[p for p in parameters if isinstance(p, DTensor) == sharded] for sharded in (False, True)]
    optimizers = [step.optimizer(kind) for kind in kinds if kind]

    def run() -> torch.Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss, _ = step.compute(model, batch, device.type)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss

    return run


def _blocks(model: nn.Module) -> list[Any]:
    return list(getattr(model, "h", []) or getattr(model, "layers", []))


def _compile(modules: Iterable[nn.Module], compiles: bool) -> None:
    for module in modules if compiles else ():
        module.compile()


def eager(model: nn.Module, step: TrainingStep, device: torch.device, compiles: bool) -> nn.Module:
    """Return the model itself, for training on one device."""
    _compile([model], compiles)
    return model


def ddp(model: nn.Module, step: TrainingStep, device: torch.device, compiles: bool) -> nn.Module:
    """Return DistributedDataParallel around the model, which is compiled as a whole."""
    wrapped = nn.parallel.DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    _compile([wrapped], compiles)
    return wrapped


def fsdp2(model: nn.Module, step: TrainingStep, device: torch.device, compiles: bool) -> nn.Module:
    """Return the model with `fully_shard` on every block and on the rest; blocks are compiled one by one."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh, blocks, policy = (
        init_device_mesh(device.type, (dist.get_world_size(),)),
        _blocks(model),
        MixedPrecisionPolicy(),
    )
    if step.precision is not None:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    _compile(blocks or [model], compiles)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def tensor_parallel(model: nn.Module, step: TrainingStep, device: torch.device, compiles: bool) -> nn.Module:
    """
    Return the model with Megatron's layout of every block, by `parallelize_module`. All else is replicated.

    Raises ValueError if the number of heads is not a multiple of the number of ranks.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    ranks, columns, rows = dist.get_world_size(), ("attn.q", "attn.k", "attn.v", "mlp.up"), ("attn.out", "mlp.down")
    mesh = init_device_mesh(device.type, (ranks,))
    for block in _blocks(model):
        if block.attn.heads % ranks:
            raise ValueError(f"torch's tensor parallelism cannot split {block.attn.heads} heads over {ranks} ranks")
        block.attn.heads //= ranks
        styles: dict[str, Any] = {name: ColwiseParallel() for name in columns}
        styles |= {name: RowwiseParallel() for name in rows}
        parallelize_module(block, mesh, styles)
    _compile([model], compiles)
    return model


PEERS: dict[str, Callable[[nn.Module, TrainingStep, torch.device, bool], nn.Module]] = {
    "eager": eager,
    "ddp": ddp,
    "fsdp2": fsdp2,
    "tensor parallel": tensor_parallel,
}
"""Functions that wrap a model for a step on a device, and have torch compile it or not, by name of the peer."""


def _take_turns(make: Callable[[], TrainingStep], sides: Sequence[Ours | Peer], rounds: int) -> list[list[Took]]:
    torch.set_num_threads(1)
    step = make()
    runs = [side.start(step) for side in sides]
    return by_round([lambda run=run: timed(run) for run in runs], rounds, warm=5)


def compared(
    make: Callable[[], TrainingStep], ranks: int, sides: Sequence[Ours | Peer], rounds: int
) -> tuple[list[list[float]], list[list[float]]]:
    """
    Return the seconds of the steps of each side, and the processor seconds of all ranks.

    Ranks import the function that makes the step by name.
    """
    by_rank = run_ranks(_take_turns, ranks, make, sides, rounds, timeout=3000)
    seconds = [[row[at].seconds for row in by_rank[0]] for at in range(len(sides))]
    turns = list(zip(*by_rank, strict=True))
    return seconds, [[sum(row[at].processor for row in turn) for turn in turns] for at in range(len(sides))]


def blocks_in_turn(
    run: Run, sides: Sequence[Callable[[], AbstractContextManager[Any]]], pairs: int, seconds: float
) -> tuple[int, list[list[float]], list[list[float]]]:
    """
    Time blocks of steps in turn on every rank of a job, each side inside its context, for about `seconds` a block.

    Return the number of steps of a block, and the seconds and processor seconds of the blocks of each side.
    """
    warm = 15
    timed(run, warm)
    step_seconds = torch.tensor(timed(run, warm).seconds / warm)
    dist.broadcast(step_seconds, 0)
    steps = max(5, round(seconds / step_seconds.item()))
    rows = by_round([lambda side=side: timed(run, steps, side) for side in sides], pairs)
    took = list(zip(*rows, strict=True))
    return steps, [[t.seconds for t in side] for side in took], [[t.processor for t in side] for side in took]


def relaunch_on(ranks: int) -> None:
    """Run the script again as the ranks of a job by torchrun and exit, unless this process is one of these ranks."""
    if "RANK" not in os.environ:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        sys.exit(subprocess.run([*torchrun, *sys.argv]).returncode)


def middle_ms(seconds: Sequence[float], steps: int = 1) -> float:
    """Return the median in milliseconds of a step, from the seconds of blocks of steps."""
    return 1e3 * statistics.median(seconds) / steps


def control_columns(again: Sequence[float], peer: Sequence[float], name: str = "A/A") -> dict[str, float]:
    """Return the columns of a control: the ratio of a second copy of a side to the first, with its interval."""
    control = ratio(again, peer)
    return {name: control["ratio"], f"{name} low": control["low"], f"{name} high": control["high"]}
