"""Source paths of ops are the same on every machine."""

import re
from pathlib import Path

import pytest
import torch.nn.functional
from ir_files import context

from shardwright.api.compile import import_training_step
from shardwright.api.steps import find_step
from shardwright.dialects.text import module_text, parse_module
from shardwright.lowering.importer.source_path import source_path
from shardwright.models import gpt2


def test_a_module_has_its_path_in_its_package():
    assert source_path(torch.nn.functional.__file__) == "torch/nn/functional.py"
    assert source_path(gpt2.__file__) == "shardwright/models/gpt2.py"
    assert source_path(torch.nn.__file__) == "torch/nn/__init__.py"


def test_a_script_has_its_path_in_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert source_path(str(tmp_path / "training" / "main.py")) == "training/main.py"
    assert source_path("/elsewhere/job.py") == "job.py"


def test_an_imported_step_names_no_folder_of_this_machine():
    text = module_text(import_training_step(find_step("gpt2-tiny")))
    files = set(re.findall(r'"([^"]*[.]py)":[0-9]+', text))
    assert "shardwright/models/gpt2.py" in files
    assert not [file for file in files if file.startswith("/")]
    parse_module(context(), text, "step.mlir").verify()
