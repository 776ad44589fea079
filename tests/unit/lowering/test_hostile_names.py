"""Names in IR are data: none of them becomes code of a program, and no op does more than compute."""

from __future__ import annotations

import ast
from functools import partial
from pathlib import Path

import pytest
import torch
from split_cluster import split_cluster
from torch import nn
from xdsl.utils.exceptions import VerifyException

from shardwright.api.compile import PlanOptions, compile_step
from shardwright.api.training_step import TrainingStep
from shardwright.ir.mesh import Axis, AxisKind, Mesh
from shardwright.lowering.calls import resolve
from shardwright.lowering.emit_layout import lines
from shardwright.lowering.emit_plan import _mesh_text, axes_doc
from shardwright.lowering.load_program import load_program
from shardwright.tools import opt_tool

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


MODULES = ["é", 'a"b\\', "class", "\u2028x", "é\n'"]


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


def test_modules_may_be_called_anything(tmp_path: Path) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in MODULES:
                self.add_module(name, nn.Linear(6, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for name in MODULES:
                x = self.get_submodule(name)(x)
            return x

    batch = torch.randn(4, 6), torch.zeros(4, dtype=torch.int64)
    step = TrainingStep(Named, nn.functional.cross_entropy, partial(torch.optim.SGD, lr=0.1), batch)
    folder = compile_step(step, split_cluster(Mesh.of(gpu=2)), PlanOptions(algorithm="eliminate")).save(tmp_path / "p")
    text = (folder / "step.mlir").read_text()
    assert opt_tool.main([str(folder / "step.mlir"), "-o", str(tmp_path / "again.mlir")]) == 0
    assert (tmp_path / "again.mlir").read_text() == text
    ((plan, _),) = load_program(folder / "program.py")
    assert {value.name for value in plan.inputs if value.role == "param"} >= {f"{name}.weight" for name in MODULES}
