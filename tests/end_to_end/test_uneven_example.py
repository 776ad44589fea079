"""The example of uneven shards: the script on four processes, and the commands of its IR files."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMANDS = re.findall(r"^    (opt-tool .*)$", (EXAMPLES / "uneven" / "README.md").read_text(), re.MULTILINE)


@pytest.mark.distributed
@pytest.mark.timeout(180)
def test_the_slow_process_takes_fewer_rows_and_the_loss_is_that_of_one_device():
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    ran = subprocess.run([*launch, str(EXAMPLES / "uneven.py")], capture_output=True, text=True, timeout=170)
    assert ran.returncode == 0, ran.stderr
    rows = {
        int(rank): int(stop) - int(start)
        for rank, start, stop in re.findall(r"rank (\d) takes rows (\d+) to (\d+) of 16", ran.stdout)
    }
    assert sum(rows.values()) == 16
    assert 0 < rows[3] < min(rows[rank] for rank in (0, 1, 2))
    losses = re.findall(r"loss (\S+)  on one device (\S+)", ran.stdout)
    assert len(losses) == 5
    assert all(abs(float(ours) - float(alone)) < 1e-4 for ours, alone in losses)


def test_the_commands_of_the_readme_run(tmp_path: Path):
    shutil.copy(EXAMPLES / "uneven" / "step.mlir", tmp_path)
    assert len(COMMANDS) == 3
    for command in COMMANDS:
        tool, *arguments = shlex.split(command)
        ran = subprocess.run(
            [str(Path(sys.executable).parent / tool), *arguments], cwd=tmp_path, capture_output=True, text=True
        )
        assert ran.returncode == 0, f"{command}\n{ran.stderr}"
    balanced = (tmp_path / "balanced.mlir").read_text()
    assert re.search(r'spmd.ratios = \[#spmd.ratios<@mesh, {"gpu" = \[', balanced)
    [(before, after)] = re.findall(r"spmd.balance = {before = (\S+) : f64, after = (\S+) : f64}", balanced)
    assert float(after) < float(before)
    assert "offsets={" in (tmp_path / "collectives.mlir").read_text()
    assert "spmd.reshard" not in (tmp_path / "given.mlir").read_text()
