"""`shardwright simulate`: its output, its files and its errors."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pair_cluster import PAIR_CLUSTER
from predicted_steps import as_predicted
from road import imported_road, road

from shardwright.api.compile import PlanOptions, lower
from shardwright.dialects.text import module_text
from shardwright.ir.cluster_file import parse_cluster, shipped_clusters
from shardwright.ir.measured_steps import MeasuredSteps
from shardwright.tools.cli import main

UNDECIDED = """
spmd.mesh @mesh = <["gpu"=1]>
spmd.cluster @c on @mesh
  devices [#spmd.device<"a", flops = {float32 = 1.0}, bandwidth = 1.0, memory = 1.0, launch = 0.0>]
  placement [0] links [#spmd.link<"gpu", alpha = 1.0, beta = 1.0>]
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = aten.relu %x : (tensor<4xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the IR of the example `road` as a plan."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "step.mlir").write_text(module_text(road()))
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the output of `simulate`."""
    assert main(["simulate", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the error of `simulate`."""
    assert main(["simulate", *map(str, arguments)]) == 1
    return capsys.readouterr().err


def test_a_plan_is_simulated_and_traced(plan: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    out = run(capsys, plan, "--trace", tmp_path / "trace.json", "--plot", tmp_path / "step.svg")
    parts = ("one step:", "rank 0 (stage 0", "ranks 2-3", "peak memory", "overlap ratio", "wait for", "critical path")
    for part in parts:
        assert part in out
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert "rank 0 (stage 0" in (tmp_path / "step.svg").read_text()


def test_a_changed_number_changes_the_step(plan: Path, capsys: pytest.CaptureFixture[str]):
    file = plan / "step.mlir"
    titles = [run(capsys, file, *more).splitlines()[0] for more in ((), ("--set", "link.gpu.bandwidth=100KB/s"))]
    assert titles[0] != titles[1]


def test_a_sweep_gives_a_table_and_a_plot(plan: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    out = run(capsys, plan, "--sweep", "link.gpu.bandwidth=1MB/s..100MB/s:3", "--plot", tmp_path / "sweep.png")
    assert [line.split()[0] for line in out.splitlines() if line.startswith("1e+")] == ["1e+06", "1e+07", "1e+08"]
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_is_refused(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    error = refused(capsys, plan, "--plot", "step.svg")
    assert "--plot needs matplotlib" in error
    assert "pip install 'shardwright[plot]'" in error


def test_a_step_is_planned_first_and_replanned_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "pair.toml").write_text(PAIR_CLUSTER)
    sweep = ("--sweep", "link.gpu.bandwidth=1KB/s..1GB/s:2")
    plan = ("mlp-tiny", "--cluster", tmp_path / "pair.toml")
    kept = run(capsys, *plan, *sweep)
    again, pinned = (run(capsys, *plan, *sweep, "--replan", *more) for more in ((), ("--pins", "dp")))
    slow, fast = (text.splitlines()[-3:-1] for text in (kept, pinned))
    assert slow[0] != slow[1]
    # On a slow network, a search avoids communication unless pins require it.
    assert again.splitlines()[-3] not in (slow[0], fast[0])


def test_a_plan_in_stages_is_replanned_from_the_undecided_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    options = PlanOptions(stages=2, micro_batches=2, duplex="no")
    cluster = parse_cluster(shipped_clusters()["local-4"])
    lower(imported_road(), cluster, options, name="road", step_spec=None, seconds={}).save(tmp_path / "plan")
    assert "stage 1" in run(capsys, tmp_path / "plan")
    again = run(capsys, tmp_path / "plan", "--replan")
    assert "one step:" in again
    assert "stage 1" not in again

    # Edits of the planned step take effect, and its stages cannot be undone.
    with (tmp_path / "plan" / "step.mlir").open("a") as file:
        file.write("// edited\n")
    assert "cannot be planned again" in refused(capsys, tmp_path / "plan", "--replan")


def test_a_step_may_be_planned_for_another_mesh_of_the_cluster(capsys: pytest.CaptureFixture[str]):
    out = run(capsys, "mlp", "--cluster", "local-4")
    assert "outer" in out
    assert "one step:" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "link.gpu.bandwith=1"], "--set link.gpu.bandwith=1: the cluster has no field"),
        (["--sweep", "link.gpu.bandwidth=1"], "is not a sweep; expected"),
        (["--replan"], "--replan: .* cannot be planned again"),
        (["--cluster", "h100-8x8"], "is planned for the mesh gpu=4, but h100-8x8 has node=8, gpu=8"),
    ],
)
def test_invalid_arguments_are_refused(
    arguments: list[str], message: str, plan: Path, capsys: pytest.CaptureFixture[str]
):
    assert re.search(message, refused(capsys, plan, *arguments))


def test_a_step_needs_a_cluster_and_a_file_must_be_ir(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert "give --cluster FILE" in refused(capsys, "mlp-tiny")
    (tmp_path / "bad.mlir").write_text("func.func @f( {")
    assert "bad.mlir:1:" in refused(capsys, tmp_path / "bad.mlir")
    (tmp_path / "bare.mlir").write_text("func.func @f() { func.return }")
    assert "error: the module has no mesh; add one" in refused(capsys, tmp_path / "bare.mlir")
    (tmp_path / "undecided.mlir").write_text(UNDECIDED)
    assert "'aten.relu' op %y: has no signature; run search-strategy" in refused(capsys, tmp_path / "undecided.mlir")


def test_measurements_are_shown_with_the_prediction(plan: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (tmp_path / "measured.json").write_text(as_predicted(road()).text())
    out = run(capsys, plan, "--measured", tmp_path / "measured.json", "--trace", tmp_path / "trace.json")
    words = {"predicted": list[list[str]](), "measured": list[list[str]]()}
    for line in out.splitlines():
        for side, found in words.items():
            _, is_there, after = line.partition(f" {side} ")
            if is_there and after.rstrip().endswith("%"):
                found.append(after.split())
    assert words["predicted"] == words["measured"]
    assert len(words["measured"]) >= 8
    assert "longest collectives and transfers of rank" in out
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {"measured: rank 0 (stage 0)", "measured: rank 3 (stage 1)"} <= names
    by_process = {event["pid"] for event in events if event["ph"] == "X"}
    assert len(by_process) == len(names)
    threads: dict[int, set[int]] = {}
    for event in events:
        threads.setdefault(event["tid"], set()).add(event["pid"])
    assert all(len(processes) == 1 for processes in threads.values())


def test_measurements_of_another_step_are_refused(plan: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    file = tmp_path / "measured.json"
    (step,) = as_predicted(road()).steps
    shorter = tuple(replace(rank, traffic=rank.traffic[1:]) for rank in step)
    for ranks, why in (
        (step[:2], "belongs to another step: it has 2 ranks, but the step has 4"),
        (shorter, "measure the simulated plan"),
    ):
        file.write_text(MeasuredSteps("road", (ranks,)).text())
        assert why in refused(capsys, plan, "--measured", file)
    file.write_text("{}")
    assert "has no measured steps: it has no 'kind'" in refused(capsys, plan, "--measured", file)
    assert "has no measured steps: No such file" in refused(capsys, plan, "--measured", tmp_path / "none")
    sweep = ("--sweep", "link.gpu.bandwidth=1KB/s..1GB/s:2")
    assert "leave out --sweep" in refused(capsys, plan, "--measured", file, *sweep)
