"""Mistakes on a command line are found before torch is imported; shells complete its words."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.plain import closest, did_you_mean
from shardwright.ir.what_if import changed, number
from shardwright.models.names import NAMES
from shardwright.models.registry import MODELS
from shardwright.tools.cli import main
from shardwright.tools.cli_arguments import parse_arguments
from shardwright.tools.diagnostics import DiagnosticError
from shardwright.tools.simulation_tables import require_matplotlib

PLAN = ("plan", "mlp", "--cluster", "local-4", "--out", "x")
MISTAKES = [
    (["plan", "gpt2-smal", *PLAN[2:]], 'did you mean "gpt2-small"?'),
    (["plan", "mlp", "--cluster", "H100-8X8", "--out", "x"], 'did you mean "h100-8x8"?'),
    (
        ["plan", "mlp", "--clutser", "local-4", "--out", "x"],
        'unrecognized arguments: --clutser; did you mean "--cluster"',
    ),
    (["plan", "no_such:step", *PLAN[2:]], "there is no module 'no_such', here or installed"),
    ([*PLAN, "--pins", "zro3"], 'did you mean "zero3"?'),
    ([*PLAN, "--pipeline", "prepare,finsh"], "hint: did you mean 'finish'?"),
    (["simulate", "no/plan"], "there is no folder no/plan"),
    (["run", "no-plan"], "hint: there is no folder of this name either"),
    (["check", "mlp", "--mesh", "2y2"], "--mesh: mesh '2y2'"),
    (["simulat", "plan"], 'did you mean "simulate"?'),
]


def test_mistakes_are_found_without_torch():
    script = (
        "import sys; from shardwright.tools.cli import main\n"
        f"for words in {[words for words, _ in MISTAKES]!r}:\n"
        "    assert main(words) == 1\n"
        "    print('--', file=sys.stderr)\n"
        "print(sorted({'torch', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    for told, (_, message) in zip(done.stderr.split("--\n"), MISTAKES, strict=False):
        assert message in told


def test_the_names_of_models_are_those_of_the_registry():
    assert list(NAMES) == list(MODELS)


def test_similar_names_are_found_whatever_their_case():
    assert closest("BERT-bse", ["gpt2", "bert-base"]) == ["bert-base"]
    assert did_you_mean("zero2x", ["zero1", "zero2", "dp"], most=2) == '; did you mean "zero2" or "zero1"?'
    assert did_you_mean("x", ["zero1"]) == ""


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("90s", 90.0), ("2min", 120.0), ("0.5 h", 1800.0), ("0", 0)]
)
def test_durations_have_units(text: str, seconds: float):
    assert parse_arguments([*PLAN, "--budget", text]).budget == seconds
    assert parse_arguments(["profile", "-o", "x", "--seconds", text]).seconds == seconds


@pytest.mark.parametrize("text", ["2 weeks", "-1", "fast", "1e20"])
def test_a_wrong_duration_is_refused_with_an_example(text: str):
    with pytest.raises(DiagnosticError, match=r'argument --budget: .* is not a number of seconds, or text as "90s"'):
        parse_arguments([*PLAN, f"--budget={text}"])


def test_bandwidths_and_sizes_have_units():
    cluster = find_cluster("local-4")
    given = {"link.gpu.bandwidth": ("10 Gbit/s", 1.25e9), "device.cpu.memory": ("80GiB", 80 * 2**30)}
    for field, (text, expected) in given.items():
        assert number(changed(cluster, field, text), field) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("shardwright si", {"simulate"}),
        ("shardwright plan gpt2-s", {"gpt2-small"}),
        ("shardwright plan mlp --clu", {"--cluster"}),
        ("shardwright plan mlp --cluster hap", {"hap-8x8"}),
        ("shardwright plan mlp --algorithm pareto", {"pareto-dp"}),
        ("shardwright plan mlp --pins zero", {"zero1", "zero2", "zero3"}),
    ],
)
def test_a_shell_completes_words(line: str, expected: set[str], tmp_path: Path):
    pytest.importorskip("argcomplete")
    answer = tmp_path / "answer"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    environment = {**os.environ, **asked, "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    command = [sys.executable, "-m", "shardwright.tools.cli"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {word.strip() for word in answer.read_text().splitlines()} == expected


def test_completion_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    with pytest.raises(SystemExit, match=r"shardwright\[completion\]"):
        main(["plan"])


def test_a_plot_without_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(DiagnosticError, match=r"--plot needs matplotlib .*pip install 'shardwright\[plot\]'"):
        require_matplotlib()
