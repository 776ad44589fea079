"""Programs with a range around each layer compute the same, and the ops of each layer are in its range."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from split_cluster import split_cluster
from update_ranges import without_update
from xdsl.dialects.builtin import FileLineColLoc, IntAttr, NameLoc, StringAttr, UnknownLoc
from xdsl.dialects.test import TestOp as AnyOp

from shardwright.api.compile import PlanOptions, compile_step
from shardwright.ir.mesh import Mesh
from shardwright.lowering.codegen.errors import place
from shardwright.models.registry import training_step
from shardwright.runtime.layer_ranges import range_name, with_ranges

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.py"))

NAMES = {
    "    # h.0.mlp.up  (models/transformer.py:96), backward": "backward h.0.mlp.up",
    "    # h.0.mlp.up  (models/transformer.py:96)": "forward h.0.mlp.up",
    "    # models/gpt2.py:58": "forward models/gpt2.py:58",
    "    # my models/gpt2.py:58, backward": "backward my models/gpt2.py:58",
    "    # h.0.mlp.up, update": "update h.0.mlp.up",
    "    # wte": "forward wte",
    "    # 4 parts of the batch, one after the other": None,
    "    # The parts of the batch, as the schedule has them.": None,
    "    # still needed as it is: w, x_1": None,
    "# What differs between ranks: an entry per rank.": None,
}


@pytest.mark.parametrize("line", NAMES)
def test_the_name_of_a_range(line: str):
    assert range_name(line) == NAMES[line]


@pytest.mark.parametrize("most", [None, 90, 20])
@pytest.mark.parametrize("layer", ["h.0.mlp", "a b", "", "(x)", "l" * 60])
@pytest.mark.parametrize("file", ["", "/home/me/my models/gpt2.py"])
def test_comments_with_places_are_parsed_into_ranges(layer: str, file: str, most: int | None):
    op = AnyOp()
    inner = FileLineColLoc(StringAttr(file), IntAttr(12), IntAttr(0)) if file else UnknownLoc()
    op.location = NameLoc(StringAttr(layer), inner) if layer else inner
    told = place(op, most)
    expected = layer.replace(" ", "_") or ("my models/gpt2.py:12" if file else "")
    assert range_name(f"    # {told}") == (f"forward {expected}" if expected else None)


def statements(program: str) -> list[str]:
    """Return the statements of a program without ranges and layout."""

    class Flat(ast.NodeTransformer):
        def visit_With(self, node: ast.With) -> list[ast.stmt]:
            return node.body

        def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom | None:
            return node if node.module != "shardwright.runtime.layer_ranges" else None

    return ast.unparse(Flat().visit(ast.parse(program))).splitlines()


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_ranges_do_not_change_the_statements(path: Path):
    program = path.read_text()
    assert statements(with_ranges(program)) == statements(program)


def ranges(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Yield the statements of a function that call a library, each with its range."""
    for statement in function.body:
        name, inside = "", [statement]
        if isinstance(statement, ast.With):
            call = statement.items[0].context_expr
            assert isinstance(call, ast.Call)
            name, inside = ast.literal_eval(call.args[0]), statement.body
        for each in inside:
            text = ast.unparse(each)
            if "aten." in text or "rt." in text:
                yield name, text


def test_all_ops_of_layers_are_in_their_ranges():
    made = training_step("mlp-tiny")
    compiled = compile_step(made, split_cluster(Mesh.of(gpu=2)), PlanOptions(algorithm="eliminate"))
    (step,) = (node for node in ast.parse(with_ranges(compiled.program)).body if isinstance(node, ast.FunctionDef))
    found = list(ranges(step))
    layers = {name.rpartition(".")[0] for name, _ in made.build_model().named_parameters()}
    names = {name for name, _ in found}
    assert {f"{phase} {layer}" for layer in layers for phase in ("forward", "backward")} <= names
    # One call updates the parameters of both layers, in the range of their common module.
    assert "update layers" in names
    assert not without_update(layers, names)
    updates = [name for name, text in found if "adamw_(" in text]
    assert updates
    assert all(name.startswith("update ") for name in updates)
    assert all(name for name, text in found if "aten.addmm" in text or "aten.mm" in text)
