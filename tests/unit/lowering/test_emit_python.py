"""Emission: the text of programs, and their results compared with the interpreter."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from emitted import check_numbers, emit
from ir_files import context, parse
from xdsl.dialects.builtin import ModuleOp

from shardwright.dialects.pipe import TransferOp
from shardwright.lowering.codegen.errors import EmitError

GOLDEN = Path(__file__).parent / "golden"
PROGRAMS = sorted(path.stem for path in GOLDEN.glob("*.mlir"))


def golden_module(name: str) -> ModuleOp:
    path = GOLDEN / f"{name}.mlir"
    return parse(path.read_text(), context(), str(path))


@pytest.mark.parametrize("name", PROGRAMS)
def test_text_equals_the_golden_file(name: str, request: pytest.FixtureRequest) -> None:
    text, path = emit(golden_module(name), name), GOLDEN / f"{name}.py"
    if request.config.getoption("--update-goldens"):
        path.write_text(text)
    assert text == path.read_text(), "run pytest with --update-goldens if this is meant"


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_equal_the_interpreter(name: str) -> None:
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
    assert refused(body) == ("'aten.sum' %loss from head  (models/mlp.py:7): has no signature; run search-strategy")


def test_missing_reshard_is_refused() -> None:
    body = SUM.replace("%sum", "%loss").replace('([{"dp"}]) -> ([], unreduced={"dp"})', "([{}]) -> ([])")
    assert "operand 'self' is spread as [{\"dp\"}], expected [{}]; run insert-resharding" in refused(body)


def test_reshard_is_refused() -> None:
    body = SUM + "  %loss = spmd.reshard %sum to <@mesh, []> : tensor<f32>"
    assert "run select-collectives" in refused(body)


def test_partial_loss_is_refused() -> None:
    body = SUM.replace("%sum", "%loss")
    assert 'result %loss is the loss and is spread as [], unreduced={"dp"}, expected []' in refused(body)


def test_argument_without_role_is_refused() -> None:
    body = SUM + '  %loss = spmd.all_reduce [{"dp"}] %sum out_sharding = <@mesh, []> : tensor<f32>'
    assert "argument %x has no role" in refused(body, head=HEAD.replace('train.batch = "0", ', ""))


def test_result_with_another_sharding_than_its_argument_is_refused() -> None:
    head = HEAD.replace("train.loss", "train.updates = 0 : i64").replace("train.batch", "train.buffer")
    head = head.replace("tensor<4xf32> {", "tensor<f32> {").replace('[{"dp"}]', "[]")
    partial = '  %loss = spmd.partial [{"dp"}] %x out_sharding = <@mesh, [], unreduced={"dp"}> : tensor<f32>'
    message = refused(partial, head=head)
    assert 'replaces argument %x and is spread as [], unreduced={"dp"}, expected []' in message


def test_temporal_axis_is_refused() -> None:
    head = HEAD.replace('"dp"=2', '"dp"=2 temporal')
    body = SUM + '  %loss = spmd.all_reduce [{"dp"}] %sum out_sharding = <@mesh, []> : tensor<f32>'
    assert "split over time" in refused(body, head=head)


def test_tasks_of_a_transfer_are_in_their_order() -> None:
    path = GOLDEN / "stages.mlir"
    at = '%g.at0 = pipe.transfer "g" %g to @stage0 out_sharding = <@stage0, [{"micro"}, {}]>'
    before, found, after = path.read_text().partition(at)
    tasks, closing, rest = after.partition("]>]")
    order = " order = <[0]: [1, 3, 0, 2], [1]: [0, 2], [2]: [1, 3]>"
    module = parse(before + found + tasks + closing + order + rest, context(), str(path))
    module.verify()
    text = emit(module, "stages")
    begins = ["rt.Task(0, ((1, 2), (0, 3)), 2", "rt.Task(1, ((3, 4), (0, 3)), 2", "rt.Task(0, ((0, 1), (0, 3)), 1"]
    places = [text.index(each) for each in begins]
    assert places == sorted(places)
    check_numbers(module, text)


def test_a_program_has_the_tasks_of_its_transfers() -> None:
    module, program = golden_module("stages"), dict[str, Any]()
    exec(emit(module, "stages"), program)
    planned = [op.tasks_in_turn for op in module.walk() if isinstance(op, TransferOp)]
    assert [list(transfer.tasks) for transfer in program["TRANSFERS"]] == planned
