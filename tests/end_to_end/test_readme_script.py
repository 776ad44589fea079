"""The script of the README, literally, in an empty folder: it trains as one device does, on every rank."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import accumulate
from operator import le
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from shardwright.runtime.sampler import ShareSampler

README = Path(__file__).parents[2] / "README.md"


def script() -> str:
    """The first block of Python."""
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def expected(parts: int = 1) -> tuple[list[float], dict[str, torch.Tensor]]:
    """What plain PyTorch does, the batch in parts: the losses of 100 steps, and the weights after them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
    data = TensorDataset(torch.randn(6400, 784), torch.randint(10, (6400,)))
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), list[float]()
    for rows in ShareSampler(len(data), 64, range(64)):
        inputs, labels = data[rows]
        optimizer.zero_grad()
        losses.append(0.0)
        for some, theirs in zip(inputs.chunk(parts), labels.chunk(parts), strict=True):
            loss = nn.functional.cross_entropy(model(some), theirs) / parts
            loss.backward()
            losses[-1] += loss.item()
        optimizer.step()
    return losses, model.state_dict()


def tolerances(losses: list[float]) -> list[float]:
    """By step, how far losses may be off: 1e-5, or what another order of additions on one device has come to."""
    others, _ = expected(parts=2)
    apart = (abs(other / loss - 1.0) for other, loss in zip(others, losses, strict=True))
    return [max(1e-5, 2.0 * so_far) for so_far in accumulate(apart, max)]


def outputs(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """What a model with these weights makes of some inputs."""
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
    model.load_state_dict(weights)
    with torch.no_grad():
        return model(torch.randn(64, 784, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_the_script_runs_and_is_exact(ranks: int, tmp_path: Path):
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "train.py").write_text(script())
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "train.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr

    (losses, weights), (_, others) = expected(), expected(parts=2)
    allowed = tolerances(losses)
    for rank in range(ranks):
        printed = [float(loss) for loss in re.findall(rf"rank {rank}: (\d+\.\d{{6}})", done.stdout)]
        apart = [abs(found / loss - 1.0) for found, loss in zip(printed, losses, strict=True)]
        assert all(map(le, apart, allowed)), (apart, allowed)
    # AdamW divides gradients that should be zero by their own size, so single weights say nothing.
    apart = (outputs(torch.load(folder / "model.pt")) - outputs(weights)).norm()
    assert apart <= 3.0 * (outputs(others) - outputs(weights)).norm()
    assert len(list((tmp_path / "cache" / "shardwright" / "clusters").glob("auto-*.toml"))) == 1
