"""Cross-entropies of every form, and rows behind views, have the results of one device when micro-batched."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from launches import covering
from time_cuts import FORMS
from torch import nn

from shardwright.api.checking.check import check_interpreted
from shardwright.api.training_step import TrainingStep
from shardwright.lowering.capture.calling import Precision

WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 0.25, 1.5, 1.0, 0.75, 3.0], dtype=torch.float64)
SGD = partial(torch.optim.SGD, lr=0.1)


class Blocks(nn.Module):
    """Two layers of equal shape, which may be divided over stages."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class WithWeights(Blocks):
    """Blocks with class weights in a buffer, that compute their loss."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", WEIGHTS.clone())

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        weights = self.get_buffer("weights")
        return nn.functional.cross_entropy(super().forward(x).flatten(0, 1), labels.flatten(), weight=weights)


class Regrouped(nn.Module):
    """A model that views rows of 4 x 6 x 6 numbers as 6 x 24: sizes without a common refinement."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList((nn.Conv2d(3, 4, 3, padding=1), nn.Linear(24, 8)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, last = self.layers
        return last(first(x).reshape(-1, 6, 24))


def rows(of: torch.Tensor) -> torch.Tensor:
    return of.flatten(0, 1)


def cross_entropy(**settings: object) -> TrainingStep:
    def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        given = {k: v.to(output.dtype) if isinstance(v, torch.Tensor) else v for k, v in settings.items()}
        return nn.functional.cross_entropy(rows(output), labels.flatten(), **given)  # type: ignore[arg-type]

    return TrainingStep(Blocks(), loss, SGD, _batch())


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 8, (16, 5), generator=generator)
    return torch.randn(16, 5, 8, generator=generator), labels


def over_pictures() -> TrainingStep:
    def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = output.transpose(1, 2).unflatten(2, (5, 1))
        weights = WEIGHTS.to(output.dtype)
        return nn.functional.cross_entropy(scores, labels.unsqueeze(2), weight=weights, ignore_index=3)

    return TrainingStep(Blocks(), loss, SGD, _batch())


def regrouped() -> TrainingStep:
    return TrainingStep(Regrouped(), nn.functional.mse_loss, SGD, (torch.randn(16, 3, 6, 6), torch.randn(16, 6, 8)))


STEPS: dict[str, Callable[[], TrainingStep]] = {
    "smoothed sum": partial(cross_entropy, reduction="sum", label_smoothing=0.1),
    "weighted sum": partial(cross_entropy, reduction="sum", weight=WEIGHTS),
    "weighted mean": partial(cross_entropy, weight=WEIGHTS),
    "smoothed, weighted mean": partial(cross_entropy, weight=WEIGHTS, label_smoothing=0.1),
    "all three": partial(cross_entropy, weight=WEIGHTS, label_smoothing=0.1, ignore_index=3),
    "all three, summed": partial(cross_entropy, weight=WEIGHTS, label_smoothing=0.1, ignore_index=3, reduction="sum"),
    "weights in a buffer": lambda: TrainingStep(WithWeights(), None, SGD, _batch()),
    "pictures": over_pictures,
    "rows behind a view": regrouped,
}


@pytest.mark.parametrize(("name", "way"), covering(STEPS, ["accumulate", "2 stages"]))
def test_a_micro_batched_loss_equals_one_device(name: str, way: str):
    result = check_interpreted(FORMS[way].case(STEPS[name], steps=1))
    assert result.passed, str(result)


@pytest.mark.parametrize(("precision", "way"), covering(["fp16-mixed", "bf16-mixed"], ["accumulate", "2 stages"]))
def test_a_micro_batched_mean_in_mixed_precision_equals_one_device(precision: Precision, way: str):
    def step() -> TrainingStep:
        given = cross_entropy()
        return TrainingStep(given.model, given.loss, given.optimizer, given.batch, precision=precision)

    # The tolerance covers float16 or bfloat16 products that are added in another order.
    result = check_interpreted(FORMS[way].case(step, torch.float32, 1), tolerance=1e-2)
    assert result.passed, str(result)
