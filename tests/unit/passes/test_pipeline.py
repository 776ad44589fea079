"""Pipelines run in order with timing and verification, and an error names the failing pass and op."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from ir_files import context
from xdsl.context import Context
from xdsl.dialects.arith import AddiOp
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, i32, i64
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException, VerifyException

from shardwright.dialects.text import parse_module
from shardwright.passes.errors import OpFailure, PassError, describe, fail
from shardwright.passes.pipeline import run_passes, run_pipeline
from shardwright.passes.pipeline_spec import PipelineError
from shardwright.passes.verification import first_fault, is_same, state_of

ADD = """\
func.func @f(%x: i32) -> i32 {
  %dead = arith.constant 1 : i32
  %y = arith.addi %x, %x : i32 loc("fc1"("model.py":3:4))
  func.return %y : i32
}
"""


@dataclass(frozen=True)
class OnAdditions(ModulePass):
    """A pass that applies `action` to every addition."""

    action: Callable[[Operation], None]
    name = "on-additions"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for each in op.walk():
            if isinstance(each, AddiOp):
                self.action(each)


def run(action: Callable[[Operation], None]) -> PassError:
    """Return the error of a pipeline whose `action` fails."""
    ctx = context()
    with pytest.raises(PassError) as caught:
        run_passes(ctx, parse_module(ctx, ADD), [OnAdditions(action)])
    return caught.value


def move_up(op: Operation) -> None:
    """Move the return of the function before the value it returns."""
    block = op.parent
    assert block is not None
    assert block.last_op is not None
    op.detach()
    block.insert_op_before(op, block.last_op)
    constant = block.first_op
    assert constant is not None
    constant.detach()
    block.insert_op_after(constant, op)
    op.operands[0] = constant.results[0]


def test_passes_run_in_order_and_are_timed():
    ctx = context()
    module = parse_module(ctx, ADD)
    seen: list[tuple[str, str, int]] = []

    def count(when: str) -> Callable[[ModulePass, ModuleOp], None]:
        return lambda each, module: seen.append((when, each.name, len(list(module.walk()))))

    seconds = run_pipeline(ctx, module, "dce,cse,dce", on_before=count("before"), on_after=count("after"))
    assert list(seconds) == ["dce", "cse"]
    assert all(taken > 0 for taken in seconds.values())
    assert seen == [
        ("before", "dce", 5),
        ("after", "dce", 4),
        ("before", "cse", 4),
        ("after", "cse", 4),
        ("before", "dce", 4),
        ("after", "dce", 4),
    ]


def test_nothing_runs_if_the_text_is_wrong():
    ctx = context()
    module = parse_module(ctx, ADD)
    with pytest.raises(PipelineError, match="unknown pass 'nope'"):
        run_pipeline(ctx, module, "dce,nope")
    assert len(list(module.walk())) == 5


def test_an_op_that_cannot_be_handled_is_named():
    error = run(lambda op: fail(op, "no rule; add one to the table"))
    assert str(error) == (
        "pass 'on-additions' failed: 'arith.addi' op %y from \"fc1\" (model.py:3:4): no rule; add one to the table"
    )
    assert (error.kind, error.pass_name) == ("failed", "on-additions")
    assert isinstance(error.op, AddiOp)
    assert isinstance(error.__cause__, OpFailure)


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (PassFailedException("no"), "failed", "failed: no"),
        (VerifyException("no"), "failed", "failed: no"),
        (KeyError("no"), "crashed", "crashed: KeyError: 'no'"),
    ],
)
def test_other_exceptions_name_the_pass(raised: Exception, kind: str, message: str):
    def throw(op: Operation) -> None:
        raise raised

    error = run(throw)
    assert (error.kind, str(error)) == (kind, f"pass 'on-additions' {message}")
    assert error.__cause__ is raised


def test_a_pipeline_inside_a_pass_keeps_the_op():
    @dataclass(frozen=True)
    class Nested(ModulePass):
        name = "nested"

        def apply(self, ctx: Context, op: ModuleOp) -> None:
            run_passes(ctx, op, [OnAdditions(lambda each: fail(each, "no"))])

    ctx = context()
    with pytest.raises(PassError, match="pass 'nested' failed: pass 'on-additions' failed: ") as caught:
        run_passes(ctx, parse_module(ctx, ADD), [Nested()])
    assert isinstance(caught.value.op, AddiOp)


def test_a_pass_that_leaves_invalid_ir_is_named():
    def spoil(op: Operation) -> None:
        op.properties["overflowFlags"] = IntegerAttr(1, i32)

    error = run(spoil)
    assert str(error).startswith("pass 'on-additions' left IR that does not verify: ")
    assert isinstance(error.op, AddiOp)


def test_a_use_above_its_definition_is_found():
    error = run(move_up)
    assert error.kind == "invalid"
    assert "operand 0 is defined only further down, by 'arith.constant'" in str(error)
    assert isinstance(error.op, AddiOp)


def _retype(op: Operation) -> None:
    op.results[0]._type = i64  # pyright: ignore[reportPrivateUsage]


def _drop_property(op: Operation) -> None:
    op.attributes["overflowFlags"] = op.properties.pop("overflowFlags")


def _drop_operand(op: Operation) -> None:
    op.operands = op.operands[:1]


@pytest.mark.parametrize("spoil", [_retype, _drop_property, _drop_operand, move_up])
def test_invalid_ir_is_found_after_passes_that_changed_nothing(spoil: Callable[[Operation], None]):
    @dataclass(frozen=True)
    class Spoil(OnAdditions):
        name = "spoil"

    ctx = context()
    nothing = OnAdditions(lambda op: None)
    with pytest.raises(PassError, match="pass 'spoil' left IR that does not verify: "):
        run_passes(ctx, parse_module(ctx, ADD), [nothing, nothing, Spoil(spoil), nothing])


def test_a_pass_that_changes_nothing_is_not_verified_again(monkeypatch: pytest.MonkeyPatch):
    verified: list[Operation] = []
    monkeypatch.setattr("shardwright.passes.pipeline.first_fault", verified.append)
    ctx = context()
    nothing, change = OnAdditions(lambda op: None), OnAdditions(lambda op: op.attributes.update(note=StringAttr("new")))
    run_passes(ctx, parse_module(ctx, ADD), [nothing, nothing, change, nothing])
    assert len(verified) == 2


def test_an_op_that_leaves_a_region_changes_the_state():
    module = parse_module(context(), "builtin.module { builtin.module { %0 = arith.constant 1 : i32 } }")
    before = state_of(module)
    (inner,) = module.ops
    assert isinstance(inner, ModuleOp)
    (constant,) = inner.ops
    constant.detach()
    module.body.block.add_op(constant)
    assert [*module.walk()] == [module, inner, constant]
    assert not is_same(state_of(module), before)


def test_verification_can_be_left_out():
    ctx = context()
    module = parse_module(ctx, ADD)
    run_passes(ctx, module, [OnAdditions(move_up)], verify_each=False)
    fault = first_fault(module)
    assert fault is not None
    assert fault.op.name == "arith.addi"


@pytest.mark.parametrize(
    ("text", "blamed"),
    [
        ("func.func @f(%x: i32) -> i64 { func.return %x : i32 }", "func.return"),
        ("func.func @f(%x: i32) { %y = arith.addi %x, %x : i32 }", "arith.addi"),
        ('"arith.addi"() : () -> ()', "arith.addi"),
    ],
)
def test_the_innermost_invalid_op_is_named(text: str, blamed: str):
    fault = first_fault(parse_module(context(), text))
    assert fault is not None
    assert fault.op.name == blamed


@pytest.mark.parametrize(
    "text",
    [
        ADD,
        # Blocks may have any order, a loop value is defined below its use, and a module has no order.
        """
        func.func @f(%c: i1) {
          cf.br ^a
        ^b:
          "test.op"(%y) : (i32) -> ()
          func.return
        ^a:
          %y = arith.constant 1 : i32
          cf.br ^b
        }
        """,
        '"test.op"(%a) : (i32) -> ()\n%a = "test.op"() : () -> i32',
    ],
)
def test_valid_ir_has_no_fault(text: str):
    assert first_fault(parse_module(context(), text)) is None


def test_uses_inside_regions_are_checked():
    text = """
        func.func @f(%c: i1) {
          scf.if %c { "test.op"(%y) : (i32) -> () }
          %y = arith.constant 1 : i32
          func.return
        }
    """
    fault = first_fault(parse_module(context(), text))
    assert fault is not None
    assert fault.op.name == "test.op"


def test_ops_with_a_symbol_are_described_by_it():
    module = parse_module(context(), "func.func private @f() -> ()")
    assert describe(next(iter(module.body.block.ops))) == "'func.func' op @f"


@pytest.mark.parametrize(
    ("location", "described"),
    [
        ("", "'test.op' op %y"),
        ('loc("fc1")', "'test.op' op %y from \"fc1\""),
        ('loc("a.py":1:2)', "'test.op' op %y from a.py:1:2"),
        ('loc(fused["a", "b"("b.py":1:2)])', '\'test.op\' op %y from "a", "b" (b.py:1:2)'),
        ('loc(callsite("a" at "b.py":1:2))', "'test.op' op %y from \"a\" called from b.py:1:2"),
    ],
)
def test_ops_are_described_by_their_place_in_the_model(location: str, described: str):
    module = parse_module(context(), f'%y = "test.op"() : () -> i32 {location}')
    assert describe(next(iter(module.body.block.ops))) == described
