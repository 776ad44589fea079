"""A refused option of a plan is reported with the true reason, and every possible plan is found."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from split_cluster import split_cluster
from staged_modules import Blocks, batch
from torch import nn

from shardwright.api.compile import PlanOptions, compile_step
from shardwright.api.training_step import TrainingStep
from shardwright.ir.mesh import Mesh
from shardwright.passes.errors import PassError
from shardwright.passes.planning.layouts import LayoutConstraints, impossible


def planned(
    loss: Callable[..., torch.Tensor] = nn.functional.mse_loss, model: nn.Module | None = None, **options: float
) -> str:
    step = TrainingStep((model or Blocks()).double(), loss, partial(torch.optim.SGD, lr=0.1), batch(0))
    asked = PlanOptions(**options)  # pyright: ignore[reportArgumentType]
    return str(compile_step(step, split_cluster(Mesh.of(gpu=2)), asked).report["chosen"])


def test_stages_keep_the_activations_that_are_asked_for():
    name = planned(stages=2, micro_batches=2, keep_activations=0.3)
    assert name.startswith("searched on 2, 2 stages, ")
    assert "2 micro-batches, keeping 30% of activations (weights " in name


@pytest.mark.parametrize("options", [{"micro_batches": 4}, {"stages": 2}, {"stages": 2, "micro_batches": 8}])
def test_what_cannot_be_cut_is_named_for_any_number_of_parts(options: dict[str, float]):
    def over_the_batch(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(output, labels) / output.std()

    with pytest.raises(PassError, match=r"std.correction.* needs all 8 rows of the batch at once"):
        planned(over_the_batch, stages=options.get("stages", 1), micro_batches=options.get("micro_batches", 2))


def test_accumulation_that_cuts_nothing_is_refused():
    class OfWeights(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer.weight

    with pytest.raises(PassError, match="no op works on a part of the 8 rows"):
        planned(lambda output, _: output.pow(2).mean(), OfWeights(), stages=1, micro_batches=4)


@pytest.mark.parametrize(
    ("fixed", "why"),
    [
        (LayoutConstraints(stages=3), "a stage needs a device of its own, and the cluster has 2"),
        (LayoutConstraints(stages=2, micro_batches=1), "a pipeline needs at least two micro-batches"),
        (
            LayoutConstraints(stages=2, duplex=True),
            "duplex=yes cuts the batch by itself: leave out stages and micro_batches",
        ),
        (LayoutConstraints(micro_batches=9), "a micro-batch needs a row, and the batch has 8"),
        (LayoutConstraints(stages=2, micro_batches=8, keep=0.5), None),
    ],
)
def test_why_no_layout_is_as_asked(fixed: LayoutConstraints, why: str | None):
    assert impossible(fixed, devices=2, rows=8, layers=4) == why


def test_a_stage_needs_a_layer():
    assert (
        impossible(LayoutConstraints(stages=2), 2, 8, layers=1)
        == "a stage needs a layer of its own, and the model has 1"
    )
