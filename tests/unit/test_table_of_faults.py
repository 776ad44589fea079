"""Every row of the table of faults in the manual names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
DOCUMENT = TESTS.parent / "docs" / "table-of-faults.md"
LEAST = 30

ROWS = {row[1]: row[0] for row in re.finditer(r"^\| (\d+) \|.*\|$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)}
CASE, FILE = re.compile(r"`(\w+\.py): ([^`]+)`"), re.compile(r"`((?:passes|dialects)/[\w/.-]+\.mlir)`")


@cache
def cases_of(name: str) -> frozenset[str]:
    """Return the functions of a test file, the keys of its tables, and the values of its parametrized tests."""
    (path,) = TESTS.rglob(name)
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        for each in node.keys if isinstance(node, ast.Dict) else node.elts if isinstance(node, ast.List) else ():
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                found.add(each.value)
    return frozenset(found)


def test_rows_are_numbered_and_not_too_few():
    assert list(ROWS) == [str(number + 1) for number in range(len(ROWS))]
    assert len(ROWS) >= LEAST


@pytest.mark.parametrize("number", ROWS)
def test_a_row_names_tests_that_exist(number: str):
    cell = ROWS[number].rpartition(" | ")[2]
    cases, files = CASE.findall(cell), FILE.findall(cell)
    assert cases or files
    for name, case in cases:
        assert case in cases_of(name), f"{name} has no case {case!r}"
    for file in files:
        assert (TESTS / "filecheck" / file).is_file()
