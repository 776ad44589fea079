"""The exact script of the quick start, in an empty folder, trains as one device does, on every rank."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from forked import torchrun
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shardwright.runtime.batches import ShareSampler

FEW = 3.0
"""The allowed error relative to the largest error of a few other summation orders."""

ROOT = Path(__file__).parents[2]


def script(page: str) -> str:
    """Return the first block of Python in a page."""
    found = re.search(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_script_begins_as_in_the_readme():
    assert script("docs/quick-start.md").startswith(script("README.md"))


@dataclass(frozen=True)
class Run:
    """
    The losses of 100 steps followed by the held-out loss, whose data is drawn after training; and the outputs of the
    trained model for some inputs.
    """

    losses: torch.Tensor
    outputs: torch.Tensor


def on_one_device(parts: int = 1, dtype: torch.dtype = torch.float32, lr: float = 1e-3) -> Run:
    """Train with plain PyTorch, computing each batch in `parts` parts."""
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
    """Return the model of the script."""
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))


def outputs(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the outputs of a model with these weights for some inputs."""
    model = network().double()
    model.load_state_dict(weights)
    with torch.no_grad():
        return model(torch.randn(64, 784, generator=torch.Generator().manual_seed(1)).double())


@pytest.fixture(scope="module")
def one() -> Run:
    """Return the run on one device."""
    return on_one_device()


@pytest.fixture(scope="module")
def others() -> list[Run]:
    """Return runs on one device with other summation orders: each batch in parts, and everything in float64."""
    return [*map(on_one_device, (2, 4, 8, 16)), on_one_device(dtype=torch.float64)]


def apart(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return the relative differences of losses by step."""
    return (found / expected - 1.0).abs()


@pytest.fixture(scope="module")
def allowed(one: Run, others: list[Run]) -> torch.Tensor:
    """
    Return the allowed relative differences of losses by step.

    Rounding errors grow with the steps. The allowed difference is `FEW` times the largest difference so far between
    one device and its other summation orders.
    """
    furthest = torch.stack([apart(other.losses, one.losses) for other in others]).amax(0).cummax(0)[0]
    return (FEW * furthest).clamp(min=1e-5)


def test_a_learning_rate_that_is_off_by_a_thousandth_is_detected(one: Run, allowed: torch.Tensor):
    found = apart(on_one_device(lr=1.001e-3).losses, one.losses)
    assert (found > 2.0 * allowed).any(), (found / allowed).max()


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_the_script_runs_and_is_exact(ranks: int, one: Run, others: list[Run], allowed: torch.Tensor, tmp_path: Path):
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "train.py").write_text(script("docs/quick-start.md"))
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = torchrun(ranks, "train.py", folder=folder, environment=cache, timeout=300)
    assert done.returncode == 0, done.stderr

    for rank in range(ranks):
        printed = [float(loss) for loss in re.findall(rf"rank {rank}: (\d+\.\d{{6}})", done.stdout)]
        printed += [float(loss) for loss in re.findall(r"held out: (\d+\.\d{6})", done.stdout)][rank : rank + 1]
        found = apart(torch.tensor(printed, dtype=torch.float64), one.losses)
        print(f"rank {rank}: losses off by {(found / allowed).max():.2f} of what is allowed, {allowed[-1]:.1e} at last")
        assert (found <= allowed).all(), (found, allowed)
    # AdamW normalises gradients that should be zero, so single weights cannot be compared.
    most = FEW * max((other.outputs - one.outputs).norm() for other in others)
    off = (outputs(torch.load(folder / "model.pt")) - one.outputs).norm()
    print(f"the trained model's outputs are off by {off / most:.2f} of what is allowed, {most:.1e}")
    assert off <= most
    assert len(list((tmp_path / "cache" / "shardwright" / "clusters").glob("auto-*.toml"))) == 1
