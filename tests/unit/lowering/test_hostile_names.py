"""
Names in IR are data: a hostile name changes only strings of the program, or the program is refused.

A program with a hostile name in one place is compared, as a syntax tree, with the program that has a plain name there:
only strings and the names of the program may differ. Both are run, and neither may create a file.
"""

from __future__ import annotations

import ast
import io
from functools import lru_cache
from pathlib import Path

import pytest
from emitted import decide_reuse
from ir_files import context
from launches import covering
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.printer import Printer
from xdsl.utils.exceptions import DiagnosticException
from xdsl.utils.lexer import Input

from shardwright.lowering.codegen.check_program import ProgramTextError, check_program
from shardwright.lowering.codegen.emit_python import emit_python
from shardwright.lowering.codegen.load_program import load_text
from shardwright.lowering.codegen.python_text import NotPythonError, checked_name, dotted, dtype, quoted, remark
from shardwright.passes.reading import InvalidModuleError, TextError, read_module
from shardwright.runtime.layer_ranges import with_ranges

GOLDEN = Path(__file__).parent / "golden"
PLAIN = "plain name"
CANARY = "canary"

CALL = f"__import__('pathlib').Path('{CANARY}').touch()"
HOSTILE = {
    "code": CALL,
    "a string's end": f'", {CALL}, "',
    "a bracket's end": f"x=({CALL})) #",
    "lines": f"a\n{CALL}\n    # b, backward",
    "a docstring's end": f'"""\n{CALL}\n"""',
    "escapes": "a\\",
    "braces": "{}%s{__import__}",
    "separators": f"\u2028{CALL}\u2029\x85\x0c{CALL}\r{CALL}\x00",
    "long": "import torch " + "y" * 600,
    "a keyword": "class",
    "é": "e\u0301\U0001f600",
}


def ir_string(text: str) -> str:
    """Return `text` as a string literal of IR."""
    out = io.StringIO()
    Printer(out).print_string_literal(text)
    return out.getvalue()


POSITIONS: dict[str, tuple[str, str, str]] = {
    "a parameter": ("updates", '{train.param = "w"', "{train.param = NAME"),
    "another name of it": ("updates", 'train.tied = ["head.w"]', "train.tied = [NAME]"),
    "the parameter of a state": ("updates", 'train.state = ["w", "exp_avg"]', 'train.state = [NAME, "exp_avg"]'),
    "a state": ("updates", 'train.state = ["w", "exp_avg"]', 'train.state = ["w", NAME]'),
    "a buffer": ("updates", 'train.buffer = "norm.mean"', "train.buffer = NAME"),
    "a constant": ("updates", 'train.constant = "mask"', "train.constant = NAME"),
    "an item of the batch": ("updates", 'train.batch = "0"', "train.batch = NAME"),
    "a gradient": ("updates", 'train.grad = "w"', "train.grad = NAME"),
    "a metric": ("updates", "tensor<f32> {train.loss}", "tensor<f32> {train.metric = NAME}"),
    "an output": ("updates", 'train.grad = "w"', "train.output = NAME"),
    "a group of parameters": ("updates", "{train.learning_rate}", "{train.learning_rate = NAME}"),
    "an optimizer": ("updates", 'kind = "adamw"', "kind = NAME"),
    "a setting of an optimizer": ("updates", "eps = 1.0e-08 : f64}}", "NAME = 1.0e-08 : f64}}"),
    "a setting's value": ("updates", "lr = 0.001 : f64", "lr = NAME"),
    "a setting of an update": ("updates", "weight_decay = 0.01", "NAME = 0.01"),
    "a value of an update": ("updates", "weight_decay = 0.01 : f64", "weight_decay = NAME"),
    "an argument of an op": ("updates", "{dim = [0], spmd", "{NAME = 1 : i64, dim = [0], spmd"),
    "a dtype": ("names", "{dtype = f64, spmd", "{dtype = NAME, spmd"),
    "a layer": ("updates", 'loc("scale"(', "loc(NAME("),
    "a file": ("updates", '"model.py":3:0', "NAME:3:0"),
    "an axis": ("tensor_parallel", '"dp"', "NAME"),
    "an axis of time": ("stages", '"micro"', "NAME"),
    "a mesh": ("updates", "@mesh", "@NAME"),
    "a function": ("updates", "func.func @step", "func.func @NAME"),
    "a stage": ("stages", "stage0", "NAME"),
    "a fragment": ("stages", '"forward0"', "NAME"),
    "a transfer": ("stages", '"h"', "NAME"),
    "an op": ("names", '"aten::logcumsumexp"', "NAME"),
    "an op's library": ("names", '"aten::logcumsumexp"', "TORCH"),
    "a kind of collective": ("names", 'spmd.start "all_reduce"', "spmd.start NAME"),
    "a tensor that is absent": ("names", 'absent = ["attn_mask"]', "absent = [NAME]"),
}
"""Positions of names: file, old text, new text; NAME in the new text is a string, or a part of a symbol."""


@lru_cache(maxsize=1)
def known() -> Context:
    return context()


def module_with(position: str, name: str) -> ModuleOp:
    golden, old, new = POSITIONS[position]
    text = (GOLDEN / f"{golden}.mlir").read_text()
    assert old in text
    if new == "TORCH":
        put = ir_string(f"aten::{name}")
    elif position == "a stage":
        text = text.replace('"stage0"', ir_string(name))
        put = ir_string(name)
    else:
        put = new.replace("NAME", ir_string(name))
    return read_module(known(), Input(text.replace(old, put), "<hostile>")).module


@lru_cache(maxsize=1)
def plain_module() -> ModuleOp:
    return module_with("a parameter", PLAIN)


def program(module: ModuleOp) -> str:
    decide_reuse(module)
    return emit_python(module, name="test", step_spec=None, versions={"shardwright": "1"})


class _Shape(ast.NodeTransformer):
    """A transformer that removes strings and the program's own names from a syntax tree."""

    KEPT = frozenset({"torch", "rt", "aten", "comm", "float", "range"})

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def _name(self, name: str) -> str:
        return name if name in self.KEPT else self.names.setdefault(name, f"name{len(self.names)}")

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._name(node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self._name(node.arg))

    def visit_With(self, node: ast.With) -> list[ast.AST]:
        """Ignore the ranges for profilers."""
        self.generic_visit(node)
        return [*node.body]

    def visit_Delete(self, node: ast.Delete) -> list[ast.AST]:
        """Ignore the number of names per `del`, which depends on their lengths."""
        return [ast.Delete([self.visit(each)]) for each in node.targets]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self._name(node.name)
        return self.generic_visit(node)


def shape(text: str) -> str:
    return ast.dump(_Shape().visit(ast.parse(text)))


def check_alike(hostile: str, plain: str) -> None:
    """Check that a program equals the plain one, and that both of its forms are free of side effects."""
    assert shape(hostile) == shape(plain)
    assert shape(with_ranges(hostile)) == shape(with_ranges(plain))
    load_text(hostile, "<hostile>")
    load_text(with_ranges(hostile), "<hostile>")
    assert not Path(CANARY).exists()


REFUSALS = (TextError, InvalidModuleError, DiagnosticException)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("position", "first"), covering(POSITIONS, range(2)))
def test_a_hostile_name_changes_only_strings_of_a_program(position: str, first: int) -> None:
    """Every second name is tried, from the first one or from the second one."""

    def made(name: str) -> str | Exception:
        try:
            return program(module_with(position, name))
        except REFUSALS as error:
            return error

    plain, foreign = made(PLAIN), made("plain.name")
    for name in list(HOSTILE.values())[first::2]:
        found = made(name)
        if isinstance(found, str):
            # An attribute whose name has a dot belongs to a dialect, and is not an argument.
            alike = foreign if isinstance(plain, Exception) and "." in name else plain
            assert isinstance(alike, str), found
            check_alike(found, alike)
        assert not Path(CANARY).exists()


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_the_name_of_a_program_changes_only_strings(name: str) -> None:
    """The name of a program comes from a plan's folder, or from a user's function."""
    module = plain_module()
    decide_reuse(module)

    def made(text: str) -> str:
        return emit_python(module, name=text, step_spec=text, versions={"shardwright": text, f"{text} too": text})

    found = made(name)
    check_alike(found, made(PLAIN))
    ((plan, _),) = load_text(found, "<hostile>")
    assert (plan.name, plan.step_spec) == (name, name)
    assert plan.versions == {"shardwright": name, f"{name} too": name}


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_the_name_of_a_value_becomes_a_valid_name(name: str) -> None:
    module = plain_module()

    def made(hint: str) -> str:
        for op in module.walk():
            arguments = (each for region in op.regions for block in region.blocks for each in block.args)
            for value in (*op.results, *arguments):
                value._name = f"{hint}{len(op.results)}"
        return program(module)

    check_alike(made(name), made(PLAIN))


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_strings_become_literals_and_comments_stay_on_one_line(name: str) -> None:
    assert ast.literal_eval(quoted(name)) == name
    assert quoted(name).isprintable()
    assert len(remark(name).splitlines()) <= 1
    [only] = ast.parse(f'"""\n{remark(name)}\n"""  # {remark(name)}').body
    assert isinstance(only, ast.Expr)
    for gate in (checked_name, dotted, dtype):
        with pytest.raises(NotPythonError):
            gate(name)


@pytest.mark.parametrize(
    "line",
    [
        "import os",
        "from torch import nn",
        "x = lambda: 1",
        "x = [y for y in (1, 2)]",
        "x = f'{torch}'",
        "x = __import__('os')",
        "x = eval('1')",
        "x = torch.load('file')",
        "x = torch.ops.load_library('file')",
        "x = rt.launch.sys.exit()",
        "x = torch.add.__globals__['os'].system('true')",
        "x = ''.format(1)",
        "x = (torch.add)(1)(2)",
        "while True: pass",
        "with torch: pass",
        "class A: pass",
        "if torch: x = 1",
        "x = (y := 1)",
        "for x in torch.ops: del x",
        "def step(x=aten.ones.default()): return x",
        "@torch.add\ndef step(x): return x",
        "x = \ud800",
        "x = (",
    ],
)
def test_statements_that_no_program_has_are_refused(line: str) -> None:
    head = "import torch\nfrom shardwright import runtime as rt\naten = torch.ops.aten\n"
    check_program(head)
    with pytest.raises(ProgramTextError):
        check_program(head + line + "\n")
