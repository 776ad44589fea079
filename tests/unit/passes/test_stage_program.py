"""The proof of order, the memory count, the simulator and the emitter follow the same program of a scheduled step."""

import re
from pathlib import Path

import pytest
import torch
from emitted import emit
from ir_files import context, parse
from xdsl.dialects.builtin import ModuleOp

from shardwright.dialects.pipe import TransferOp
from shardwright.dialects.spmd import CollectiveOp
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import Mesh
from shardwright.ir.submesh import on_mesh
from shardwright.lowering.interpreter.errors import InterpreterError
from shardwright.lowering.interpreter.interpreter import interpret
from shardwright.passes.analysis.communications import Half, communications_of
from shardwright.passes.analysis.memory_events import run_of
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.errors import OpFailure, PassError
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.step.step_view import step_functions

STEP = (Path(__file__).parents[1] / "lowering" / "golden" / "stages.mlir").read_text()
GATHER = '  %all = spmd.all_gather [{}, {"gpu"}] %w out_sharding = <@stage1, [{}, {}]> : tensor<3x3xf32>\n'
"""A gather of a weight of the second stage, independent of its loop."""

LINKS = 'links [#spmd.link<"gpu", alpha = 1.0, beta = 1.0e-3>]'
CLUSTERS = f"""
#cpu = #spmd.device<"cpu", flops = {{float32 = 1.0e9}}, bandwidth = 1.0e3, memory = 1.0e9, launch = 0.0>
spmd.cluster @c0 on @stage0 devices [#cpu] placement [0] {LINKS}
spmd.cluster @c1 on @stage1 devices [#cpu] placement [0, 0] {LINKS}
"""

PLACES = {"before": "  %x.part, %h =", "after": "  %loss.sum ="}
EXPECTED = {"before": ["tied", "all", "h", "g"], "after": ["tied", "h", "g", "all"]}
"""The order of communication of the second stage, by name, without the sums at its end."""


THREE = on_mesh(find_cluster("local-4"), Mesh.of(gpu=3))


def module(text: str) -> ModuleOp:
    """Parse a step and add clusters for its stages."""
    return parse(text.replace("func.func", CLUSTERS + "func.func", 1), context())


def module_with(place: str) -> ModuleOp:
    """Return the golden pipeline with a gather before or after the loop."""
    return module(STEP.replace(PLACES[place], GATHER + PLACES[place]))


def names(ops: list[object]) -> list[str]:
    """Return the names of the ops that are in EXPECTED, each once."""
    found = [op.label.data if isinstance(op, TransferOp) else op.results[0].name_hint
             for op in ops if isinstance(op, TransferOp | CollectiveOp)]  # fmt: skip
    return [name for name in dict.fromkeys(found) if name in EXPECTED["before"]]


@pytest.mark.parametrize("place", PLACES)
def test_the_proof_of_order_follows_the_program(place: str):
    step = module_with(place)
    (func,) = step_functions(step)
    (events,) = (each.events for each in communications_of(step, func).classes if 1 in each.ranks)
    assert names([each.what.op for each in events if each.half is Half.ISSUE]) == EXPECTED[place]


def test_ranks_with_equal_communication_are_one_class():
    step = parse(
        """
        spmd.mesh @mesh = <["node"=128, "gpu"=8]>
        func.func @f(%x: tensor<64xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> tensor<64xf32> {
          %y = spmd.all_gather [{"gpu"}] %x out_sharding = <@mesh, [{}]> : tensor<64xf32>
          func.return %y : tensor<64xf32>
        }
        """,
        context(),
    )
    (func,) = step_functions(step)
    (found,) = communications_of(step, func).classes
    assert found.ranks == tuple(range(1024))
    assert [each.half for each in found.events] == [Half.ISSUE, Half.WAIT]


def test_ranks_of_a_stage_with_different_transfers_are_different_classes():
    step = module(STEP)
    (func,) = step_functions(step)
    assert "1 to [0]" in STEP, "the loss is sent by one rank of the second stage"
    assert [each.ranks for each in communications_of(step, func).classes] == [(0,), (1,), (2,)]


@pytest.mark.parametrize("place", PLACES)
def test_memory_follows_the_program(place: str):
    (func,) = step_functions(module_with(place))
    assert names(list(run_of(func, 1).ops)) == EXPECTED[place]


@pytest.mark.parametrize("place", PLACES)
def test_the_emitted_program_follows_the_program(place: str):
    text = emit(module_with(place)).partition("def step1(")[2]
    calls = re.findall(r'comm\.(?:(?:receive|send)\("(\w+)"|(all)_gather)', text)
    called = dict.fromkeys(label or name for label, name in calls)
    assert [name for name in called if name in EXPECTED[place]] == EXPECTED[place]


@pytest.mark.parametrize("place", PLACES)
def test_the_simulator_follows_the_program(place: str):
    step = module_with(place)
    (simulation,) = simulate_module(step, THREE)
    (number,) = (each.number for each in simulation.classes if each.stage == 1)
    runs = sorted(simulation.traffic(number), key=lambda run: run.issued[number])
    assert names([run.traffic.op for run in runs]) == EXPECTED[place]


WAIT = '#pipe.slot<wait "g" 0>, '


RUN = '#pipe.slot<run "forward0" 0>, '


def deadlocked() -> ModuleOp:
    """Return a step whose first stage waits for a gradient before it sends the value that the gradient depends on."""
    assert STEP.count(WAIT) == STEP.count(RUN) == 1
    return module(STEP.replace(WAIT, "").replace(RUN, WAIT + RUN))


def test_a_deadlock_is_detected_by_the_proof_the_simulator_and_the_interpreter():
    step = deadlocked()
    with pytest.raises(PassError, match="deadlock"):
        run_pipeline(context(), step, "check-order")
    inputs = [torch.randn(3, 3), torch.randn(4, 3), torch.randn(3, 3)]
    with pytest.raises(InterpreterError, match="deadlock: stage"):
        interpret(step, inputs)
    assert len(interpret(module(STEP), inputs)) == 4
    with pytest.raises(OpFailure, match="not all who take part begin it"):
        simulate_module(step, THREE)
    assert emit(deadlocked()).index('receive("g", 0)') < emit(deadlocked()).index('send("h", 0')


EXP = next(line + "\n" for line in STEP.splitlines() if line.startswith("  %e = aten.exp"))
READ = "  %u = aten.exp %e" + EXP.partition("%tied")[2]
"""An op that reads %e, a value computed once that the loop of the second stage needs."""


@pytest.mark.parametrize("reader", ["    %m = aten.mm", "    %t = aten.t"])
def test_a_value_that_the_loop_needs_must_precede_it(reader: str):
    text = STEP.replace(EXP, "").replace("%h.at1, %e {", "%h.at1, %tied {").replace(reader, READ + reader)
    module(text.replace("  %y, %loss =", EXP + "  %y, %loss =")).verify()
    if reader.strip().startswith("%t"):
        with pytest.raises(AssertionError, match="its loop reads %e, produced later"):
            module(text.replace("  %g.w, %g =", EXP + "  %g.w, %g =")).verify()
