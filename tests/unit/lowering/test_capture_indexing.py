"""Indexing that skips dims is captured as indexing of the first dims, with the same numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from captured_runs import compare, run_captured, run_eager
from torch import nn

from shardwright.lowering.capture.capture import capture_step

ROWS, COLUMNS = torch.tensor([[0, 2, 1], [3, 1, 1]]), torch.tensor([[1], [0]])

Pick = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

PICKS: dict[str, Pick] = {
    "second dim": lambda w, i, j: w[:, i],
    "last dim": lambda w, i, j: w[..., i],
    "adjacent": lambda w, i, j: w[:, i, j],
    "apart": lambda w, i, j: w[:, i, :, j],
    "first and last": lambda w, i, j: w[i, :, :, j],
    "first alone": lambda w, i, j: w[i],
}


class Picks(nn.Module):
    def __init__(self, pick: Pick) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4, 5, 4, generator=torch.Generator().manual_seed(0)))
        self.pick = pick

    def forward(self, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return self.pick(self.w, i, j).pow(3).sum()


@pytest.mark.parametrize("pick", PICKS.values(), ids=PICKS)
def test_the_results_equal_torch(pick: Pick):
    model, batch = Picks(pick), (ROWS, COLUMNS)
    step = capture_step(model, None, torch.optim.SGD, batch)
    indexed = [node for node in step.graph.nodes if str(node.target).startswith(("aten.index.", "aten.index_put"))]
    assert len(indexed) == 2
    assert all(isinstance(index, torch.fx.Node) for node in indexed for index in node.args[1])
    compare(run_captured(step, model, batch), run_eager(model, None, batch), tol=1e-6)
