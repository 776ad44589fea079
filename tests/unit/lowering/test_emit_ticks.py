"""Programs that announce the next op by a tick."""

import re

import pytest
from road import road
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from shardwright.api.calibration.local_cluster import generic_cluster
from shardwright.api.compile import compile_step
from shardwright.api.steps import find_step
from shardwright.dialects.compute import ComputeOp
from shardwright.lowering.codegen.emit_python import emit_python

TICK = re.compile(r" *comm\.tick\((\d*)\)\n")


def emitted(module: ModuleOp, ticks: dict[Operation, int] | None) -> str:
    """Return the program of a module."""
    return emit_python(module, name="ticking", step_spec=None, versions={}, ticks=ticks)


@pytest.fixture(scope="module", params=["one stage", "two stages"])
def module(request: pytest.FixtureRequest) -> ModuleOp:
    """Return a lowered step."""
    if request.param == "two stages":
        return road()
    return compile_step(find_step("mlp-tiny"), generic_cluster(2)).module


def test_a_program_with_ticks_is_the_same_program(module: ModuleOp):
    assert TICK.sub("", emitted(module, {})) == emitted(module, None)


def test_every_op_is_announced(module: ModuleOp):
    ticks: dict[Operation, int] = {}
    text = emitted(module, ticks)
    assert {op for op in module.walk() if isinstance(op, ComputeOp)} <= ticks.keys()
    assert set(ticks.values()) == set(range(len(ticks)))
    assert set(TICK.findall(text)) == {"", *map(str, ticks.values())}


def test_the_op_that_is_announced_comes_next():
    lowered = compile_step(find_step("mlp-tiny"), generic_cluster(2)).module
    ticks: dict[Operation, int] = {}
    lines = emitted(lowered, ticks).splitlines()
    for op, number in ticks.items():
        if op.name in ("aten.mm", "aten.relu"):
            after = lines[lines.index(f"    comm.tick({number})") + 1]
            assert f"{op.name}.default(" in after
