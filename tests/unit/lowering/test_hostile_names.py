"""Names in IR are data: none of them becomes code of a program, and no op does more than compute."""

from __future__ import annotations

import ast

import pytest
from xdsl.utils.exceptions import VerifyException

from shardwright.ir.mesh import Axis, AxisKind, Mesh
from shardwright.lowering.calls import resolve
from shardwright.lowering.emit_layout import lines
from shardwright.lowering.emit_plan import _mesh_text, axes_doc

HOSTILE = [
    'x": 2}) or exec("1") or dict(**{"y',
    '"""\nimport os\n"""',
    "a\\",
    "class",
    "self",
    "\u2028x",
    "é",
    "'\"",
    "a\nb",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_axis_name_is_one_key(name: str) -> None:
    text = "\n".join(lines(axes_doc("dict", [Axis(name, 2)])))
    assert eval(text, {"__builtins__": {}, "dict": dict}) == {name: 2}


@pytest.mark.parametrize("name", HOSTILE)
def test_axis_name_does_not_end_the_docstring(name: str) -> None:
    text = f'"""\n{_mesh_text(Mesh((Axis(name, 2, AxisKind.TEMPORAL),)))}\n"""'
    [only] = ast.parse(text).body
    assert isinstance(only, ast.Expr)


@pytest.mark.parametrize(
    "target",
    [
        "aten.from_file.default",
        "aten.from_file.out",
        "aten.add.out",
        "aten.add_.Tensor",
        "aten.set_.source_Tensor",
        "aten._print.default",
        "debugprims.load_tensor.default",
        "aten.__class__.default",
        "aten.save.default",
        "__class__.__init__.__globals__",
    ],
)
def test_op_that_does_more_than_compute_is_refused(target: str) -> None:
    with pytest.raises(VerifyException):
        resolve(target)


def test_op_that_computes_is_found() -> None:
    assert resolve("aten.mm.default")._schema.name == "aten::mm"
