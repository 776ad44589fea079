"""Run an example as a user does: launch its script on four processes, and run the commands of its README."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
from pathlib import Path
from types import ModuleType

from forked import run_python, torchrun
from split_cluster import split_cluster

from shardwright.ir.cluster_file import cluster_toml
from shardwright.ir.mesh import Mesh

EXAMPLES = Path(__file__).parents[2] / "examples"


def launch_example(name: str, *arguments: str, ranks: int = 4) -> str:
    """Run `examples/<name>.py` on some processes by torchrun, and return its output."""
    ran = torchrun(ranks, str(EXAMPLES / f"{name}.py"), *arguments)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def load_example(name: str) -> ModuleType:
    """Load `examples/<name>.py` as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_cluster(ranks: int, folder: Path) -> str:
    """Write the file of a cluster where splitting pays; return its path."""
    path = folder / "cluster.toml"
    path.write_text(cluster_toml(split_cluster(Mesh.of(gpu=ranks))))
    return str(path)


def assert_losses_agree(printed: str) -> None:
    """Check that five losses were printed, each equal to the loss on one device."""
    losses = re.findall(r"loss (\S+)  on one device (\S+)", printed)
    assert len(losses) == 5
    assert all(abs(float(ours) - float(alone)) < 1e-4 for ours, alone in losses)


def run_readme(name: str, folder: Path) -> int:
    """Run the `opt-tool` commands of an example's README on copies of its files in `folder`; return their number."""
    for path in (EXAMPLES / name).iterdir():
        shutil.copy(path, folder)
    commands = re.findall(r"^    (opt-tool .*)$", (EXAMPLES / name / "README.md").read_text(), re.MULTILINE)
    for command in commands:
        ran = run_python("-m", "shardwright.tools.opt_tool", *shlex.split(command)[1:], folder=folder)
        assert ran.returncode == 0, f"{command}\n{ran.stderr}"
    return len(commands)
