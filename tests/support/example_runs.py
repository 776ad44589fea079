"""What a user does with an example: launch the script on four processes, and run the commands of its README."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def launch_example(name: str) -> str:
    """Run `examples/<name>.py` by torchrun on four processes, and return what it prints."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    ran = subprocess.run([*launch, str(EXAMPLES / f"{name}.py")], capture_output=True, text=True, timeout=170)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def assert_losses_agree(printed: str) -> None:
    """Check that five losses were printed, each with that of one device."""
    losses = re.findall(r"loss (\S+)  on one device (\S+)", printed)
    assert len(losses) == 5
    assert all(abs(float(ours) - float(alone)) < 1e-4 for ours, alone in losses)


def run_readme(name: str, folder: Path) -> int:
    """Run the `opt-tool` commands of an example's README on copies of its files in `folder`; return their number."""
    for path in (EXAMPLES / name).iterdir():
        shutil.copy(path, folder)
    commands = re.findall(r"^    (opt-tool .*)$", (EXAMPLES / name / "README.md").read_text(), re.MULTILINE)
    for command in commands:
        tool, *arguments = shlex.split(command)
        call = [str(Path(sys.executable).parent / tool), *arguments]
        ran = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"{command}\n{ran.stderr}"
    return len(commands)
