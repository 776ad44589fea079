"""Steps with a loss or gradients that are not finite, on the ranks of a job: the state they must not change."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from plan_keywords import with_plan
from split_cluster import split_cluster
from state_ranks import LOSS, PIPELINE, ROWS, adamw, differences
from state_ranks import batch as finite_batch
from torch import nn
from watched_ranks import kept_log

import shardwright as sw
from shardwright.ir.mesh import parse_mesh

STEPS = 6
BROKEN = {1: "nan in an item", 3: "infinite loss", 4: "finite loss, gradient of a square root at 0"}
"""The value that is not finite, by number of the step, counted from 0."""


class Risky(nn.Module):
    """A model with optional batch norm; if an input is 0, the loss is finite and the gradient of `gain` is not."""

    def __init__(self, *, normalized: bool) -> None:
        super().__init__()
        self.rise, self.fall = nn.Linear(8, 16, bias=False).double(), nn.Linear(16, 4).double()
        self.norm = nn.BatchNorm1d(16).double() if normalized else nn.Identity()
        self.gain = nn.Parameter(torch.ones(8, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        roots = (self.gain * x).abs().sqrt().sum(1, keepdim=True)
        return self.fall(torch.tanh(self.norm(self.rise(x)))) + roots * x[:, :4]


def risky(*, normalized: bool) -> Risky:
    """Return the same model on every rank."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Risky(normalized=normalized)


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch; in some, a value in a row of the last rank makes the loss or a gradient not finite."""
    inputs, labels = finite_batch(number)
    worst = {1: torch.nan, 3: torch.inf, 4: 0.0}
    if number in worst:
        inputs[ROWS - 1, 5] = worst[number]
    return inputs, labels


def one_device(model: Risky) -> list[float]:
    """Train on one device without the batches of `BROKEN`; return the losses."""
    optimizer, losses = adamw(model.named_parameters()), list[float]()
    for number in range(STEPS):
        if number in BROKEN:
            continue
        inputs, labels = batch(number)
        optimizer.zero_grad()
        loss = LOSS(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


PLANS: dict[str, dict[str, Any]] = {
    "dp": {"pins": "dp"},
    "zero3": {"pins": "zero3", "clip_norm": 1e6},
    "accumulated": {"stages": 1, "micro_batches": 2},
    "in stages": {"pipeline": PIPELINE},
}


def skips() -> dict[str, list[str]]:
    """Return the differences from one device, by plan."""
    return {name: list(_faults(name, options)) for name, options in PLANS.items()}


def _faults(name: str, options: dict[str, Any]) -> Iterator[str]:
    # Batch norm cannot be micro-batched.
    normalized = name in ("dp", "zero3")
    expected_model = risky(normalized=normalized)
    expected = one_device(expected_model)
    cluster = split_cluster(parse_mesh(str(dist.get_world_size())))
    with kept_log() as logged:
        model = risky(normalized=normalized)
        step = sw.parallelize(model, LOSS, adamw, batch(0), cluster, on_nan="skip", **with_plan(options))
        found, skipped = list[float](), list[int]()
        for number in range(STEPS):
            loss = step(batch(number)).item()
            if number == 4 and not math.isfinite(loss):
                yield f"the loss of {number} is {loss}, and its gradients alone should not be finite"
            if step.metrics["skipped"]:
                skipped.append(number)
            else:
                found.append(loss)
    if skipped != list(BROKEN) or step.skipped_steps != len(BROKEN):
        yield f"skipped {skipped}, counted {step.skipped_steps}"
    if len(found) != len(expected) or not torch.allclose(torch.tensor(found), torch.tensor(expected), rtol=1e-9):
        yield f"losses {found}, expected {expected}"
    yield from differences(step.state_dict(), expected_model.state_dict())
    warnings = [text for level, text in logged if level == "WARNING" and "skipped" in text]
    wanted = "step 2 was skipped: its loss is nan, and that or a gradient is not finite: its batch has numbers"
    if [wanted in text and "rank 1" in text for text in warnings] != [True] * (step.rank == 0):
        yield f"warned {warnings}"
