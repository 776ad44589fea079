"""
Lowered programs on gloo processes train as one device does: losses, all gradients, parameters and states.

One launch per number of ranks runs all its cases, as starting eight processes takes longer than most cases.
Splitting pays on the cluster, so that searched plans split too. `pytest --thorough` runs all cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import pytest
import torch
from launches import names_of, results_of
from split_cluster import hosts_cluster, split_cluster

from shardwright.api.checking.cases import CheckCase, CheckResult, compile_case, imported
from shardwright.dialects.spmd import StartOp
from shardwright.ir.mesh import parse_mesh

MODELS = ("mlp-tiny", "gpt2-tiny", "bert-tiny", "vit-tiny", "vgg19-tiny")
MESHES = {2: ("2", "2x1"), 4: ("4", "2x2"), 8: ("8", "2x4")}
PRECISIONS = ((torch.float32, "sgd"), (torch.float64, "sgd"), (torch.float64, "adamw"))
HYBRID = """
[[pin]]
preset = "dp"
axes = ["a0"]
[[pin]]
preset = "tp"
axes = ["a1"]
"""
"""Data-parallel over the first axis, tensor-parallel over the second."""


def case(model: str, mesh: str, pins: str | None, dtype: torch.dtype, optimizer: str) -> CheckCase:
    parsed = parse_mesh(mesh)
    return CheckCase(model, parsed, pins, dtype, optimizer, cluster=split_cluster(parsed))


HIERARCHICAL = replace(case("mlp-tiny", "2x2", "dp", torch.float64, "adamw"), cluster=hosts_cluster(parse_mesh("2x2")))
"""Gradients are reduced inside hosts and between them."""

IN_PHASES = replace(
    case("mixtral-tiny", "2x2", None, torch.float64, "adamw"),
    pipeline="prepare,search-strategy{algorithm=eliminate},sort-across-rows,insert-resharding,"
    "select-collectives{method=hierarchical},overlap,finish",
)
"""All collectives over both axes run inside hosts and between them: gathers, scatters, and all-to-alls of experts."""


IN_PARTS = replace(
    case("mlp-tiny", "2x2", None, torch.float64, "adamw"),
    pipeline="prepare,search-strategy{algorithm=eliminate},communicate,chunk-collectives{parts=2},overlap,finish",
)
"""Matrix products in parts, each part with its own gather or reduction."""


def cases(world_size: int) -> Iterator[CheckCase]:
    one_axis, two_axes = MESHES[world_size]
    for model in MODELS:
        for mesh, (dtype, optimizer) in product(MESHES[world_size], PRECISIONS):
            yield case(model, mesh, None, dtype, optimizer)
        for dtype, optimizer in PRECISIONS:
            for pins in ("dp", "tp", "zero3"):
                yield case(model, one_axis, pins, dtype, optimizer)
            yield case(model, two_axes, HYBRID, dtype, optimizer)
    if world_size == 4:
        yield from (HIERARCHICAL, IN_PHASES, IN_PARTS)


CASES = {str(each): each for world_size in MESHES for each in cases(world_size)}


ON_MANY = {
    4: {"gpt2-tiny": {("2x2", None), ("4", "zero3")}, "vgg19-tiny": {("2x2", None)}},
    8: {"gpt2-tiny": {("2x4", None), ("2x4", HYBRID)}},
}
"""Cases that always run on four and eight ranks, where a case takes longest: mainly attention on two axes, and on
four ranks convolutions. Other presets run on two ranks, and with uneven shards on three and four ranks."""


EXACT = (torch.float64, "adamw")
"""Presets and searched plans that always run have the same precision and optimizer, so that they share captures."""

PRESETS = {"mlp-tiny": "tp", "gpt2-tiny": "zero3", "bert-tiny": "tp", "vit-tiny": "dp", "vgg19-tiny": "zero3"}
"""The preset under which each model always runs; other files run models under the other ones, on uneven shards too."""

IN_FLOAT32 = ("mlp-tiny", "gpt2-tiny")
"""The models whose searched plan always runs in float32 with SGD; those of the others run exactly."""


def is_quick(name: str) -> bool:
    """Return whether a case always runs: AdamW in float64, and two searched plans in float32 on two ranks."""
    each, model = CASES[name], str(CASES[name].step)
    mesh = "x".join(str(axis.size) for axis in each.mesh.axes)
    if each.mesh.device_count > 2:
        plans = ON_MANY[each.mesh.device_count].get(model, set[tuple[str, str | None]]())
        return each in (HIERARCHICAL, IN_PHASES, IN_PARTS) or (
            (each.dtype, each.optimizer) == EXACT and (mesh, each.pins) in plans
        )
    if each.pins is None:
        way = ("2", torch.float32, "sgd") if model in IN_FLOAT32 else ("2x1", *EXACT)
        return (mesh, each.dtype, each.optimizer) == way
    return (each.dtype, each.optimizer) == EXACT and each.pins == PRESETS[model]


results = results_of(CASES)


@pytest.mark.distributed
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", names_of(CASES, is_quick))
def test_a_program_trains_as_one_device_does(name: str, results: Callable[[str], CheckResult]):
    result = results(name)
    assert result.passed, str(result)


# These always run on two axes.
@pytest.mark.parametrize("model", names_of(MODELS, lambda model: model in ON_MANY[4]))
def test_searched_plans_communicate(model: str):
    """A searched plan has communication; otherwise the cases above would compare one device with itself."""
    searched = case(model, "2x2", None, *EXACT)
    assert "comm." in compile_case(searched, imported(searched)).program


def test_hosts_make_reductions_hierarchical():
    assert 'method="hierarchical"' in compile_case(HIERARCHICAL, imported(HIERARCHICAL)).program


def test_gathers_and_reductions_run_in_parts():
    module = imported(IN_PARTS)
    compile_case(IN_PARTS, module)
    parts = [op for op in module.walk() if isinstance(op, StartOp) and "part" in (op.args[0].name_hint or "")]
    assert {op.collective.value for op in parts} >= {"all_gather", "reduce_scatter"}


def test_every_kind_of_collective_runs_hierarchically():
    module = imported(IN_PHASES)
    compile_case(IN_PHASES, module)
    started = [op for op in module.walk() if isinstance(op, StartOp) and op.method is not None]
    assert {op.collective.value for op in started if op.method and op.method.data == "hierarchical"} >= {
        *("all_gather", "reduce_scatter", "all_to_all"),
    }
