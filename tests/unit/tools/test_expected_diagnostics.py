"""`// expected-error` comments are matched one to one with the errors that a file produces."""

import pytest

from shardwright.tools.diagnostics import Diagnostic
from shardwright.tools.expected_diagnostics import Expectation, expectations, unmet

SOURCE = """\
// expected-error {{here}}
// expected-error@+1 {{next {{line}}}}
op
// expected-error@above {{above}}
// expected-note @-3 {{back}}
// expected-warning@below {{below}}
op
// expected-error@unknown {{nowhere}}
op // expected-remark {{same}}
// no expectation {{of}} any kind
"""


def error(line: int, message: str, *notes: str, hint: str = "") -> Diagnostic:
    return Diagnostic(message, "f.mlir", line, 1, "op", notes=notes, hint=hint)


def test_line_offsets_follow_mlir():
    assert [(each.kind, each.text, each.line) for each in expectations(SOURCE)] == [
        ("error", "here", 1),
        ("error", "next {{line}}", 3),
        ("error", "above", 3),
        ("note", "back", 2),
        ("warning", "below", 7),
        ("error", "nowhere", 0),
        ("remark", "same", 9),
    ]
    assert next(expectations(SOURCE)) == Expectation("error", "here", 1, written=1, col=1)


@pytest.mark.parametrize(
    ("source", "produced"),
    [
        ("op", []),
        ("// expected-error@+1 {{is wrong}}\nop", [error(2, "op is wrong here")]),
        ("op // expected-error {{a}} ", [error(1, "a")]),
        ("// expected-error@below {{a}}\n// expected-error@below {{b}}\nop", [error(3, "b"), error(3, "a")]),
        ("// expected-error@+2 {{a}}\n// expected-note@+1 {{n}}\nop", [error(3, "a", "note")]),
        ("// expected-error@+2 {{a}}\n// expected-note@+1 {{h}}\nop", [error(3, "a", hint="hint")]),
        ("// expected-error@+1 {{a}}\nop", [error(2, "a", "a note that nobody asked for")]),
        ("// expected-error@unknown {{a}}", [error(0, "a")]),
    ],
)
def test_expected_errors_are_met(source: str, produced: list[Diagnostic]):
    assert unmet(source, "f.mlir", produced) == []


@pytest.mark.parametrize(
    ("source", "produced", "complaints"),
    [
        ("op", [error(1, "a")], ["f.mlir:1:1: error: unexpected error: a"]),
        ("// expected-error {{a}}\nop", [], ['f.mlir:1:1: error: expected error "a" was not produced']),
        (
            "// expected-error {{a}}\nop",
            [error(2, "a")],
            ["f.mlir:2:1: error: unexpected error: a", 'f.mlir:1:1: error: expected error "a" was not'],
        ),
        (
            "// expected-error@+1 {{a}}\nop",
            [error(2, "b")],
            ["f.mlir:2:1: error: unexpected error: b", 'f.mlir:1:1: error: expected error "a" was not'],
        ),
        (
            "// expected-error@+1 {{a}}\nop",
            [error(2, "a"), error(2, "a")],
            ["f.mlir:2:1: error: unexpected error: a"],
        ),
        (
            "// expected-warning@+1 {{a}}\nop",
            [error(2, "a")],
            ["f.mlir:2:1: error: unexpected error: a", 'f.mlir:1:1: error: expected warning "a" was not'],
        ),
    ],
)
def test_unmet_expectations_and_unexpected_errors_are_reported(
    source: str, produced: list[Diagnostic], complaints: list[str]
):
    found = unmet(source, "f.mlir", produced)
    assert len(found) == len(complaints)
    assert all(str(one).startswith(start) for one, start in zip(found, complaints, strict=True))
