"""Every failure is one message with its place and advice, with exit code 1 and without a traceback."""

import io
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from forked import run_python
from xdsl.context import Context
from xdsl.dialects import test
from xdsl.dialects.arith import AddiOp, MuliOp
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern
from xdsl.utils.exceptions import PassFailedException

from shardwright.passes import pipeline_spec
from shardwright.passes.errors import fail
from shardwright.tools.opt_tool import main

ADD = """\
func.func @f(%x: i32) -> i32 {
  %y = arith.addi %x, %x : i32 loc("fc1"("model.py":3:4))
  func.return %y : i32
}
"""
SHARDED = """\
spmd.mesh @mesh = <["node"=2, "gpu"=4]>
func.func @step(%x: tensor<8x4xf32>, %w: tensor<4x2xf32>) -> tensor<8x2xf32> {
  %h = aten.mm %x, %w {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}], [{}, {}]) -> ([{"gpu"}, {}])>}
      : (tensor<8x4xf32>, tensor<4x2xf32>) -> tensor<8x2xf32>
  func.return %h : tensor<8x2xf32>
}
"""


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., list[str]]:
    """Return a function that runs the tool on a text and returns the lines of its error, without the path."""

    def run(text: str | bytes, *arguments: str) -> list[str]:
        path = tmp_path / "bad.mlir"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        assert main([str(path), *arguments]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert "Traceback" not in err
        assert err.count(" error: ") == 1
        return err.replace(f"{path}:", "").splitlines()

    return run


BAD_IR = {
    "empty": ("", " error: the file is empty", "at least one operation"),
    "only-comments": ("// nothing\n\n", " error: the file is empty", "at least one operation"),
    "cut-off": (
        ADD[: ADD.index("loc(")],
        "2:31: error: the text ends in the middle",
        "the '{' of line 1 is not closed",
    ),
    "cut-off-in-a-string": (
        ADD[: ADD.index(".py")],
        "2:42: error: this string is not closed on its line",
        "",
    ),
    "too-many-braces": (ADD + "}", "5:1: error: expected an operation", ""),
    "no-ir": ("hello world", "1:1: error: operation hello is not registered", "written dialect.name"),
    "unknown-op": (ADD.replace("addi", "adi"), "2:8: error: operation arith.adi is not", "mean 'arith.andi'"),
    "unknown-dialect": (
        "arit.addi",
        "1:1: error: operation arit.addi is not",
        "no dialect 'arit'; did you mean",
    ),
    "unknown-type": (
        "func.func @f(%x: !arith.foo) {}",
        "1:19: error: 'arith.foo' is not",
        "",
    ),
    "unknown-alias": ("func.func @f(%x: !i) {}", "1:20: error: undefined symbol alias '!i'", "!dialect.name"),
    "undefined-value": (ADD.replace("%x,", "%z,"), "2:19: error: value %z is used but not defined", ""),
    "undefined-values": ('"test.op"(%a, %b) : (i1, i1) -> ()', "1:11: error: value %a is used", ""),
    "defined-twice": (ADD.replace("%y =", "%x ="), "2:3: error: SSA value %x is already defined", ""),
    "wrong-type": (ADD.replace("x : i32 l", "x : i64 l"), "2:19: error: operand is used with type i64", ""),
    "wrong-index": (ADD.replace("%x,", "%x#4,"), "2:19: error: SSA value tuple index out of bounds", ""),
    "missing-block": ("func.func @f() {\n  cf.br ^a\n}", "2:9: error: region ends with missing block", ""),
    "repeated-block": (
        "func.func @f() {\n^a:\n  func.return\n^a:\n  func.return\n}",
        "4:1: error: re-declaration of block 'a'",
        "",
    ),
    "unclosed-string": (f'"{"x" * 60}', "1:1: error: this string is not closed on its line", ""),
    "bad-escape": (r'"test.op"() {a = "\q"} : () -> ()', "1:19: error: unknown escape in a string", ""),
    "bad-number": ('"test.op"() {a = 300 : i8} : () -> ()', "1:26: error: integer value 300 is out of", ""),
    "huge-number": (f'"test.op"() {{a = {"9" * 5000}}} : () -> ()', "value has 5000 digits", ""),
    "no-ascii-digit": ("%x = arith.constant 1² : i32", "error: ", ""),
    "nesting": (f'"test.op"() {{a = {"[" * 3000}', "error: nested too deeply", ""),
    "nul": ("func.func \0", "1:11: error: unexpected character: \\x00", ""),
    "other-comment": (
        "func.func @f() { /* x */ func.return }",
        "1:18: error: expected an operation, a block",
        "",
    ),
    "not-utf-8": (
        b"func.func @f() {\n  \xff }",
        "2:3: error: byte 0xff is not UTF-8",
        "another kind of file",
    ),
    "wrong-result": (ADD.replace("-> i32", "-> i64"), "3:3: error: 'func.return' op: expected arguments", ""),
    "no-terminator": (ADD.replace("  func.return %y : i32\n", ""), "2:3: error: 'arith.addi' op %y from", ""),
    "used-too-early": (
        ADD.replace("%x, %x", "%z, %x").replace("  func", "  %z = arith.muli %x, %x : i32\n  func"),
        "2:3: error: 'arith.addi' op %y from \"fc1\" (model.py:3:4): operand 0 is defined only further down",
        "",
    ),
    "repeated-symbol": (
        "// two\nfunc.func private @f() -> ()\nfunc.func private @f() -> ()",
        "2:1: error: 'builtin.module' op: redefinition of symbol \"f\"",
        "",
    ),
}


@pytest.mark.parametrize(("text", "error", "hint"), BAD_IR.values(), ids=BAD_IR)
def test_invalid_ir_is_an_error_with_a_hint(fails: Callable[..., list[str]], text: str | bytes, error: str, hint: str):
    lines = fails(text)
    assert error in lines[0]
    assert hint in (lines[-1] if lines[-1].startswith("hint: ") else "")


def test_the_line_is_shown_with_a_caret(fails: Callable[..., list[str]]):
    assert fails(ADD.replace("addi", "adi")) == [
        "2:8: error: operation arith.adi is not registered",
        '    %y = arith.adi %x, %x : i32 loc("fc1"("model.py":3:4))',
        "         ^^^^^^^^^",
        "hint: did you mean 'arith.andi'?",
    ]


def test_the_caret_is_right_after_tabs_and_in_long_lines(fails: Callable[..., list[str]]):
    assert fails("func.func @f() {\n\tfunc.retrun }")[1:3] == ["  \tfunc.retrun }", "  \t^^^^^^^^^^^"]
    _, line, carets, *_ = fails("func.func @f() {" + " " * 1000 + "func.retrun" + " " * 1000 + "}")
    assert len(line) < 200
    assert line.index("func.retrun") == carets.index("^")


def test_related_places_are_noted(fails: Callable[..., list[str]]):
    text = "func.func @f() {\n^a:\n  func.return\n^a:\n  func.return\n}"
    assert fails(text)[-1] == "note: 2:1: originally declared here"


@pytest.mark.parametrize("end", range(ADD.index("{") + 1, len(ADD) - 3))
def test_a_truncated_file_is_an_ordinary_error(fails: Callable[..., list[str]], end: int):
    (first, *_) = fails(ADD[:end])
    assert "internal error" not in first
    assert "cannot be read here" not in first


@pytest.mark.parametrize("seed", range(300))
def test_random_changes_of_the_text_cause_no_crash(capsys: pytest.CaptureFixture[str], tmp_path: Path, seed: int):
    dice = random.Random(seed)
    text = list(ADD + SHARDED)
    for _ in range(dice.randint(1, 3)):
        at, other = dice.randrange(len(text)), dice.randrange(len(text))
        deleted, copied = dice.randint(0, 4), dice.randint(0, 9)
        text[at : at + deleted] = [
            *text[other : other + copied],
            dice.choice("{}()[]<>\"'%#@!^:,=-+?/\\ \n019.é²\0"),
        ]
    path = tmp_path / "slip.mlir"
    path.write_text("".join(text))
    code = main([str(path), "-p", "canonicalize"])
    err = capsys.readouterr().err
    assert "internal error" not in err
    assert (code, err.count(" error: ")) in ((0, 0), (1, 1)), err


class TestFiles:
    """Faults of a file before its text is parsed."""

    @pytest.mark.parametrize(
        ("name", "reason"),
        [("missing.mlir", "No such file"), (".", "Is a directory"), ("a\0b", "embedded null")],
    )
    def test_unreadable(self, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, reason: str):
        assert main([str(tmp_path / name)]) == 1
        err = capsys.readouterr().err
        assert f"error: cannot read: {reason}" in err
        assert "hint: give the path of an IR file" in err

    def test_unwritable(self, capsys: pytest.CaptureFixture[str], tmp_path: Path):
        source = tmp_path / "add.mlir"
        source.write_text(ADD)
        assert main([str(source), "-o", str(tmp_path / "none" / "out.mlir")]) == 1
        assert "out.mlir: error: cannot write: No such file or directory" in capsys.readouterr().err

    def test_empty_standard_input(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"")))
        assert main([]) == 1
        assert capsys.readouterr().err.startswith("<stdin>: error: the file is empty")


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["--print-ir-after-al"], "unknown option '--print-ir-after-al'", "'--print-ir-after-all'?"),
        (["--xyzzy=3"], "unknown option '--xyzzy'", "opt-tool --help lists"),
        (["a.mlir", "b.mlir"], "at most one input file is allowed, but 'b.mlir' is another", ""),
        (["--verify-each=maybe"], "takes true or false, not 'maybe'", "opt-tool --help"),
        (["-o"], "expected one argument", "opt-tool --help"),
        (["--verify-numerics-seed=x"], "invalid int value: 'x'", "opt-tool --help"),
        (["--print-ir-after=dce", "-p", "cse"], "no pass 'dce' in the pipeline", "it runs cse"),
        (["--print-ir-before=dce"], "no pass 'dce' in the pipeline", "it runs no pass"),
    ],
)
def test_invalid_command_lines_are_errors_with_a_hint(
    capsys: pytest.CaptureFixture[str], arguments: list[str], error: str, hint: str
):
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("opt-tool: error: ")
    assert error in err
    assert hint in err


@pytest.mark.parametrize(
    ("pipeline", "lines"),
    [
        (
            "dce,canonicalise",
            ["1:5: error: unknown pass 'canonicalise'", "      ^^^^^^^^^^^^", "'canonicalize'"],
        ),
        ("dce{x=1}", ["1:5: error: pass 'dce' has no option 'x'", "      ^", "it takes no options"]),
        (
            "convert-scf-to-openmp{chunk=big}",
            [
                "1:23: error: option 'chunk' of pass 'convert-scf-to-openmp' takes int | none, not 'big'",
                "chunk: int",
            ],
        ),
        ("dce,,cse", ["1:5: error: malformed pipeline: expected pass name here", "hint: write pass{option="]),
    ],
)
def test_invalid_pipelines_are_errors_with_their_place(
    fails: Callable[..., list[str]], pipeline: str, lines: list[str]
):
    found = "\n".join(fails(ADD, "-p", pipeline))
    assert all(line in found for line in ["<pass-pipeline>:", f"\n  {pipeline}\n", *lines])


class AddToMul(RewritePattern):
    """Replace every addition by a multiplication, and then apply `then` to it."""

    def __init__(self, then: Callable[[Operation], object]) -> None:
        self.then = then

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if isinstance(op, AddiOp):
            product = MuliOp(op.lhs, op.rhs)
            rewriter.replace(op, product)
            self.then(product)


def crash(op: Operation) -> None:
    raise KeyError("fc1")


def refuse(op: Operation) -> None:
    raise PassFailedException("no room;\nit needs 3 GB")


def emit(op: Operation) -> None:
    op.emit_error("not here", PassFailedException("not here"))


def spoil(op: Operation) -> None:
    op.properties["overflowFlags"] = StringAttr("x")


def make_above(op: Operation) -> None:
    """Insert an op before `op` that uses its result."""
    block = op.parent
    assert block is not None
    block.insert_op_before(test.TestOp([op.results[0]]), op)


class TestPasses:
    """A failing pass is named, with the op and, if the file has it, its line."""

    @pytest.fixture
    def runs(self, fails: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
        def run(then: Callable[[Operation], object], *arguments: str) -> list[str]:
            @dataclass(frozen=True)
            class MulPass(ModulePass):
                name = "mul"

                def apply(self, ctx: Context, op: ModuleOp) -> None:
                    PatternRewriteWalker(AddToMul(then), apply_recursively=False).rewrite_module(op)

            monkeypatch.setattr(pipeline_spec, "available_passes", lambda: {"mul": lambda: MulPass})
            return fails(ADD, "-p", "mul", *arguments)

        return run

    def test_failure_at_an_op(self, runs: Callable[..., list[str]]):
        assert runs(lambda op: fail(op, "has no rule; add one")) == [
            "1:1: error: pass 'mul' failed: 'arith.muli' op %y: has no rule; add one",
            "  func.func @f(%x: i32) -> i32 {",
            "  ^^^^^^^^^",
            "note: the op was made by a pass: %y = arith.muli %x, %x : i32",
        ]

    def test_failure_without_an_op(self, runs: Callable[..., list[str]]):
        lines = runs(refuse)
        assert lines[0] == "1:1: error: pass 'mul' failed: no room; [at 'arith.muli' op %y]"
        assert "note: it needs 3 GB" in lines

    def test_error_emitted_at_an_op(self, runs: Callable[..., list[str]]):
        assert runs(emit)[0] == "1:1: error: pass 'mul' failed: not here [at 'arith.muli' op %y]"

    def test_crash(self, runs: Callable[..., list[str]]):
        lines = runs(crash)
        assert lines[0] == "1:1: error: pass 'mul' crashed: KeyError: 'fc1' [at 'arith.muli' op %y]"
        assert lines[-1].startswith("hint: this is a fault of the pass and not of the file")

    def test_invalid_ir(self, runs: Callable[..., list[str]]):
        lines = runs(spoil, "--print-ir-after-all")
        (error,) = (line for line in lines if " error: " in line)
        assert error.startswith("1:1: error: pass 'mul' left IR that does not verify: ")
        assert error.endswith("[at 'arith.muli' op %y]")
        assert lines[0] == "// -----// IR Dump After mul Failed //----- //"
        assert any('"arith.muli"(%x, %x)' in line for line in lines)

    def test_a_use_too_early(self, runs: Callable[..., list[str]]):
        lines = runs(make_above)
        assert lines[0].endswith("operand 0 is defined only further down, by 'arith.muli' [at 'test.op' op]")


@pytest.mark.parametrize(("flags", "code"), [([], 1), (["--verify-each"], 1), (["--verify-each=false"], 0)])
def test_verification_can_be_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: list[str], code: int):
    class EmptyPass(ModulePass):
        name = "empty"

        def apply(self, ctx: Context, op: ModuleOp) -> None:
            for each in [each for each in op.walk() if each.name == "func.return"]:
                each.detach()

    path = tmp_path / "add.mlir"
    path.write_text(ADD)
    monkeypatch.setattr(pipeline_spec, "available_passes", lambda: {"empty": lambda: EmptyPass})
    assert main([str(path), "-p", "empty", *flags]) == code


def test_a_fault_of_the_tool_is_reported_as_internal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def broken(words: object) -> int:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("shardwright.tools.opt_tool._run", broken)
    assert main([]) == 1
    assert capsys.readouterr().err == (
        "opt-tool: error: internal error: ZeroDivisionError: division by zero\n"
        "hint: this is a fault of the tool; please report it with the output of --debug-traceback\n"
    )


def test_the_traceback_can_be_shown(tmp_path: Path):
    path = tmp_path / "bad.mlir"
    path.write_text("func.retrun")
    done = run_python("-m", "shardwright.tools.opt_tool", str(path), "--debug-traceback")
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("hint: did you mean 'func.return'")
