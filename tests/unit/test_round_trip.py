"""What is printed parses back to the same text, in both forms, for every IR file under tests/filecheck."""

import re
from pathlib import Path

import pytest
from ir_files import chunks, context, in_custom_form, in_generic_form, mlir_files, name_of, parse, run_lines

_SKIP = re.compile(r"^\s*//\s*NO-ROUND-TRIP:\s*\S+", re.MULTILINE)


def is_valid(path: Path) -> bool:
    """Say whether the file holds IR that verifies: not one of the tests of error messages."""
    text = path.read_text()
    expects_errors = any("--verify-diagnostics" in command for command in run_lines(text))
    return "invalid" not in path.parts and not expects_errors and not _SKIP.search(text)


@pytest.mark.parametrize("path", [path for path in mlir_files() if is_valid(path)], ids=name_of)
def test_printed_ir_parses_back_to_the_same_text(path: Path):
    text = path.read_text()
    allow_unregistered = any("--allow-unregistered-dialect" in command for command in run_lines(text))
    for chunk in chunks(text):
        ctx = context(allow_unregistered=allow_unregistered)
        module = parse(chunk, ctx, str(path))
        custom, generic = in_custom_form(module), in_generic_form(module)
        from_custom, from_generic = parse(custom, ctx), parse(generic, ctx)
        assert in_custom_form(from_custom) == custom
        assert in_generic_form(from_generic) == generic
        assert in_generic_form(from_custom) == generic
        assert in_custom_form(from_generic) == custom
