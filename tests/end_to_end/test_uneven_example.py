"""The example of uneven shards: the script on four processes, and the commands of its IR files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from example_runs import assert_losses_agree, launch_example, run_readme


@pytest.mark.distributed
@pytest.mark.timeout(180)
def test_the_slow_process_takes_fewer_rows_and_the_loss_is_that_of_one_device():
    printed = launch_example("uneven")
    rows = {
        int(rank): int(stop) - int(start)
        for rank, start, stop in re.findall(r"rank (\d) takes rows (\d+) to (\d+) of 16", printed)
    }
    assert sum(rows.values()) == 16
    assert 0 < rows[3] < min(rows[rank] for rank in (0, 1, 2))
    assert_losses_agree(printed)


def test_the_commands_of_the_readme_run(tmp_path: Path):
    assert run_readme("uneven", tmp_path) == 3
    balanced = (tmp_path / "balanced.mlir").read_text()
    assert re.search(r'spmd.ratios = \[#spmd.ratios<@mesh, {"gpu" = \[', balanced)
    [(before, after)] = re.findall(r"spmd.balance = {before = (\S+) : f64, after = (\S+) : f64}", balanced)
    assert float(after) < float(before)
    assert "offsets={" in (tmp_path / "collectives.mlir").read_text()
    assert "spmd.reshard" not in (tmp_path / "given.mlir").read_text()
