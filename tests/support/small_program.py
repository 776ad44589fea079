"""A program as lowering writes it, its model, and the same training on one device."""

from __future__ import annotations

import torch
from torch import nn

from shardwright import runtime as rt
from shardwright.runtime.executor import Executor
from shardwright.runtime.plan import plan_hash, verify_same_plan

aten = torch.ops.aten

MESH = rt.Mesh.of(dp=2)
WEIGHT = {
    "name": "weight",
    "shape": (5, 4),
    "dtype": "float64",
    "sharding": '[{"dp"}, {}], offsets={0: [0, 4, 5]}',
}
BIAS = {"name": "bias", "shape": (5,), "dtype": "float64"}
PLAN = rt.Plan(
    name="linear",
    mesh=MESH,
    step_spec="small_program:step_of_the_model",
    inputs=(
        rt.Value(role="param", **WEIGHT),
        rt.Value(role="state", state="exp_avg", **WEIGHT),
        rt.Value(role="state", state="exp_avg_sq", **WEIGHT),
        rt.Value(role="param", **BIAS),
        rt.Value(role="state", state="momentum_buffer", **BIAS),
        rt.Value(role="constant", name="two", shape=(2, 2), dtype="float64", value=(1, 2, 3, 4)),
        rt.Value(role="step_count"),
        rt.Value(role="batch", name="0", shape=(9, 4), dtype="float64", sharding='[{"dp"}, {}]'),
        rt.Value(role="learning_rate", dtype="float64"),
    ),
    outputs=(
        rt.Result(role="loss"),
        rt.Result(role="grad", **WEIGHT),
        rt.Result(role="param", updates=0),
        rt.Result(role="state", updates=1),
        rt.Result(role="state", updates=2),
        rt.Result(role="param", updates=3),
        rt.Result(role="state", updates=4),
        rt.Result(role="step_count", updates=6),
    ),
    groups=(("dp",),),
    optimizer={"kind": "adamw", "lr": 0.01},
)


def step(comm, weight, exp_avg, exp_avg_sq, bias, momentum, two, count, x, lr):
    count = rt.increment(count)
    w = comm.all_gather(weight, dim=0, axes=("dp",), sizes=(4, 1))
    y = aten.addmm.default(bias, x, aten.t.default(w))
    loss = comm.all_reduce(aten.sum.default(y * y), axes=("dp",), donate=True)
    grad = aten.mul.Tensor(y, 2)
    token = comm.start("all_reduce", (grad.sum(0),), axes=("dp",))
    grad_weight = comm.reduce_scatter(grad.t() @ x, dim=0, axes=("dp",), sizes=(4, 1))
    (grad_bias,) = comm.wait(token)
    weight, exp_avg, exp_avg_sq = rt.adamw_(
        weight, grad_weight, exp_avg, exp_avg_sq, count, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01
    )
    bias, momentum = rt.sgd_(bias, grad_bias, momentum, count, lr, momentum=0.9)
    return loss, grad_weight, weight, exp_avg, exp_avg_sq, bias, momentum, count


def model() -> nn.Module:
    return nn.Linear(4, 5, dtype=torch.float64)


def batch(number: int = 0) -> tuple[torch.Tensor]:
    return (torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(number)),)


class step_of_the_model:
    """The object that `step_spec` names."""

    model = staticmethod(model)
    batch = batch()


def train(steps: int) -> tuple[list[float], dict[str, torch.Tensor], torch.Tensor]:
    """Train on each rank; return the losses, the state dict and the full last gradient of the weight."""
    comm = rt.Communicator(MESH, PLAN.process_groups())
    executor = Executor([rt.Stage(PLAN, step)], comm)
    executor.initialize(model, seed=3)
    losses = [executor.step(batch(i)).item() for i in range(steps)]
    gradient = executor.gather(PLAN.outputs[1])
    count = executor.gather(PLAN.outputs[-1])
    assert count.item() == steps
    return losses, executor.state_dict(), gradient


def train_on_one_device(steps: int) -> tuple[list[float], dict[str, torch.Tensor], torch.Tensor]:
    """Train with plain PyTorch; return the same values as `train`."""
    torch.manual_seed(3)
    linear = model()
    optimizers = [
        torch.optim.AdamW([linear.get_parameter("weight")], lr=0.01),
        torch.optim.SGD([linear.get_parameter("bias")], lr=0.01, momentum=0.9),
    ]
    losses: list[float] = []
    for i in range(steps):
        linear.zero_grad()
        loss = linear(batch(i)[0]).square().sum()
        loss.backward()
        losses.append(loss.item())
        for optimizer in optimizers:
            optimizer.step()
    gradient = linear.get_parameter("weight").grad
    assert gradient is not None
    return losses, dict(linear.state_dict()), gradient


def compare_plans() -> str:
    """Compare programs that differ between the ranks; return the error."""
    comm = rt.Communicator(MESH, PLAN.process_groups())
    try:
        verify_same_plan(plan_hash(f"program of rank {comm.rank}", [PLAN]))
    except RuntimeError as error:
        return str(error)
    return "nothing"


if __name__ == "__main__":
    rt.main(PLAN, step)
