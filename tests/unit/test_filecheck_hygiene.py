"""Every IR file under tests/filecheck checks something."""

from pathlib import Path

import pytest
from hygiene import complaints
from ir_files import chunks, mlir_files, name_of, run_lines

CLEAN = """\
// RUN: opt-tool %s \\
// RUN:   --pass-pipeline=dce | filecheck %s
// RUN: opt-tool %s | filecheck %s --check-prefixes=GENERIC,BOTH

// Prose: the second op is dead. CHECK it twice.
// CHECK-LABEL: func.func @f
// CHECK-COUNT-2: return
// CHECK-NEXT{LITERAL}: [[
// GENERIC: "func.func"
//   BOTH-NOT: dead
func.func @f() { func.return }
"""


def planted(line: str) -> str:
    """Return a clean file with one bad line added."""
    return CLEAN + line + "\n"


FAULTS = {
    "misspelt": (planted("// CHEKC: x"), "capitals"),
    "misspelt-suffix": (planted("// CHECK-NXT: x"), "capitals"),
    "after-code": (planted("func.return // CHEKC: x"), "capitals"),
    "underscore": (planted("// CHECK_NEXT: x"), "capitals"),
    "unknown-prefix": (planted("// OTHER: x"), "capitals"),
    "blank-before-colon": (planted("// CHECK : x"), "lacks the colon"),
    "no-colon": (planted("// CHECK-NEXT x"), "lacks the colon"),
    "misspelt-no-colon": (planted("// CHEKC-NEXT x"), "misspelt"),
    "lower-case": (planted("// check-next: x"), "misspelt"),
    "one-slash": (planted("/ CHECK: x"), "one slash"),
    "misspelt-expectation": (planted("// expected-eror {{x}}"), "no expectation"),
    "no-run-line": ("// CHECK: x\n", "no RUN line"),
    "misspelt-run": (planted("// RUN opt-tool %s"), "lacks the colon"),
    "output-thrown-away": ("// RUN: opt-tool %s\n", "does not end in filecheck"),
    "checked-then-discarded": ("// RUN: opt-tool %s | filecheck %s | cat\n// CHECK: x\n", "does not end"),
    "prefix-without-directive": ("// RUN: opt-tool %s | filecheck %s\n", "no directive with the prefix"),
    "no-reason": ("// RUN: opt-tool %s\n// NO-FILECHECK:\n", "does not end in filecheck"),
    "no-expectation": ("// RUN: opt-tool %s --verify-diagnostics\n", "nothing is checked"),
}

ACCEPTED = {
    "clean": CLEAN,
    "reason": "// RUN: opt-tool %s\n// NO-FILECHECK: the exit code is the test\n",
    "diagnostics": "// RUN: opt-tool %s --verify-diagnostics\n// expected-error@+1 {{x}}\n",
}


@pytest.mark.parametrize("path", mlir_files(), ids=name_of)
def test_file_checks_something(path: Path):
    assert not complaints(path.read_text())


@pytest.mark.parametrize("text", list(ACCEPTED.values()), ids=list(ACCEPTED))
def test_clean_file_is_accepted(text: str):
    assert complaints(text) == []


@pytest.mark.parametrize(("text", "expected"), list(FAULTS.values()), ids=list(FAULTS))
def test_planted_fault_is_found(text: str, expected: str):
    assert any(expected in complaint for complaint in complaints(text))


def test_run_lines_join_continuations():
    assert run_lines(CLEAN)[0] == "opt-tool %s   --pass-pipeline=dce | filecheck %s"


def test_chunks_keep_line_numbers():
    first, second = chunks("a\n// -----\nb\n")
    assert first == "a\n"
    assert second.splitlines().index("b") == 2
