"""The example of a pipeline: the script on four processes, and the commands of its IR files."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMANDS = re.findall(r"^    (opt-tool .*)$", (EXAMPLES / "pipeline" / "README.md").read_text(), re.MULTILINE)


@pytest.mark.distributed
@pytest.mark.timeout(180)
def test_the_loss_is_that_of_one_device():
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    ran = subprocess.run([*launch, str(EXAMPLES / "pipeline.py")], capture_output=True, text=True, timeout=170)
    assert ran.returncode == 0, ran.stderr
    losses = re.findall(r"loss (\S+)  on one device (\S+)", ran.stdout)
    assert len(losses) == 5
    assert all(abs(float(ours) - float(alone)) < 1e-4 for ours, alone in losses)


def test_the_commands_of_the_readme_run(tmp_path: Path):
    shutil.copy(EXAMPLES / "pipeline" / "step.mlir", tmp_path)
    assert len(COMMANDS) == 3
    for command in COMMANDS:
        tool, *arguments = shlex.split(command)
        ran = subprocess.run(
            [str(Path(sys.executable).parent / tool), *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{command}\n{ran.stderr}"
    assert "spmd.mesh @stage1" in (tmp_path / "stages.mlir").read_text()
    assert '"micro"=4 temporal' in (tmp_path / "parts.mlir").read_text()
    pipeline = (tmp_path / "pipeline.mlir").read_text()
    assert '#pipe.slot<run "forward1" 3>' in pipeline
    assert re.search(r"pipe.transfer .* tasks = \[#pipe.task<part 0", pipeline)
