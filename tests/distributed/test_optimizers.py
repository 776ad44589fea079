"""
Optimizers of all kinds, most of them captured from their code, train as on one device with changing learning rates.

Plans are presets or searched, whole, accumulated or in stages; one launch per number of ranks runs all its cases. Each
optimizer always runs at least once, most of them under ZeRO-3; the rest run with `pytest --thorough`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import optimizer_steps
import pytest
import torch
from launches import names_of, results_of, step_of
from split_cluster import launching_cluster

from shardwright.api.checking.cases import CheckCase, CheckResult
from shardwright.ir.mesh import parse_mesh

SCHEDULE = (0.5, 1.0, 0.7, 0.3)
PIPELINES = {
    "accumulated": "prepare,search-strategy,program{parts=4},finish",
    "duplex": "prepare,search-strategy,program{mode=duplex parts=2},finish",
    "in stages": "prepare,partition-stages{stages=2},search-strategy,"
    "program{mode=pipeline parts=4 schedule=1f1b},finish",
}

ALWAYS = {
    "rmsprop on 4, zero3",
    "adafactor on 2, zero1",
    "adafactor on 2, zero3",
    "muon on 2, zero3",
    "muon on 2, tp",
    "muon on 2x2, searched",
    "muon on 2, dp, float32",
    "nadam on 2, zero3, clipped",
    "rmsprop in groups on 2, accumulated",
    "muon on 2, duplex",
    "rmsprop in groups on 2, in stages",
}
"""The cases of these optimizers that always run: each plan with one of them. All others run under ZeRO-3."""


def case(
    optimizer: str, mesh: str, pins: str | None, pipeline: str | None = None, clip_norm: float | None = None
) -> CheckCase:
    parsed = parse_mesh(mesh)
    step = step_of(optimizer_steps.step, optimizer, clip_norm)
    cluster = launching_cluster(parsed)
    return CheckCase(step, parsed, pins, torch.float64, cluster=cluster, pipeline=pipeline, schedule=SCHEDULE)


def cases() -> Iterator[tuple[str, CheckCase]]:
    for optimizer in optimizer_steps.OPTIMIZERS:
        for pins in ("dp", "zero3", "tp"):
            yield f"{optimizer} on 2, {pins}", case(optimizer, "2", pins)
    for optimizer in optimizer_steps.IN_ALL_WAYS:
        yield f"{optimizer} on 2, zero1", case(optimizer, "2", "zero1")
        yield f"{optimizer} on 2, searched", case(optimizer, "2", None)
        yield f"{optimizer} on 2x2, searched", case(optimizer, "2x2", None)
        yield f"{optimizer} on 4, zero3", case(optimizer, "4", "zero3")
    yield "nadam on 2, zero3, clipped", case("nadam", "2", "zero3", clip_norm=0.05)
    for name, pipeline in PIPELINES.items():
        for optimizer in ("rmsprop in groups", "muon"):
            yield f"{optimizer} on 2, {name}", case(optimizer, "2", None, pipeline, clip_norm=0.05)


CASES = dict(cases())
for _name in ("dampened sgd on 2, zero3", "adagrad on 2, tp", "muon on 2, dp"):
    CASES[f"{_name}, float32"] = replace(CASES[_name], dtype=torch.float32)


def is_quick(name: str) -> bool:
    """Return whether a case runs without `--thorough`."""
    optimizer, _, way = name.partition(" on ")
    in_more_ways = any(each.startswith(f"{optimizer} on ") for each in ALWAYS)
    return name in ALWAYS if in_more_ways else way == "2, zero3"


results = results_of(CASES)


@pytest.mark.distributed
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", names_of(CASES, is_quick))
def test_an_optimizer_trains_as_on_one_device(name: str, results: Callable[[str], CheckResult]):
    result = results(name)
    assert result.passed, str(result)
    assert {"parameter", "gradient"} <= {worst.kind for worst in result.errors}
