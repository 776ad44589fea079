"""`parallelize` on ranks with equal or different arguments: results and errors by rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from plan_keywords import with_plan
from split_cluster import split_cluster
from torch import nn
from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]
from torch.utils.data import DataLoader, TensorDataset

import shardwright as sw
from shardwright.api.distributed_step import DistributedStep
from shardwright.api.module_guard import StaleModuleError
from shardwright.ir.mesh import Mesh
from shardwright.runtime.batches import ShareSampler
from shardwright.runtime.plan import PlanError

ROWS, STEPS = 8, 6
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
LOSS = nn.functional.cross_entropy


def dataset() -> TensorDataset:
    """Return the same data set on every rank."""
    generator = torch.Generator().manual_seed(0)
    rows = STEPS * ROWS
    return TensorDataset(torch.randn(rows, 6, generator=generator), torch.randint(3, (rows,), generator=generator))


def mlp(seed: int) -> nn.Module:
    """Return a model with a buffer and with weights drawn from a seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def planned(model: nn.Module | Callable[[], nn.Module], **options: Any) -> DistributedStep:
    """Return the step of a model on all ranks."""
    cluster = split_cluster(Mesh.of(gpu=dist.get_world_size()))
    return sw.parallelize(
        model, LOSS, SGD, dataset()[:ROWS], cluster, **with_plan({"algorithm": "eliminate", **options})
    )


def trained_on_one_device(model: nn.Module, order: list[int]) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train on rows in an order; return the losses and the final state dict."""
    optimizer, data, losses = SGD(model.parameters()), dataset(), list[float]()
    for at in range(0, len(order), ROWS):
        inputs, labels = data[order[at : at + ROWS]]
        optimizer.zero_grad()
        loss = LOSS(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def in_groups_of_a_script(folder: str) -> dict[str, list[float]]:
    """Return the losses in process groups that a script makes with other arguments than this package, by backend."""
    rank, world = dist.get_rank(), dist.get_world_size()
    losses: dict[str, list[float]] = {}
    for backend in ("", "cpu:gloo,cuda:gloo"):
        dist.barrier()  # a rank that leaves while its peer still connects makes the peer fail
        dist.destroy_process_group()
        store = FileStore(f"{folder}/{len(losses)}", world)
        dist.init_process_group(backend or None, store=store, rank=rank, world_size=world)
        step = planned(mlp(seed=0))
        losses[backend] = [step(dataset()[at : at + ROWS]).item() for at in range(0, STEPS * ROWS, ROWS)]
    return losses


def weights_of_rank_0() -> list[str]:
    """Train from different weights on each rank, each rank loading its own rows; return the faults."""
    model_here = mlp(seed=dist.get_rank())
    before = torch.get_rng_state()
    step = planned(model_here)
    wrong: list[str] = []
    if not torch.equal(before, torch.get_rng_state()):
        wrong.append("the user's random numbers were changed")
    loader = step.loader(dataset())
    losses = [step(batch).item() for batch in loader]
    order = ShareSampler(len(dataset()), ROWS, range(ROWS))._order()
    expected, state = trained_on_one_device(mlp(seed=0), order)
    if not torch.allclose(torch.tensor(losses), torch.tensor(expected), rtol=1e-5):
        wrong.append(f"losses {losses}, on one device {expected}")
    try:
        model_here.state_dict()
        wrong.append("the module can be read")
    except StaleModuleError:
        pass
    with step.module() as model:
        found = model.state_dict()
        outside = {name: value.clone() for name, value in found.items()}
    for name, value in state.items():
        if name.endswith("num_batches_tracked"):
            continue
        for source, given in (("module", outside), ("state_dict", step.state_dict())):
            if not torch.allclose(given[name], value, rtol=1e-4, atol=1e-5):
                wrong.append(f"{source}: {name} differs by {(given[name] - value).abs().max()}")
    return wrong


def refusal(case: str) -> str:
    """Return the error of this rank if the ranks have different arguments."""
    try:
        CASES[case](dist.get_rank())
    except (PlanError, StaleModuleError) as error:
        return str(error)
    return ""


def _other_batch(rank: int) -> None:
    step, (inputs, labels) = planned(mlp(0)), dataset()[:ROWS]
    step((inputs, labels))
    step((inputs + (rank == 1), labels))


def _distributed_sampler(rank: int) -> None:
    data = dataset()
    sampler = torch.utils.data.DistributedSampler(data, dist.get_world_size(), rank)
    step = planned(mlp(0))
    for batch in DataLoader(data, batch_size=ROWS, sampler=sampler):
        step(batch)


def _other_rows(rank: int) -> None:
    step, (inputs, labels) = planned(mlp(0), pins="zero1"), dataset()[:ROWS]
    rows = slice(step.rows.start, step.rows.stop)
    step(step.local((inputs[rows], labels[rows])))
    whole = planned(mlp(0), pins="tp")
    whole(whole.local((inputs + rank, labels)))


def _other_rate(rank: int) -> None:
    planned(mlp(0))(dataset()[:ROWS], lr=0.1 * (1 + rank))


def _other_seed(rank: int) -> None:
    planned(partial(mlp, 0), seed=rank)


def _other_order(rank: int) -> None:
    planned(mlp(0)).loader(dataset(), seed=rank)


def _other_sampler(rank: int) -> None:
    planned(mlp(0)).sampler(48, seed=rank)


def _other_module(rank: int) -> None:
    planned(nn.Sequential(nn.Linear(6, 16 + rank), nn.ReLU(), nn.Linear(16 + rank, 3)))


def _numpy_weights(rank: int) -> None:
    def made() -> nn.Module:
        model = nn.Linear(6, 3)
        with torch.no_grad():
            model.weight.mul_(float(np.float32(1 + dist.get_rank())))
        return model

    planned(made, pins="dp")


def _eval_mode(rank: int) -> None:
    model = mlp(0)
    step = planned(model)
    model.eval()
    step(dataset()[:ROWS])


def _autocast(rank: int) -> None:
    step = planned(mlp(0))
    with torch.autocast("cpu", torch.bfloat16):
        step(dataset()[:ROWS])


def _changed_inside(rank: int) -> None:
    step = planned(mlp(0))
    with step.module() as model, torch.no_grad():
        next(model.parameters()).zero_()


def _no_module(rank: int) -> None:
    with planned(partial(mlp, 0)).module():
        pass


def _same_random_state(rank: int) -> None:
    """Check that a model function without a seed makes the same weights on all ranks, without an error."""
    torch.manual_seed(rank)
    planned(lambda: nn.Linear(6, 3), seed=None)


CASES: dict[str, Callable[[int], None]] = {
    "other batch": _other_batch,
    "distributed sampler": _distributed_sampler,
    "other rows": _other_rows,
    "other rate": _other_rate,
    "other seed": _other_seed,
    "other order": _other_order,
    "other sampler": _other_sampler,
    "other module": _other_module,
    "numpy weights": _numpy_weights,
    "eval mode": _eval_mode,
    "autocast": _autocast,
    "changed inside": _changed_inside,
    "no module": _no_module,
    "same random state": _same_random_state,
}


def all_refusals() -> dict[str, str]:
    """Return the error of this rank by case."""
    return {case: refusal(case) for case in CASES}
