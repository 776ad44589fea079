"""The command line `shardwright` in this process: its output and its errors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from made_up_journal import made_up_journal
from pair_cluster import PAIR_CLUSTER
from rich.table import Table

from shardwright import __version__
from shardwright.ir.cluster_file import load_cluster, parse_cluster
from shardwright.ir.units import bytes_text, seconds_text
from shardwright.runtime.profile.journal import Journal
from shardwright.runtime.profile.session import ProfileRequest
from shardwright.runtime.spawn import RankError
from shardwright.tools import cli_profile, cli_run, opt_tool
from shardwright.tools.cli import main
from shardwright.tools.cli_console import print_report


def test_names_in_a_report_are_escaped(capsys: pytest.CaptureFixture[str]):
    table = Table("[/x]", title="[red]\x1b[31m")
    table.add_row("[/bold] :smile: \x1b]0;owned\x07")
    print_report(table, "[/y] \x1b[2J")
    shown = capsys.readouterr().out
    for text in ("[/x]", "[red]\\x1b[31m", "[/bold] :smile: \\x1b]0;owned\\x07", "[/y] \\x1b[2J"):
        assert text in shown
    assert "\x1b" not in shown


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    path = tmp_path / "pair.toml"
    path.write_text(PAIR_CLUSTER)
    return str(path)


def test_help_answers_without_loading_libraries():
    script = (
        "import sys; from shardwright.tools.cli import main\n"
        "try: main(['plan', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'rich'} & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "--cluster FILE" in done.stdout
    assert done.stderr == "[]\n"


COMMANDS = ["", "import", "plan", "run", "explain", "simulate", "check", "check-rule", "profile"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="0"):
        main([*command.split(), "--help"])
    assert capsys.readouterr().out.startswith("usage: shardwright")


def test_version(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"shardwright {__version__}\n"


def test_plan_writes_a_folder_and_a_summary(tmp_path: Path, cluster: str, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "plan"
    assert main(["plan", "mlp-tiny", "--cluster", cluster, "--out", str(folder), "--pins", "zero3"]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["plan.json", "program.py", "step.mlir"]
    report = json.loads((folder / "plan.json").read_text())
    assert (report["step"], report["ranks"], report["mesh"]) == ("mlp-tiny", 2, {"gpu": 2})
    shown = capsys.readouterr()
    assert shown.err == ""
    for part in ("mlp-tiny on pair", "predicted step", "peak memory", '[{"gpu"}, {}]', "shardwright run"):
        assert part in shown.out


def test_a_pipeline_replaces_the_usual_one(tmp_path: Path, cluster: str):
    passes = "decompose-mean,search-strategy,insert-resharding,select-collectives"
    arguments = ["plan", "mlp-tiny", "--cluster", cluster, "--out", str(tmp_path / "p"), "--pipeline", passes]
    assert main(arguments) == 0
    report = json.loads((tmp_path / "p" / "plan.json").read_text())
    assert set(report["pass_seconds"]) == {"import", *passes.split(","), "reuse-buffers", "emit"}


def test_import_writes_ir_that_opt_tool_reads(tmp_path: Path, cluster: str, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "step.mlir"
    arguments = ["import", "mlp-tiny", "--dtype", "float64", "--gradients", "--cluster", cluster]
    assert main([*arguments, "-o", str(out)]) == 0
    assert capsys.readouterr().out == ""
    assert main(arguments) == 0
    assert capsys.readouterr().out == out.read_text()
    text = out.read_text()
    assert 'spmd.mesh @mesh = <["gpu"=2]>' in text
    assert "tensor<32x12xf64>" in text
    assert text.count("train.grad = ") == 6
    assert opt_tool.main([str(out), "-p", "canonicalize,cse", "-o", str(tmp_path / "out.mlir")]) == 0


def test_check_reports_the_differences(capsys: pytest.CaptureFixture[str]):
    arguments = ["check", "mlp-tiny", "--mesh", "dp=2,tp=2", "--backend", "interpreter", "--steps", "2"]
    assert main([*arguments, "--dtype", "float64", "--optimizer", "sgd", "--pins", "tp"]) == 0
    shown = capsys.readouterr().out
    for part in ("loss", "gradient", "parameter", "momentum_buffer", "agrees with one device over 2 steps"):
        assert part in shown
    assert main(arguments) == 0
    assert "parameters were not compared" in capsys.readouterr().out


def test_check_fails_when_a_plan_differs(capsys: pytest.CaptureFixture[str]):
    arguments = ["check", "odd_steps:drifting", "--mesh", "2", "--backend", "interpreter", "--steps", "1"]
    assert main(arguments) == 1
    assert "DIFFERS from one device" in capsys.readouterr().out


WRONG: dict[str, tuple[list[str], str]] = {
    "no command": ([], "the following arguments are required: COMMAND"),
    "unknown command": (["plna"], "invalid choice: 'plna'"),
    "unknown option": (["check", "mlp-tiny", "--mesh", "2", "--frob"], "unrecognized arguments: --frob"),
    "no ranks": (["profile", "--nproc-per-node", "0"], "takes a positive whole number, not '0'"),
    "unknown step": (["import", "mlp-tine"], 'did you mean "mlp-tiny"?'),
    "no module": (["import", "nowhere:step"], "there is no module 'nowhere'"),
    "capture": (["import", "odd_steps:data_dependent"], "needs the values of a tensor"),
    "no cluster": (["plan", "mlp-tiny", "--cluster", "locl-4", "--out", "x"], "local-4, "),
    "bad mesh": (["check", "mlp-tiny", "--mesh", "2y2"], "--mesh: mesh '2y2'"),
    "huge mesh": (["check", "mlp-tiny", "--mesh", "100"], "a check runs at most 64"),
    "no pin file": (
        ["check", "mlp-tiny", "--mesh", "2", "--backend", "interpreter", "--pins", "no.toml"],
        "no.toml: cannot read the pin file",
    ),
    "unknown pass": (
        ["plan", "mlp-tiny", "--cluster", "local-4", "--out", "x", "--pipeline", "serch-strategy"],
        "did you mean 'search-strategy'?",
    ),
    "pins beside passes": (
        ["plan", "mlp-tiny", "--cluster", "local-4", "--out", "x", "--pins", "dp", "--pipeline", "search-strategy"],
        "--pins=dp and --pipeline=search-strategy exclude each other",
    ),
    "unknown size": (["run", "mlp-tiny"], "needs the number of processes"),
    "save nowhere": (
        ["run", "mlp-tiny", "--nproc-per-node", "2", "--save-every", "2"],
        "--save-every is an option of checkpoints, which are off; give --save FOLDER too",
    ),
    "resume from nowhere": (["run", "mlp-tiny", "--resume"], "--resume needs --save FOLDER"),
    "measure into nowhere": (["run", "mlp-tiny", "--overlap", "/no/folder/m.json"], "there is no folder /no/folder"),
    "save to a file": (["run", "mlp-tiny", "--save", __file__], "this is a file; give a folder"),
    "no ranks to profile": (["profile"], "give --nproc-per-node N, or start it on every host with: torchrun"),
    "profile to nowhere": (["profile", "--nproc-per-node", "2", "-o", "no/where.toml"], "cannot write no/where.toml"),
    "profile into a folder": (["profile", "--nproc-per-node", "2", "-o", "/tmp"], "cannot write /tmp: it is a folder"),
    "mesh of other ranks": (["profile", "--nproc-per-node", "2", "--mesh", "a=3"], "has 3 ranks, but the job has 2"),
    "ops of a step without a cluster": (
        ["profile", "--nproc-per-node", "2", "--ops-of", "mlp-tiny"],
        "planning it as a step needs a cluster",
    ),
    "ops of another cluster": (
        ["profile", "--nproc-per-node", "2", "--ops-of", "mlp-tiny", "--cluster", "local-4"],
        "the plan is for 4 ranks, but the job has 2",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_a_failure_is_one_message(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("shardwright: error: ")
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert "internal error" not in shown.err


def test_a_traceback_is_shown_on_request(capsys: pytest.CaptureFixture[str]):
    assert main(["import", "odd_steps:broken", "--debug-traceback"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_fault_of_the_tool_is_an_internal_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def fail(ranks: int) -> None:
        raise KeyError("ranks")

    monkeypatch.setattr(cli_run, "generic_cluster", fail)
    assert main(["run", "mlp-tiny", "--nproc-per-node", "2"]) == 1
    assert "internal error: KeyError: 'ranks'\nhint: this is a fault" in capsys.readouterr().err


def test_a_profile_is_written_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def measured(fn: object, ranks: int, request: ProfileRequest, timeout: float) -> list[Journal]:
        return [made_up_journal(request.mesh, request.samples, [1.0] * ranks)] * ranks

    monkeypatch.setattr(cli_profile, "run_ranks", measured)
    path = tmp_path / "mine.toml"
    arguments = ["profile", "--nproc-per-node", "2", "--seconds", "5"]
    assert main([*arguments, "-o", str(path)]) == 0
    assert "all_reduce over gpu" in capsys.readouterr().out
    assert load_cluster(path).name == "mine"
    assert main(arguments) == 0
    assert parse_cluster(capsys.readouterr().out).mesh == load_cluster(path).mesh


def test_a_profile_that_loses_a_rank_lists_missing_measurements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def lost(fn: object, ranks: int, request: ProfileRequest, timeout: float) -> list[Journal]:
        journal = made_up_journal(request.mesh, request.samples, [1.0] * ranks)
        journal.seconds = {name: each for name, each in journal.seconds.items() if not name.startswith("broadcast")}
        assert request.progress is not None
        journal.save(request.progress)
        raise RankError("rank 1 of 2 was killed by SIGKILL")

    monkeypatch.setattr(cli_profile, "run_ranks", lost)
    path = tmp_path / "mine.toml"
    assert main(["profile", "--nproc-per-node", "2", "--seconds", "5", "-o", str(path)]) == 1
    told = capsys.readouterr().err
    assert "rank 1 of 2 was killed by SIGKILL" in told
    assert "2 measurements are missing: broadcast over gpu, broadcast:start over gpu" in told
    assert "--resume" in told
    assert load_cluster(path).mesh.device_count == 2


def test_a_folder_without_a_plan_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["run", str(tmp_path)]) == 1
    assert f"{tmp_path}/plan.json is not a plan" in capsys.readouterr().err


def test_a_plan_for_another_number_of_ranks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "plan.json").write_text('{"ranks": 4, "mesh": {"dp": 2, "tp": 2}}')
    assert main(["run", str(tmp_path), "--nproc-per-node", "2"]) == 1
    message = "is planned for 4 ranks (mesh dp=2, tp=2), but --nproc-per-node asks for 2"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("seconds", "text"), [(12.34, "12.3 s"), (0.0025, "2.5 ms"), (3e-6, "3 us"), (0, "0 us")])
def test_times_are_printed_with_units(seconds: float, text: str):
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (3 * 2**30, "3 GiB"), (2**50, "1.02e+03 TiB")]
)
def test_sizes_are_printed_with_units(count: int, text: str):
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("words", "told", "hint"),
    [
        (["plann", "mlp-tiny"], 'did you mean "plan"?', "shardwright --help"),
        (["check", "mlp-tiny", "--mesh", "2", "--stages", "2"], "arguments: --stages", "shardwright check --help"),
        (["plan", "mlp-tiny", "--cluster", "locl-4", "--out", "x"], 'did you mean "local-4"?', ""),
        (["plan", "mlp-tiny", "--cluster", "local-4", "--out", "x", "--pins", "zro3"], 'did you mean "zero3"?', ""),
    ],
)
def test_a_mistaken_word_is_named_with_the_help_of_its_command(
    words: list[str], told: str, hint: str, capsys: pytest.CaptureFixture[str]
):
    assert main(words) == 1
    shown = capsys.readouterr().err
    assert told in shown
    assert hint in shown
