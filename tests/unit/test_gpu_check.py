"""The check on GPUs, run on CPUs: its verdicts, its report, and its continuation after a failed rank."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from forked import run_python
from gpu_check.equality import EVERY, MARGIN, QUICK, judged, listed
from gpu_check.programs import FAMILIES, forms
from gpu_check.report import HTML_NAME, JSON_NAME, MARKDOWN_NAME, markdown, page, read_status, write
from gpu_check.results import Journal, Row, StageResult, Verdict, exit_status, verdict_of
from gpu_check.settings import Settings, parse
from gpu_check.stages import STAGES
from gpu_check.supervisor import Ended, cause

from shardwright.api.checking.cases import CheckCase
from shardwright.api.checking.comparison import Worst
from shardwright.ir.mesh import Mesh

ROOT = Path(__file__).parents[2]
FOUND = (
    StageResult("equality", "Programs", "failed", 12.0, (Row("gpt2, <dp>", "failed", {"error": 0.25}, "a | b\nmore"),)),
    StageResult("ratios", "Ratios", "measured", 3.0, (Row("gpt2: dp / DDP", "measured", {"ours ms": 1.23456}),)),
    StageResult("streams", "Races", "skipped", 0.0, (), "needs CUDA"),
)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (("passed", "failed", "measured"), "failed"),
        (("measured", "passed", "skipped"), "passed"),
        (("measured", "skipped"), "measured"),
        (("skipped",), "skipped"),
        ((), "skipped"),
    ],
)
def test_a_stage_has_the_verdict_of_its_worst_row(verdicts: tuple[Verdict, ...], expected: Verdict):
    assert verdict_of([Row("case", verdict) for verdict in verdicts]) == expected


def test_only_failed_stages_change_the_exit_status():
    assert exit_status(FOUND) == 1
    assert exit_status(FOUND[1:]) == 0


class _Cells(HTMLParser):
    """A parser that collects the texts of all table cells."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("td", "th"):
            self._inside = True
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.cells[-1] += data


def test_markdown_and_html_have_the_same_content():
    text, parser = markdown(FOUND, complete=True), _Cells()
    parser.feed(page(FOUND, complete=True))
    lines = text.splitlines()
    assert lines[0] == "# Check on GPUs: FAILED: equality (3 stages in 0.2 minutes)"
    assert "| streams: Races | skipped | 0 | needs CUDA |" in lines
    assert "| gpt2, <dp> | failed | 0.25 | a \\| b |" in lines
    assert "a | b\nmore\n```" in text
    assert "| gpt2: dp / DDP | measured | 1.235 |  |" in lines
    for cell in ("gpt2, <dp>", "0.25", "a | b\nmore", "gpt2: dp / DDP", "1.235", "ours ms", "needs CUDA"):
        assert cell in parser.cells
    assert "src=" not in page(FOUND, complete=True)
    assert "not complete" in markdown(FOUND[1:], complete=False)


def test_an_incomplete_report_is_not_a_success(tmp_path: Path):
    assert read_status(tmp_path) == 1
    write(tmp_path, FOUND[1:], complete=False)
    assert read_status(tmp_path) == 1
    write(tmp_path, FOUND[1:], complete=True)
    assert read_status(tmp_path) == 0
    write(tmp_path, FOUND, complete=True)
    assert read_status(tmp_path) == 1
    assert {JSON_NAME, MARKDOWN_NAME, HTML_NAME} == {path.name for path in tmp_path.iterdir()}


def test_a_journal_names_the_case_of_a_crash(tmp_path: Path):
    journal = Journal(tmp_path / "work" / "stage.jsonl")
    assert journal.rows() == []
    assert journal.open_case() == ""
    journal.begin("one")
    journal.add(row := Row("one", "passed", {"error": 1e-7}, "fine"))
    assert journal.open_case() == ""
    journal.begin("two")
    with journal.path.open("a") as file:
        file.write('{"row": {"case": "tw')
    assert journal.open_case() == "two"
    assert journal.rows() == [row]


def test_a_killed_rank_is_named_rather_than_ranks_that_lost_it():
    missing = Ended(0, 1, "", "lost the connection to another rank")
    killed, ended = Ended(1, -9, "", ""), Ended(2, -9, "was ended, for another rank had failed", "")
    assert cause([missing, killed, ended]) == "rank 1 was killed by SIGKILL"
    assert cause([missing, Ended(3, 1, "", "")]).startswith("rank 0 ended with code 1:\nlost the connection")
    assert cause([ended]) == "rank 2 was ended, for another rank had failed"
    late = Ended(2, -9, "was ended after 60 s (--timeout)", 'File "ours.py", line 3')
    assert cause([missing, killed, late]) == 'rank 2 was ended after 60 s (--timeout):\nFile "ours.py", line 3'


def test_the_command_line_chooses_stages(capsys: pytest.CaptureFixture[str]):
    def settings(*arguments: str) -> Settings:
        return parse(arguments, STAGES)

    assert settings("--only", "ratios,environment").stages == ("environment", "ratios")
    assert "equality" not in settings("--skip", "equality").stages
    for wrong, message in (
        (("--only", "equalty"), "no stage is called 'equalty'; there are environment, equality"),
        (("--share-gpu", "0"), "'0' is not a whole number above 0"),
        (("--cpu", "--share-gpu", "2"), "--share-gpu shares GPUs, and --cpu uses none"),
    ):
        with pytest.raises(SystemExit):
            settings(*wrong)
        assert message in capsys.readouterr().err


def errors(**by_kind: float) -> dict[str, Worst]:
    return {kind: Worst(kind, error, "h.0.weight", 2) for kind, error in by_kind.items()}


@pytest.mark.parametrize(
    ("found", "eager", "note"),
    [
        (errors(loss=1e-7, gradient=9e-6), {}, ""),
        (errors(loss=1e-7, gradient=2e-5), {}, "gradient of h.0.weight is off by 2e-05 in step 2, above 1e-05"),
        (errors(loss=float("nan"), gradient=0.0), {}, "loss of h.0.weight is off by nan in step 2, above 1e-05"),
        (errors(loss=1e-3, gradient=0.02 * MARGIN), errors(loss=1e-5, gradient=0.02), ""),
        (errors(loss=1e-3, gradient=0.1), errors(loss=1e-5, gradient=0.02), "gradient of h.0.weight is off by 0.1"),
        (errors(loss=1e-7), {}, "not compared: gradient"),
    ],
)
def test_an_error_above_its_limit_fails(found: dict[str, Worst], eager: dict[str, Worst], note: str):
    case = CheckCase("gpt2-tiny", Mesh.of(gpu=2), "dp", optimizer="sgd")
    row = judged("case", case, found, eager, 1e-5)
    assert row.verdict == ("failed" if note else "passed")
    assert row.note.startswith(note)


class _Ranks:
    """A stand-in for a `Job` that has only the number of ranks and meshes."""

    def __init__(self, world: int, *, has_grid: bool) -> None:
        self.world = world
        self.mesh = lambda: Mesh.of(gpu=world)
        self.grid = lambda: Mesh.of(node=2, gpu=world // 2) if has_grid else None


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_every_family_is_compared_in_every_kind_of_plan(world: int):
    kinds = forms(_Ranks(world, has_grid=world in (4, 8)))  # pyright: ignore[reportArgumentType]
    names = [str(each) for each in listed(kinds, quick=False)]
    assert {f"{family}, {kind}" for family in FAMILIES for kind in EVERY} <= set(names)
    assert {kind for kind in kinds if f"gpt2, {kind}" not in names} == set()
    assert len(names) == len(set(names))
    assert set(map(str, listed(kinds, quick=True))) < set(names)
    assert any("4 stages" in name for name in names) == (world > 3)
    for form in kinds.values():
        assert form.mesh.device_count == world
        if form.ratios != "auto":
            shares = list(map(float, form.ratios.split(",")))
            assert (len(shares), pytest.approx(sum(shares))) == (world, 1.0)


def run_check(module: str, out: Path, *arguments: str) -> tuple[int, str, Mapping[str, Any]]:
    """Run a check on two processes; return its exit status, its output, and its stages by name."""
    given = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "support")]
    environment = {"PYTHONPATH": os.pathsep.join(given)}
    command = ("-m", module, "--cpu", "--nproc-per-node", "2", "--out", str(out), *arguments)
    ran = run_python(*command, environment=environment, timeout=540)
    report = json.loads((out / JSON_NAME).read_text())
    assert report["complete"]
    return ran.returncode, ran.stdout + ran.stderr, {stage["name"]: stage for stage in report["stages"]}


@pytest.mark.distributed
@pytest.mark.timeout(600)
def test_a_failing_rank_fails_only_its_case(tmp_path: Path):
    status, output, stages = run_check("planted_check", tmp_path)
    assert status == 1
    verdicts = {name: stage["verdict"] for name, stage in stages.items()}
    skipped = {"cuda": "skipped", "tool": "skipped"}
    assert verdicts == {"broken": "failed", **skipped, "last": "passed"}
    rows = {row["case"]: row for row in stages["broken"]["rows"]}
    assert [case for case, row in rows.items() if row["verdict"] == "passed"] == [
        "begins",
        "goes on",
        "goes on again",
        "ends",
    ]
    assert "there is no such head" in rows["raises on rank 1"]["note"]
    assert rows["kills rank 1"]["note"].startswith("rank 1 was killed by SIGKILL")
    assert rows["differs"]["note"] == "off by 0.5, above 1e-05"
    assert (stages["cuda"]["reason"], stages["tool"]["reason"].partition(",")[0]) == (
        "needs CUDA",
        "needs no-such-sanitizer",
    )
    assert "broken: failed" in output
    assert "last: passed" in output


@pytest.mark.thorough
@pytest.mark.distributed
@pytest.mark.timeout(600)
def test_programs_are_compared_on_two_processes(tmp_path: Path):
    status, output, stages = run_check("gpu_check", tmp_path, "--quick", "--only", "environment,equality")
    assert status == 0, output
    names = [row["case"] for row in stages["equality"]["rows"] if row["verdict"] == "passed"]
    assert {f"{family}, {kind}" for family in QUICK for kind in EVERY} <= set(names)
    assert "gpt2, 2 stages, 1f1b" in names
    assert all(row["figures"]["gradient error"] >= 0 for row in stages["equality"]["rows"])
