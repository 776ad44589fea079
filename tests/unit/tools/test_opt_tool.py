"""Every flag of opt-tool, on small files: standard output, standard error and the file of -o."""

import io
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
from xdsl.utils.exceptions import DiagnosticException

from shardwright.tools.opt_tool import main

ADD = """\
builtin.module {
  func.func @f(%x: i32 loc("x"), %b_1: i32 loc(unknown)) -> i32 {
    %y_1 = arith.addi %x, %b_1 : i32 loc("fc1"("model.py":3:4))
    %dead = arith.addi %x, %b_1 : i32 loc(unknown)
    func.return %y_1 : i32 loc(unknown)
  } loc(unknown)
} loc(unknown)
"""
WITHOUT_DEAD = "".join(line for line in ADD.splitlines(keepends=True) if "dead" not in line)


@pytest.fixture
def add(tmp_path: Path) -> Path:
    path = tmp_path / "add.mlir"
    path.write_text(ADD)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> tuple[str, str]:
    """Return standard output and standard error of the tool, whose exit code must be `code`."""
    returned = main([str(each) for each in arguments])
    out, err = capsys.readouterr()
    assert returned == code, err
    return out, err


def headers(err: str) -> list[str]:
    """Return the titles of the IR dumps in `err`."""
    lines = (line for line in err.splitlines() if "IR Dump" in line)
    return [line.removeprefix("// -----// IR Dump ").removesuffix(" //----- //") for line in lines]


def test_without_passes_a_file_is_printed_unchanged(capsys: pytest.CaptureFixture[str], add: Path):
    assert run(capsys, add) == (ADD, "")


@pytest.mark.parametrize("flag", ["--pass-pipeline=dce", "-pdce"])
def test_passes_are_run(capsys: pytest.CaptureFixture[str], add: Path, flag: str):
    assert run(capsys, add, flag) == (WITHOUT_DEAD, "")


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_standard_input_is_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(ADD.encode())))
    assert run(capsys, *arguments) == (ADD, "")


def test_output_goes_to_a_file(capsys: pytest.CaptureFixture[str], add: Path, tmp_path: Path):
    target = tmp_path / "out.mlir"
    assert run(capsys, add, "-o", target) == ("", "")
    assert target.read_text() == ADD
    assert sorted(path.name for path in tmp_path.iterdir()) == ["add.mlir", "out.mlir"]


def test_the_input_may_be_overwritten(capsys: pytest.CaptureFixture[str], add: Path):
    run(capsys, add, "-p", "dce", "-o", add)
    assert add.read_text() == WITHOUT_DEAD


def test_a_failure_leaves_the_old_output(capsys: pytest.CaptureFixture[str], add: Path, tmp_path: Path):
    target = tmp_path / "out.mlir"
    target.write_text("old")
    add.write_text(ADD.replace("func.return", "func.retrun"))
    run(capsys, add, "-o", target, code=1)
    assert target.read_text() == "old"


def test_output_to_a_device_is_not_renamed(capsys: pytest.CaptureFixture[str], add: Path):
    run(capsys, add, "-o", os.devnull)
    assert Path(os.devnull).is_char_device()


@pytest.mark.parametrize(
    ("flags", "dumps"),
    [
        (["--print-ir-before-all"], ["Before cse", "Before dce", "Before canonicalize"]),
        (["--print-ir-after-all"], ["After cse", "After dce", "After canonicalize"]),
        (["--print-ir-after-change"], ["After cse"]),
        (["--print-ir-after-change=false"], []),
        (["--print-ir-after-change", "--print-ir-after=dce"], []),
        (["--print-ir-after-change", "--print-ir-after-all"], ["After cse"]),
        (["--print-ir-before=dce", "--print-ir-after=dce"], ["Before dce", "After dce"]),
        (["--print-ir-before=cse,canonicalize"], ["Before cse", "Before canonicalize"]),
        (["--print-ir-after=cse", "--print-ir-after=dce"], ["After cse", "After dce"]),
    ],
)
def test_dumps_go_to_standard_error(capsys: pytest.CaptureFixture[str], add: Path, flags: list[str], dumps: list[str]):
    out, err = run(capsys, add, "-p", "cse,dce,canonicalize", *flags)
    assert out == WITHOUT_DEAD
    assert headers(err) == dumps


def test_dumps_show_the_ir_and_the_options(capsys: pytest.CaptureFixture[str], add: Path):
    _, err = run(capsys, add, "-p", "arith-add-fastmath{flags=none}", "--print-ir-before-all")
    assert err == f'// -----// IR Dump Before arith-add-fastmath{{flags="none"}} //----- //\n{ADD}\n'


def test_times_are_a_table_on_standard_error(capsys: pytest.CaptureFixture[str], add: Path):
    out, err = run(capsys, add, "-p", "cse,dce", "--mlir-timing")
    assert out == WITHOUT_DEAD
    rows = [line.split(")")[1].strip() for line in err.splitlines() if "%)" in line]
    assert rows == ["Parser", "cse", "dce", "Output", "Rest", "Total"]
    assert "Total Execution Time: 0." in err


TWO = """\
func.func @f() { func.return }
// -----
// only a comment
// -----
func.func @g() { func.return }
"""


def test_parts_of_a_split_file_are_separate_modules(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    path = tmp_path / "two.mlir"
    path.write_text(TWO)
    out, _ = run(capsys, path, "--split-input-file")
    first, second = out.split("// -----\n")
    assert "@f" in first
    assert "@g" in second
    assert "// -----" not in run(capsys, path)[0]


def test_errors_of_a_split_file_have_its_lines(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    path = tmp_path / "two.mlir"
    path.write_text(TWO.replace("@g() {", "@g() { func.retrun").replace("@f() {", "@f() { func.retrun"))
    out, err = run(capsys, path, "--split-input-file", code=1)
    assert out == ""
    assert [line.split(" error")[0] for line in err.splitlines() if "error" in line] == [
        f"{path}:1:18:",
        f"{path}:5:18:",
    ]


def test_expected_errors_are_not_a_failure(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    path = tmp_path / "two.mlir"
    wrong = "// expected-error@+1 {{func.retrun is not registered}}\nfunc.func @g() { func.retrun"
    path.write_text(TWO.replace("func.func @g() {", wrong))
    out, err = run(capsys, path, "--split-input-file", "--verify-diagnostics")
    assert "@f" in out
    assert err == ""


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("func.retrun", "1:1: error: unexpected error: operation func.retrun is not registered"),
        ("// expected-error {{x}}\nfunc.func @f() { func.return }", '1:1: error: expected error "x" was not'),
        (
            "func.func @f() { func.return }\n// -----\n// expected-error {{x}}",
            '3:1: error: expected error "x"',
        ),
    ],
)
def test_unmet_expectations_are_a_failure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, complaint: str
):
    path = tmp_path / "bad.mlir"
    path.write_text(text)
    out, err = run(capsys, path, "--split-input-file", "--verify-diagnostics", code=1)
    assert out == ""
    assert err.startswith(f"{path}:{complaint}")


def test_verification_errors_can_be_expected(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    path = tmp_path / "bad.mlir"
    path.write_text(
        "func.func @f(%x: i32) -> i64 {\n"
        "  // expected-error@+1 {{expected arguments to have the same types}}\n"
        "  func.return %x : i32\n}\n"
    )
    assert run(capsys, path, "--verify-diagnostics") == ("", "")


def test_the_generic_form_parses_back(capsys: pytest.CaptureFixture[str], add: Path, tmp_path: Path):
    generic, _ = run(capsys, add, "--mlir-print-op-generic")
    assert generic.startswith('"builtin.module"() ({')
    add.write_text(generic)
    assert run(capsys, add) == (ADD, "")


def test_locations_can_be_left_out(capsys: pytest.CaptureFixture[str], add: Path):
    assert "loc(" not in run(capsys, add, "--mlir-print-debuginfo=false")[0]


def test_unknown_dialects_can_be_allowed(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    path = tmp_path / "foreign.mlir"
    path.write_text('%x = "foreign.op"() {a = #foreign.attr<[1, 2]>} : () -> !foreign.type<"x">\n')
    assert '"foreign.op"()' in run(capsys, path, "--allow-unregistered-dialect")[0]
    assert "there is no dialect 'foreign'" in run(capsys, path, code=1)[1]


def test_dialects_of_the_package_are_known(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    path = tmp_path / "mesh.mlir"
    path.write_text('spmd.mesh @mesh = <["node"=2, "gpu"=4]>\n')
    assert 'spmd.mesh @mesh = <["node"=2, "gpu"=4]>' in run(capsys, path)[0]


@pytest.mark.parametrize(
    ("flag", "parts"),
    [
        ("--help", ["--pass-pipeline", "--verify-each", "passes:", "canonicalize"]),
        ("-h", ["usage: opt-tool"]),
        ("--list-passes", ["Shardwright's passes:", "canonicalize"]),
        ("--show-dialects", ["aten, pipe, spmd, train", "arith"]),
        ("--version", [f"opt-tool (shardwright {version('shardwright')}), xDSL 0.74.", "Python 3."]),
    ],
)
def test_the_tool_prints_its_help_version_and_passes(capsys: pytest.CaptureFixture[str], flag: str, parts: list[str]):
    out, err = run(capsys, flag)
    assert err == ""
    assert all(part in out for part in parts)


class TestNumerics:
    """`--verify-numerics` passes the module before and after each pass to the interpreter's check."""

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, str, int]]:
        calls: list[tuple[int, int, str, int]] = []

        def check_pass(before, after, pass_name, seed):
            calls.append((len(list(before.walk())), len(list(after.walk())), pass_name, seed))
            if pass_name == "canonicalize":
                raise DiagnosticException("result 0 differs by 0.5")

        name = "shardwright.lowering.interpreter.verify_numerics"
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(check_pass=check_pass))
        return calls

    def test_every_pass_is_checked(self, capsys: pytest.CaptureFixture[str], add: Path, calls):
        run(capsys, add, "-p", "dce,cse", "--verify-numerics", "--verify-numerics-seed=7")
        assert calls == [(5, 4, "dce", 7), (4, 4, "cse", 7)]

    def test_nothing_is_checked_unless_asked(self, capsys: pytest.CaptureFixture[str], add: Path, calls):
        run(capsys, add, "-p", "dce,cse")
        assert calls == []

    def test_a_wrong_pass_is_caught_by_name(self, capsys: pytest.CaptureFixture[str], add: Path, calls):
        out, err = run(capsys, add, "-p", "dce,canonicalize,cse", "--verify-numerics", code=1)
        assert out == ""
        assert "pass 'canonicalize' changed what the program computes: result 0 differs by 0.5" in err

    def test_without_the_interpreter_the_reason_is_given(
        self, capsys: pytest.CaptureFixture[str], add: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setitem(sys.modules, "shardwright.lowering.interpreter.verify_numerics", None)
        assert "--verify-numerics runs the IR on torch" in run(capsys, add, "--verify-numerics", code=1)[1]


def test_a_closed_output_pipe_is_not_an_error(add: Path):
    add.write_text("\n".join(f"func.func private @f{i}() -> ()" for i in range(2000)))
    command = f"{sys.executable} -m shardwright.tools.opt_tool {add} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("builtin.module {\n", "")
