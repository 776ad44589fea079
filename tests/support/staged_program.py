"""
A pipeline program as lowering writes it, its model, and the same training on one device.

Three linear layers, one per stage, on 1, 2 and 1 ranks; the middle layer is split by its output. A step has two parts.
"""

from __future__ import annotations

import os
import signal

import torch
import torch.distributed as dist
from torch import nn

from shardwright import runtime as rt
from shardwright.runtime.executor import Executor
from shardwright.runtime.stages import connect

aten = torch.ops.aten

ONE, TWO = rt.Mesh.of(gpu=1), rt.Mesh.of(gpu=2)
ROWS, COLUMNS = '[{"micro"}, {}]', '[{"micro"}, {"gpu"}]'
RANKS = ((0,), (1, 2), (3,))


def holders(stage: int, sharding: str) -> rt.Holders:
    mesh = TWO if stage == 1 else ONE
    return rt.Holders(mesh.over(micro=2), RANKS[stage], sharding)


def task(part: int, columns: tuple[int, int], sender: int, *receivers: int) -> rt.Task:
    return rt.Task(part, ((3 * part, 3 * part + 3), columns), sender, receivers)


def transfer(label: str, source: rt.Holders, target: rt.Holders, *tasks: rt.Task) -> rt.Transfer:
    return rt.Transfer(label, (6, 4), "float64", source, target, tasks)


BOTH = ((0, 0), (0, 1), (1, 0), (1, 1))
"""Pairs of a part and a rank of the middle stage."""

DOWN = transfer("h0", holders(0, ROWS), holders(1, ROWS), *(task(p, (0, 4), 0, 1, 2) for p in (0, 1)))
UP = transfer("h1", holders(1, COLUMNS), holders(2, ROWS), *(task(p, (2 * r, 2 * r + 2), 1 + r, 3) for p, r in BOTH))
DOWN_GRAD = transfer(
    "g1", holders(2, ROWS), holders(1, COLUMNS), *(task(p, (2 * r, 2 * r + 2), 3, 1 + r) for p, r in BOTH)
)
UP_GRAD = transfer("g0", holders(1, ROWS), holders(0, ROWS), task(0, (0, 4), 1, 0), task(1, (0, 4), 2, 0))
SCALAR = (rt.Holders(ONE, (3,)), rt.Holders(TWO, (1, 2)), rt.Holders(ONE, (0,)))
LOSS1 = rt.Transfer("loss1", (), "float64", SCALAR[0], SCALAR[1], (rt.Task(0, (), 3, (1, 2)),))
LOSS0 = rt.Transfer("loss0", (), "float64", SCALAR[0], SCALAR[2], (rt.Task(0, (), 3, (0,)),))


def plan(stage: int, *batch: rt.Value, transfers: tuple[rt.Transfer, ...]) -> rt.Plan:
    weight = {"name": f"{stage}.weight", "shape": (4, 4), "dtype": "float64"}
    weight |= {"sharding": '[{"gpu"}, {}]'} if stage == 1 else {}
    return rt.Plan(
        name="three",
        mesh=TWO if stage == 1 else ONE,
        ranks=RANKS[stage],
        step_spec="staged_program:step_of_the_model",
        inputs=(rt.Value(role="param", **weight), *batch, rt.Value(role="learning_rate", dtype="float64")),
        outputs=(
            rt.Result(role="loss", dtype="float64"),
            rt.Result(role="grad", **weight),
            rt.Result(role="param", updates=0),
        ),
        groups=(("gpu",),) if stage == 1 else (),
        optimizer={"kind": "sgd", "lr": 0.1},
        transfers=transfers,
    )


X = rt.Value(role="batch", name="0", shape=(6, 4), dtype="float64")


def step0(comm, weight, x, lr):
    coming = [comm.receive("g0", part) for part in (0, 1)]
    for part in (0, 1):
        comm.send("h0", part, x[3 * part : 3 * part + 3] @ weight.t())
    grad = sum(comm.arrived(coming[part]).t() @ x[3 * part : 3 * part + 3] for part in (0, 1))
    loss = comm.arrived(comm.receive("loss0", 0))
    return loss, grad, aten.sub.Tensor(weight, lr * grad)


def step1(comm, weight, lr):
    inputs, grads = ([comm.receive(label, part) for part in (0, 1)] for label in ("h0", "g1"))
    grad = torch.zeros_like(weight)
    held = []
    for part in (0, 1):
        held.append(comm.arrived(inputs[part]))
        comm.send("h1", part, held[-1] @ weight.t())
    for part in (0, 1):
        back = comm.arrived(grads[part])
        whole = comm.all_reduce(back @ weight, axes=("gpu",))
        if comm.rank == part:
            comm.send("g0", part, whole)
        grad += back.t() @ held[part]
    loss = comm.arrived(comm.receive("loss1", 0))
    return loss, grad, aten.sub.Tensor(weight, lr * grad)


def step2(comm, weight, lr):
    grad, loss = torch.zeros_like(weight), torch.zeros((), dtype=torch.float64)
    for part in (0, 1):
        x = comm.arrived(comm.receive("h1", part))
        y = x @ weight.t()
        loss += y.square().sum()
        comm.send("g1", part, 2 * y @ weight)
        grad += 2 * y.t() @ x
    comm.send("loss1", 0, loss)
    comm.send("loss0", 0, loss)
    return loss, grad, aten.sub.Tensor(weight, lr * grad)


STAGES = (
    rt.Stage(plan(0, X, transfers=(DOWN, UP_GRAD, LOSS0)), step0),
    rt.Stage(plan(1, transfers=(DOWN, UP, DOWN_GRAD, UP_GRAD, LOSS1)), step1),
    rt.Stage(plan(2, transfers=(UP, DOWN_GRAD, LOSS1, LOSS0)), step2),
)


def model() -> nn.Module:
    return nn.Sequential(*(nn.Linear(4, 4, bias=False, dtype=torch.float64) for _ in range(3)))


def batch(number: int = 0) -> tuple[torch.Tensor]:
    return (torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(number)) / 4,)


class step_of_the_model:
    """The object that `step_spec` names."""

    model = staticmethod(model)
    batch = batch()


def train(steps: int) -> tuple[list[float], dict[str, torch.Tensor], torch.Tensor]:
    """Train on each rank; return the losses, the state dict and the full last gradient of the middle layer."""
    executor = Executor(STAGES, connect(STAGES, checked=True))
    executor.initialize(model, seed=3)
    losses = [executor.step(batch(i)).item() for i in range(steps)]
    return losses, executor.state_dict(), executor.gather(STAGES[1].plan.outputs[1])


def train_until_killed(rank: int, number: int) -> None:
    """Train; rank `rank` is killed in step `number`."""
    executor = Executor(STAGES, connect(STAGES))
    executor.initialize(model, seed=3)
    for i in range(number + 1):
        if i == number and dist.get_rank() == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        executor.step(batch(i))


def train_on_one_device(steps: int) -> tuple[list[float], dict[str, torch.Tensor], torch.Tensor]:
    """Train with plain PyTorch; return the same values as `train`."""
    torch.manual_seed(3)
    layers = model()
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    losses: list[float] = []
    for i in range(steps):
        layers.zero_grad()
        loss = layers(batch(i)[0]).square().sum()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    gradient = layers.get_parameter("1.weight").grad
    assert gradient is not None
    return losses, dict(layers.state_dict()), gradient


if __name__ == "__main__":
    rt.launch(STAGES)
