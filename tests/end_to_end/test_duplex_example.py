"""The example of duplex: the script on four processes, and the commands of its IR files."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMANDS = re.findall(r"^    (opt-tool .*)$", (EXAMPLES / "duplex" / "README.md").read_text(), re.MULTILINE)


@pytest.mark.distributed
@pytest.mark.timeout(180)
def test_the_loss_is_that_of_one_device():
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    ran = subprocess.run([*launch, str(EXAMPLES / "duplex.py")], capture_output=True, text=True, timeout=170)
    assert ran.returncode == 0, ran.stderr
    losses = re.findall(r"loss (\S+)  on one device (\S+)", ran.stdout)
    assert len(losses) == 5
    assert all(abs(float(ours) - float(alone)) < 1e-4 for ours, alone in losses)


def test_the_commands_of_the_readme_run(tmp_path: Path):
    for name in ("step.mlir", "pins.toml"):
        shutil.copy(EXAMPLES / "duplex" / name, tmp_path)
    assert len(COMMANDS) == 4
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
    assert '"micro"=2 temporal' in (tmp_path / "parts.mlir").read_text()
    duplex = (tmp_path / "duplex.mlir").read_text()
    assert re.search(r"spmd.start .*at = {micro = 0 : i64}", duplex), "the first part communicates on its own"
    assert duplex.count("spmd.accumulate") >= 6
    accumulation = (tmp_path / "accumulation.mlir").read_text()
    assert accumulation.count("pipe.fragment") == 1
