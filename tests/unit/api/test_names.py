"""A plan keeps any names of modules, parameters and batch items, and its printed form reads back."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from shardwright import TrainingStep
from shardwright.api.calibration.local_cluster import generic_cluster
from shardwright.api.compile import PlanOptions, compile_step, import_training_step
from shardwright.dialects.text import module_text, parse_module
from shardwright.lowering.capture.captured import CaptureError
from shardwright.lowering.codegen.load_program import load_program
from shardwright.tools.cli import main
from shardwright.tools.ir_input import full_context, load_module

NAMES = [
    *("é", "e\u0301", "\U0001f600", "a b", '"q"', "'", "a\nb", "\\", "\\n", "%x", "{}", "@x", "#", "//", "\t", "\x00"),
    *("\u2028", "class", "½", "²", "中文", "ª", "_", "1", "_1", "x_1", "-", "$", "loc", '")) {'),
]


class Named(nn.Module):
    """A model with layers and parameters of the given names."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names
        for name in names:
            self.add_module(name, nn.Linear(4, 4))
            self.register_parameter(f"{name} too", nn.Parameter(torch.ones(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.names:
            x = torch.tanh(self.get_submodule(name)(x)) * getattr(self, f"{name} too")
        return x.square().sum()


class Half(nn.Module):
    """A model with a parameter whose name is half of a surrogate pair."""

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("\udfff", nn.Parameter(torch.ones(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * getattr(self, "\udfff")).sum()


def named(names: list[str]) -> TrainingStep:
    return TrainingStep(Named(names), None, partial(torch.optim.SGD, lr=0.1), (torch.ones(4, 4),))


def test_a_plan_keeps_names_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    step = named(NAMES)
    folder = compile_step(step, generic_cluster(2), PlanOptions("eliminate"), name="é").save(tmp_path)
    text = (folder / "step.mlir").read_text(encoding="utf-8")
    read = load_module(str(folder / "step.mlir"))
    assert module_text(read) == text
    generic = module_text(read, generic=True)
    assert module_text(parse_module(full_context(), generic), generic=True) == generic
    ((plan, _),) = load_program(folder / "program.py")
    names = {name for name, _ in step.model.named_parameters()}
    assert {value.name for value in plan.inputs if value.role == "param"} == names
    assert main(["simulate", str(folder)]) == 0
    assert "internal error" not in capsys.readouterr().err


def test_an_escape_may_be_a_part_of_a_utf8_character():
    text = '"test.op"() {a = "\\C3\\A9\\0A", b = "\\C3"} : () -> ()'
    printed = module_text(parse_module(full_context(), text))
    assert 'a = "\\C3\\A9\\0A"' in printed
    assert module_text(parse_module(full_context(), printed)) == printed


def test_a_name_that_no_file_can_hold_is_refused():
    with pytest.raises(ValueError, match=r"its module '\\ud800' has a name that UTF-8 cannot write"):
        named(["\ud800"])
    step = TrainingStep(Half(), None, partial(torch.optim.SGD, lr=0.1), (torch.ones(4, 4),))
    with pytest.raises(CaptureError, match="has a name that UTF-8 cannot write"):
        import_training_step(step)
