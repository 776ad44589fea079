"""A step on the ranks of a job under a profiler, and the log messages about its plan."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from split_cluster import split_cluster
from state_ranks import LOSS, adamw, batch, net, planned
from torch.profiler import ProfilerActivity, profile

import shardwright as sw
from shardwright.ir.cluster import Link
from shardwright.ir.mesh import Mesh
from shardwright.runtime.measured import clocks_ahead

PHASES = ("forward ", "backward ", "update ")
STEPS = 3
WATCHED = 1


class _Kept(logging.Handler):
    """A handler that keeps the messages of the package's logger."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.told: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append((record.levelname, record.getMessage()))


@contextmanager
def kept_log() -> Iterator[list[tuple[str, str]]]:
    """Yield the list of messages, with levels, that the package logs in this context."""
    logger, kept = logging.getLogger("shardwright"), _Kept()
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(kept)
    try:
        yield kept.told
    finally:
        logger.removeHandler(kept)
        logger.setLevel(level)


def _range_of(event: Any) -> str:
    """Return the innermost range of a layer that contains an event."""
    parent = event.cpu_parent
    while parent is not None and not parent.name.startswith(PHASES):
        parent = parent.cpu_parent
    return parent.name if parent is not None else ""


def watched(**options: Any) -> dict[str, Any]:
    """Train without a profiler, and with a profiler on for the step `WATCHED`; return the losses and the events."""
    plain, step = planned(**options), planned(**options)
    expected = [plain(batch(number)).item() for number in range(STEPS)]
    losses = [step(batch(number)).item() for number in range(WATCHED)]
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        losses.append(step(batch(WATCHED)).item())
    losses += [step(batch(number)).item() for number in range(WATCHED + 1, STEPS)]
    events: Any = profiler.events()
    return {
        "expected": expected,
        "losses": losses,
        "ranges": {event.name for event in events if event.name.startswith(PHASES)},
        "communication": {event.name for event in events if " over " in event.name},
        "products": {_range_of(event) for event in events if event.name in ("aten::mm", "aten::addmm")},
        "is plain again": "by layer" not in step._executor.main.function.__code__.co_filename,
    }


def on_two() -> dict[str, Any]:
    """Return the observations of this rank."""
    with kept_log() as logged:
        whole = watched(pins="zero3")
    mesh = Mesh.of(gpu=dist.get_world_size())
    slow = replace(split_cluster(mesh), links=(Link("gpu", 1.0, 1e-3),))
    with kept_log() as alone:
        sw.parallelize(net(), LOSS, adamw, batch(0), slow, plan=sw.PlanOptions(algorithm="eliminate"))
    accumulated = watched(stages=1, micro_batches=2)
    observed = {"zero3": whole, "accumulated": accumulated, "logged": list(logged), "alone": list(alone)}
    return observed | {"measured": measured(pins="zero3"), "staged": measured(stages=2, micro_batches=2)}


def measured(**options: Any) -> dict[str, Any]:
    """Train without measuring, and with the second step measured; return the losses and the measurements."""
    plain, step = planned(**options), planned(**options)
    expected = [plain(batch(number)).item() for number in range(STEPS)]
    losses = [step(batch(0)).item()]
    with step.profile() as profile:
        losses.append(step(batch(1)).item())
    losses += [step(batch(2)).item()]
    threads = [thread.name for thread in threading.enumerate()]
    return {
        "expected": expected,
        "losses": losses,
        "text": profile.steps.text(),
        "table": str(profile),
        "threads": [name for name in threads if "recorder" in name],
        "ahead": dict(clocks_ahead([1], torch.device("cpu"))),
    }
