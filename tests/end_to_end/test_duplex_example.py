"""The example of duplex: the script on four processes, and the commands of its IR files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from example_runs import assert_losses_agree, launch_example, run_readme


@pytest.mark.distributed
@pytest.mark.timeout(180)
def test_the_loss_is_that_of_one_device():
    printed = launch_example("duplex")
    assert_losses_agree(printed)


def test_the_commands_of_the_readme_run(tmp_path: Path):
    assert run_readme("duplex", tmp_path) == 4
    assert '"micro"=2 temporal' in (tmp_path / "parts.mlir").read_text()
    duplex = (tmp_path / "duplex.mlir").read_text()
    assert re.search(r"spmd.start .*at = {micro = 0 : i64}", duplex), "the first part communicates on its own"
    assert duplex.count("spmd.accumulate") >= 6
    accumulation = (tmp_path / "accumulation.mlir").read_text()
    assert accumulation.count("pipe.fragment") == 1
