"""Printed IR parses back to the same text, in both forms, for every IR file under tests/filecheck."""

import re
from pathlib import Path

import pytest
from ir_files import chunks, context, mlir_files, name_of, parse, run_lines
from xdsl.dialects.builtin import ModuleOp

from shardwright.dialects.text import module_text

_SKIP = re.compile(r"^\s*//\s*NO-ROUND-TRIP:\s*\S+", re.MULTILINE)


def is_valid(path: Path) -> bool:
    """Return whether the file has IR that verifies, unlike the tests of error messages."""
    text = path.read_text()
    expects_errors = any("--verify-diagnostics" in command for command in run_lines(text))
    return "invalid" not in path.parts and not expects_errors and not _SKIP.search(text)


def both_forms(module: ModuleOp) -> tuple[str, str]:
    """Return the module in the custom form and in MLIR's generic form."""
    return module_text(module), module_text(module, generic=True)


@pytest.mark.parametrize("path", [path for path in mlir_files() if is_valid(path)], ids=name_of)
def test_printed_ir_parses_back_to_the_same_text(path: Path):
    text = path.read_text()
    allow_unregistered = any("--allow-unregistered-dialect" in command for command in run_lines(text))
    for chunk in chunks(text):
        ctx = context(allow_unregistered=allow_unregistered)
        module = parse(chunk, ctx, str(path))
        custom, generic = both_forms(module)
        assert both_forms(parse(custom, ctx)) == (custom, generic)
        assert both_forms(parse(generic, ctx)) == (custom, generic)
