"""Stock xDSL with our dialects refuses the same modules as our tools do before any pass."""

from pathlib import Path

import pytest
from ir_files import FILECHECK, chunks, name_of
from xdsl.context import Context
from xdsl.dialects import get_all_dialects
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from shardwright.dialects.aten import ATEN
from shardwright.dialects.pipe import PIPE
from shardwright.dialects.spmd import SPMD
from shardwright.dialects.train import TRAIN

FILES = sorted((FILECHECK / "dialects").rglob("*.mlir"))


def stock(text: str) -> ModuleOp:
    """Read and verify a module as any program with these dialects would."""
    ctx = Context()
    for name, load in get_all_dialects().items():
        ctx.register_dialect(name, load)
    for dialect in (ATEN, PIPE, SPMD, TRAIN):
        ctx.load_dialect(dialect)
    module = Parser(ctx, text).parse_module()
    module.verify()
    return module


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_stock_xdsl_refuses_exactly_what_opt_tool_refuses(path: Path):
    for chunk in chunks(path.read_text()):
        if "expected-error" in chunk:
            with pytest.raises((ParseError, VerifyException)):
                stock(chunk)
        else:
            stock(chunk)


MESH = 'spmd.mesh @mesh = <["gpu"=2]>\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func.func @f(%x: tensor<4xf32> {train.param = 3 : i64}) { func.return }", "train.param of argument 0 is 3"),
        ("func.func private @f(%x: tensor<4xf32> {train.param = 3 : i64}) -> ()", "train.param of argument 0 is 3"),
        (
            "func.func @f(%x: tensor<4xf32>) -> (tensor<4xf32> {train.updates = 1 : i64}) "
            "{ func.return %x : tensor<4xf32> }",
            "expected the index of one of 1 arguments",
        ),
        ('func.func @f() attributes {train.reduce_dtype = "f8"} { func.return }', 'one of "float32", "bfloat16"'),
        (
            "func.func @f() { %c = arith.constant {pipe.stage = -1 : i64} 1 : i64\n func.return }",
            "'arith.constant': pipe.stage is -1 : i64, expected a whole number from 0",
        ),
        (
            MESH + "func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mess, [{}]>}) { func.return }",
            "spmd.sharding of argument 0: there is no mesh @mess; the module's meshes: @mesh",
        ),
        (
            MESH + "func.func @f(%x: tensor<4xf32>) { %y = aten.neg %x"
            " {spmd.working = [#spmd.sharding<@mess, [{}]>]} : (tensor<4xf32>) -> tensor<4xf32>\n func.return }",
            "'aten.neg': spmd.working of result 0: there is no mesh @mess; the module's meshes: @mesh",
        ),
        (
            MESH + "func.func @f(%x: tensor<4xf32>) { %y = aten.neg %x"
            " {spmd.working = [#spmd.sharding<@mesh, [{}, {}]>]} : (tensor<4xf32>) -> tensor<4xf32>\n func.return }",
            "has 2 dims, the value has 1",
        ),
        (
            MESH + 'func.func @f() attributes {spmd.ratios = [#spmd.ratios<@mess, {"gpu" = [0.5, 0.5]}>]}'
            " { func.return }",
            "there is no mesh @mess",
        ),
        (
            MESH + 'func.func @f() attributes {pipe.stages = ["mess"]} { func.return }',
            "there is no mesh @mess",
        ),
        (
            "func.func @f(%x: tensor<4xf32>) { %y = aten.neg %z : (tensor<4xf32>) -> tensor<4xf32>\n"
            " %z = aten.neg %x : (tensor<4xf32>) -> tensor<4xf32>\n func.return }",
            "'aten.neg': operand 0 is defined only further down",
        ),
        (
            "func.func @f(%x: tensor<4xf32>) { spmd.free %x : tensor<4xf32>\n"
            " %z = aten.neg %x : (tensor<4xf32>) -> tensor<4xf32>\n func.return }",
            "uses %x after its memory was given back",
        ),
        ("spmd.mesh @m = <[]> {train.update = 3 : i64}", "train.update is 3 : i64, expected"),
    ],
)
def test_attributes_on_ops_of_other_dialects_are_verified(text: str, message: str):
    with pytest.raises(VerifyException) as raised:
        stock(text)
    assert message in str(raised.value)
