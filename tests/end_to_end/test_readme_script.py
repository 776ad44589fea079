"""The script of the README, literally, in an empty folder: it trains as one device does, on every rank."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shardwright.runtime.sampler import ShareSampler

FEW = 3.0
"""How many times further than the furthest of a few summations another one may be."""

README = Path(__file__).parents[2] / "README.md"


def script() -> str:
    """The first block of Python."""
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@dataclass(frozen=True)
class Run:
    """
    The losses of 100 steps and, last, on what is held out, whose numbers are drawn after training; and what the trained
    model makes of some inputs.
    """

    losses: torch.Tensor
    outputs: torch.Tensor


def on_one_device(parts: int = 1, dtype: torch.dtype = torch.float32, lr: float = 1e-3) -> Run:
    """What plain PyTorch does, going through each batch in parts."""
    torch.manual_seed(0)
    model = network().to(dtype)
    data = TensorDataset(torch.randn(6400, 784).to(dtype), torch.randint(10, (6400,)))
    loader = DataLoader(data, batch_sampler=ShareSampler(len(data), 64, range(64)))
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=lr), list[float]()
    for inputs, labels in loader:
        optimizer.zero_grad()
        losses.append(0.0)
        for some, theirs in zip(inputs.chunk(parts), labels.chunk(parts), strict=True):
            loss = nn.functional.cross_entropy(model(some), theirs) / parts
            loss.backward()
            losses[-1] += loss.item()
        optimizer.step()
    inputs, labels = torch.randn(50, 784).to(dtype), torch.randint(10, (50,))
    losses.append(nn.functional.cross_entropy(model(inputs), labels).item())
    return Run(torch.tensor(losses, dtype=torch.float64), outputs(model.state_dict()))


def network() -> nn.Module:
    """The model of the script."""
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))


def outputs(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """What a model with these weights makes of some inputs."""
    model = network().double()
    model.load_state_dict(weights)
    with torch.no_grad():
        return model(torch.randn(64, 784, generator=torch.Generator().manual_seed(1)).double())


@pytest.fixture(scope="module")
def one() -> Run:
    """One device."""
    return on_one_device()


@pytest.fixture(scope="module")
def others() -> list[Run]:
    """One device that sums otherwise: each batch in parts, and all in float64."""
    return [*map(on_one_device, (2, 4, 8, 16)), on_one_device(dtype=torch.float64)]


def apart(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """By step, how far losses are off."""
    return (found / expected - 1.0).abs()


@pytest.fixture(scope="module")
def allowed(one: Run, others: list[Run]) -> torch.Tensor:
    """
    By step, how far losses may be off.

    Rounding grows with the steps: what is allowed after some is a few times what one device's own sums, of which there
    are not many, have come to by then.
    """
    furthest = torch.stack([apart(other.losses, one.losses) for other in others]).amax(0).cummax(0)[0]
    return (FEW * furthest).clamp(min=1e-5)


def test_a_learning_rate_that_is_off_by_a_thousandth_is_not_allowed(one: Run, allowed: torch.Tensor):
    found = apart(on_one_device(lr=1.001e-3).losses, one.losses)
    assert (found > 2.0 * allowed).any(), (found / allowed).max()


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_the_script_runs_and_is_exact(ranks: int, one: Run, others: list[Run], allowed: torch.Tensor, tmp_path: Path):
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "train.py").write_text(script())
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "train.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr

    for rank in range(ranks):
        printed = [float(loss) for loss in re.findall(rf"rank {rank}: (\d+\.\d{{6}})", done.stdout)]
        printed += [float(loss) for loss in re.findall(r"held out: (\d+\.\d{6})", done.stdout)][rank : rank + 1]
        found = apart(torch.tensor(printed, dtype=torch.float64), one.losses)
        print(f"rank {rank}: losses off by {(found / allowed).max():.2f} of what is allowed, {allowed[-1]:.1e} at last")
        assert (found <= allowed).all(), (found, allowed)
    # AdamW divides gradients that should be zero by their own size, so single weights say nothing.
    most = FEW * max((other.outputs - one.outputs).norm() for other in others)
    off = (outputs(torch.load(folder / "model.pt")) - one.outputs).norm()
    print(f"the trained model's outputs are off by {off / most:.2f} of what is allowed, {most:.1e}")
    assert off <= most
    assert len(list((tmp_path / "cache" / "shardwright" / "clusters").glob("auto-*.toml"))) == 1
