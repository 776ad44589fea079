"""Programs whose equal layers are one function do what they did: op by op, byte by byte, bit by bit."""

import re
from dataclasses import replace
import pytest
import torch
from split_cluster import split_cluster
from traced_programs import emitted, traced, written_out
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import PlanOptions, compile_step
from shardwright.api.pin_file import pin_file
from shardwright.ir.mesh import parse_mesh
from shardwright.models.gpt2 import GPT2Config, gpt2_step

CONFIG = GPT2Config(layers=4, width=32, heads=4, vocabulary=52, positions=16)

CASES = {
    "dp": ('dp=2', "dp", CONFIG),
    "zero3": ('dp=2', "zero3", CONFIG),
    "tp": ('tp=2', "tp", CONFIG),
    "searched": ('node=2,gpu=2', None, CONFIG),
    "dropout": ('dp=2', "dp", replace(CONFIG, dropout=0.1)),
}


def planned(mesh: str, pins: str | None, config: GPT2Config) -> ModuleOp:
    step = gpt2_step(config, batch=4, length=8)
    with pin_file(pins) as path:
        options = PlanOptions(pins=path, algorithm=None if pins else "eliminate")
        return compile_step(step, split_cluster(parse_mesh(mesh)), options).module


@pytest.mark.parametrize("case", CASES)
def test_the_same_ops_the_same_memory_and_the_same_numbers(case: str) -> None:
    module = planned(*CASES[case])
    text, plain = emitted(module), written_out(module)
    calls = re.findall(r"= (\w*(?:forward|backward)\w*)\(", text)
    assert len(calls) > len(set(calls)) >= 2
    events, results = traced(module, text, 1)
    expected, numbers = traced(module, plain, 1)
    assert events == expected
    assert all(torch.equal(a, b) for a, b in zip(results, numbers, strict=True))
