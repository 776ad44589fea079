"""Emission: the text of programs, and that they compute what the IR says."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ir_files import context, parse
from rank_threads import ThreadCommunicator, run_ranks
from xdsl.dialects.builtin import ModuleOp

from shardwright.ir.sharding import Sharding
from shardwright.lowering.emit_errors import EmitError
from shardwright.lowering.emit_python import emit_python
from shardwright.lowering.interpreter import interpret
from shardwright.lowering.load_program import load_text

GOLDEN = Path(__file__).parent / "golden"
PROGRAMS = sorted(path.stem for path in GOLDEN.glob("*.mlir"))
VERSIONS = {"shardwright": "0.1.0", "torch": "2.13.0"}


def emit(module: ModuleOp, name: str = "test") -> str:
    return emit_python(module, name=name, step_spec=None, versions=VERSIONS)


def golden_module(name: str) -> ModuleOp:
    path = GOLDEN / f"{name}.mlir"
    return parse(path.read_text(), context(), str(path))


def inputs_of(plan) -> list[torch.Tensor]:
    """Random global inputs for a plan; constants as it says."""
    torch.manual_seed(0)
    made: list[torch.Tensor] = []
    for value in plan.inputs:
        if value.value is not None:
            made.append(torch.tensor(value.value, dtype=value.torch_dtype).reshape(value.shape))
        elif value.role in ("learning_rate", "step_count"):
            made.append(torch.tensor({"learning_rate": 0.1, "step_count": 0.0}[value.role]))
        elif value.state == "exp_avg_sq":
            made.append(torch.rand(value.shape))
        else:
            made.append(torch.randn(value.shape))
    return made


def run_program(text: str, inputs: list[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    """The results of a program on each rank of its mesh, from global inputs, which it must not change."""
    plan, step = load_text(text, "<emitted>")
    replaced = {result.updates for result in plan.outputs}

    def body(comm: ThreadCommunicator) -> tuple[torch.Tensor, ...]:
        mine = [
            whole[value.slices(plan.mesh, comm.rank)].clone()
            for value, whole in zip(plan.inputs, inputs, strict=True)
        ]
        before = [value.clone() for value in mine]
        results = step(comm, *mine)
        for index, (found, original) in enumerate(zip(mine, before, strict=True)):
            assert index in replaced or torch.equal(found, original), f"input {index} was overwritten"
        return results

    return run_ranks(plan.mesh, body)


def check_numbers(module: ModuleOp, text: str) -> None:
    """Compare a program, on all ranks, with the interpreter of its IR."""
    plan, _ = load_text(text, "<emitted>")
    inputs = inputs_of(plan)
    expected = interpret(module, inputs, check_replicas=True)
    for rank, results in enumerate(run_program(text, inputs)):
        assert len(results) == len(expected)
        for output, found, whole in zip(plan.outputs, results, expected, strict=True):
            spread = output if output.updates is None else plan.inputs[output.updates]
            sharding = spread.spread if spread.shape else Sharding.replicated(0)
            part = whole[spread.slices(plan.mesh, rank)] if sharding.dims else whole
            torch.testing.assert_close(found, part, msg=lambda text, at=(rank, output): f"{at}: {text}")


@pytest.mark.parametrize("name", PROGRAMS)
def test_text_is_the_golden_one(name: str, request: pytest.FixtureRequest) -> None:
    text, path = emit(golden_module(name), name), GOLDEN / f"{name}.py"
    if request.config.getoption("--update-goldens"):
        path.write_text(text)
    assert text == path.read_text(), "run pytest with --update-goldens if this is meant"


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_are_the_interpreters(name: str) -> None:
    module = golden_module(name)
    check_numbers(module, emit(module, name))


def test_text_is_the_same_every_time() -> None:
    for name in PROGRAMS:
        assert emit(golden_module(name)) == emit(golden_module(name))


def test_goldens_pass_lint() -> None:
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--line-length",
        "110",
        "--select",
        "E,F,I,W",
    ]
    settings = ["--config", 'lint.isort.known-first-party=["shardwright"]']
    found = subprocess.run([*command, *settings, str(GOLDEN)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


HEAD = """
spmd.mesh @mesh = <["dp"=2]>
func.func @step(
    %x: tensor<4xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>})
    -> (tensor<f32> {train.loss}) {
"""
TAIL = """
  func.return %loss : tensor<f32>
}
"""
SUM = """
  %sum = aten.sum %x {spmd.signature = #spmd.sig<@mesh, ([{"dp"}]) -> ([], unreduced={"dp"})>}
    : (tensor<4xf32>) -> tensor<f32>
"""


def refused(body: str, *, head: str = HEAD) -> str:
    with pytest.raises(EmitError) as caught:
        emit(parse(head + body + TAIL, context()))
    return str(caught.value)


def test_op_without_signature_is_refused() -> None:
    body = '  %loss = aten.sum %x : (tensor<4xf32>) -> tensor<f32> loc("head"("/home/me/models/mlp.py":7:0))'
    assert refused(body) == (
        "'aten.sum' %loss from head  (models/mlp.py:7): has no signature; run search-strategy"
    )


def test_missing_reshard_is_refused() -> None:
    body = SUM.replace("%sum", "%loss").replace('([{"dp"}]) -> ([], unreduced={"dp"})', "([{}]) -> ([])")
    assert "operand 'self' is spread as [{\"dp\"}] and not as [{}]; run insert-resharding" in refused(body)


def test_reshard_is_refused() -> None:
    body = SUM + "  %loss = spmd.reshard %sum to <@mesh, []> : tensor<f32>"
    assert "run select-collectives" in refused(body)


def test_partial_loss_is_refused() -> None:
    body = SUM.replace("%sum", "%loss")
    assert 'result %loss is the loss and is spread as [], unreduced={"dp"}, expected []' in refused(body)


def test_argument_without_role_is_refused() -> None:
    body = SUM + '  %loss = spmd.all_reduce [{"dp"}] %sum out_sharding = <@mesh, []> : tensor<f32>'
    assert "argument %x has no role" in refused(body, head=HEAD.replace('train.batch = "0", ', ""))


def test_result_that_is_spread_otherwise_than_its_argument_is_refused() -> None:
    head = HEAD.replace("train.loss", "train.updates = 0 : i64").replace("train.batch", "train.buffer")
    head = head.replace("tensor<4xf32> {", "tensor<f32> {").replace('[{"dp"}]', "[]")
    partial = '  %loss = spmd.partial [{"dp"}] %x out_sharding = <@mesh, [], unreduced={"dp"}> : tensor<f32>'
    message = refused(partial, head=head)
    assert 'replaces argument %x and is spread as [], unreduced={"dp"}, expected []' in message


def test_temporal_axis_is_refused() -> None:
    head = HEAD.replace('"dp"=2', '"dp"=2 temporal')
    body = SUM + '  %loss = spmd.all_reduce [{"dp"}] %sum out_sharding = <@mesh, []> : tensor<f32>'
    assert "split over time" in refused(body, head=head)
