"""The example of a pipeline: the script on four processes, and the commands of its IR files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from example_runs import assert_losses_agree, launch_example, run_readme


@pytest.mark.distributed
@pytest.mark.timeout(180)
def test_the_loss_is_that_of_one_device():
    printed = launch_example("pipeline")
    assert_losses_agree(printed)


def test_the_commands_of_the_readme_run(tmp_path: Path):
    assert run_readme("pipeline", tmp_path) == 3
    assert "spmd.mesh @stage1" in (tmp_path / "stages.mlir").read_text()
    assert '"micro"=4 temporal' in (tmp_path / "parts.mlir").read_text()
    pipeline = (tmp_path / "pipeline.mlir").read_text()
    assert '#pipe.slot<run "forward1" 3>' in pipeline
    assert re.search(r"pipe.transfer .* tasks = \[#pipe.task<part 0", pipeline)
