"""Programs whose equal layers are one function do what they did: op by op, byte by byte, bit by bit."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache

import pytest
import torch
from emitted import check_numbers
from launches import names_of
from split_cluster import launching_cluster, split_cluster
from traced_programs import emitted, traced, traced_stages, written_out
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import PlanOptions, compile_step
from shardwright.ir.cluster import Cluster
from shardwright.ir.mesh import Mesh, parse_mesh
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.runtime.layer_ranges import with_ranges

CONFIG = GPT2Config(layers=3, width=32, heads=4, vocabulary=52, positions=16)

CASES = {
    "dp": ("dp=2", "dp", CONFIG, split_cluster),
    "zero3": ("dp=2", "zero3", CONFIG, split_cluster),
    "tp": ("tp=2", "tp", CONFIG, launching_cluster),
    "searched": ("node=2,gpu=2", None, CONFIG, split_cluster),
    "joined updates": ("node=2,gpu=2", None, CONFIG, launching_cluster),
    "dropout": ("dp=2", "dp", replace(CONFIG, dropout=0.1), launching_cluster),
}

MICRO_BATCHES = "prepare,search-strategy{algorithm=eliminate},program{parts=2},finish"
"""A loop over two parts of the batch, in a function that calls the functions of layers."""

TWO_STAGES = "prepare,partition-stages{stages=2},search-strategy,program{mode=pipeline parts=2 schedule=1f1b},finish"


@cache
def planned(mesh: str, pins: str | None, config: GPT2Config, cluster: Callable[[Mesh], Cluster]) -> ModuleOp:
    step = gpt2_step(config, batch=4, length=8)
    options = PlanOptions(pins=pins, algorithm=None if pins else "eliminate")
    return compile_step(step, cluster(parse_mesh(mesh)), options).module


def lowered(mesh: str, pipeline: str) -> ModuleOp:
    step = gpt2_step(CONFIG, batch=4, length=8)
    return compile_step(step, split_cluster(parse_mesh(mesh)), PlanOptions(pipeline=pipeline)).module


# Other tests run the program of "dp"; updates are joined in a searched plan.
@pytest.mark.parametrize("case", names_of(CASES, lambda case: case not in ("dp", "searched")))
def test_the_same_ops_the_same_memory_and_the_same_numbers(case: str) -> None:
    check_trace(planned(*CASES[case]))


def test_layers_within_a_loop_over_parts_of_the_batch() -> None:
    check_trace(lowered("dp=2", MICRO_BATCHES))


@cache
def staged(stages: int, schedule: str, layers: int = 4) -> ModuleOp:
    step = gpt2_step(replace(CONFIG, layers=layers), batch=8, length=8)
    passes = TWO_STAGES.replace("stages=2", f"stages={stages}").replace("1f1b", schedule)
    cluster = launching_cluster(parse_mesh(f"dp={2 * stages}"))
    return compile_step(step, cluster, PlanOptions(pipeline=passes)).module


# The next test compares the ops of stages under 1F1B.
@pytest.mark.parametrize("schedule", names_of(("1f1b", "zero-bubble", "gpipe"), lambda name: name == "zero-bubble"))
def test_layers_of_stages_give_the_numbers_of_the_ir(schedule: str) -> None:
    module = staged(2, schedule)
    text = emitted(module)
    assert "h_forward(" in text
    check_numbers(module, text)


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_stages_run_the_same_ops_with_the_same_memory(schedule: str) -> None:
    module = staged(2, schedule)
    for found, expected in zip(
        traced_stages(module, emitted(module)), traced_stages(module, written_out(module)), strict=True
    ):
        assert found[0] == expected[0]
        assert all(torch.equal(a, b) for a, b in zip(found[1], expected[1], strict=True))


def test_stages_share_the_functions_of_equal_layers() -> None:
    text = emitted(staged(2, "1f1b"))
    functions = {name: body for name, body in re.findall(r"^def (\w+)\((.*?)(?=^def |\Z)", text, re.M | re.S)}
    callers = [name for name, body in functions.items() if re.search(r"= h_forward\w*\(comm, part", body)]
    assert len([name for name in callers if name.startswith("forward")]) >= 2
    forward = [name for name, body in functions.items() if "aten.gelu.default" in body and name.startswith("h_")]
    assert len(forward) == 1
    assert "FORMS = (" in text


def test_more_layers_of_stages_are_a_few_lines_each() -> None:
    lines = {layers: emitted(staged(2, "1f1b", layers)).count("\n") for layers in (4, 6)}
    assert lines[6] - lines[4] < 2 * 60


def check_trace(module: ModuleOp) -> None:
    """Compare the program of a module with the program that is emitted without layer functions."""
    text, plain = emitted(module), written_out(module)
    calls = re.findall(r"= (\w*(?:forward|backward)\w*)\(", text)
    assert len(calls) > len(set(calls)) >= 2
    events, results = traced(module, text, 1)
    expected, numbers = traced(module, plain, 1)
    assert events == expected
    assert all(torch.equal(a, b) for a, b in zip(results, numbers, strict=True))


def test_a_range_around_what_each_layer_does() -> None:
    module = planned(*CASES["dp"])
    found: list[str] = []

    expected: list[str] = []
    for text, names in ((emitted(module), found), (written_out(module), expected)):
        traced(module, with_ranges(text), 1, LayerRange=lambda name, names=names: nullcontext(names.append(name)))
    assert "backward h.2.mlp.up" in expected
    assert set(found) == set(expected)


def test_more_layers_are_a_few_lines_each() -> None:
    configs = {layers: replace(CONFIG, layers=layers) for layers in (3, 5)}
    modules = {layers: planned("tp=2", "tp", each, launching_cluster) for layers, each in configs.items()}
    lines = {layers: emitted(module).count("\n") for layers, module in modules.items()}
    assert lines[5] - lines[3] < 2 * 60


def test_the_numbers_of_the_ir() -> None:
    module = planned(*CASES["dp"])
    check_numbers(module, emitted(module))
