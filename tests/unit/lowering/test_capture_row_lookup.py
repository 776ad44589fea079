"""Lookups with an index that counts rows are captured as lookups along one dim, with the same numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from captured_runs import compare, run_captured, run_eager
from torch import nn

from shardwright.lowering.capture.capture import capture_step

ROWS, PLACES = torch.tensor([0, 2, -1, 1]), torch.tensor([[4, -5], [0, 0], [3, 2], [1, 1]])

Pick = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def counting(size: int) -> torch.Tensor:
    return torch.arange(size)


def added(w: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    # Rows 0 and 1 name the same position twice.
    return (w * 1).index_put((counting(4)[:, None], j), w.new_ones(6, 3) * w[0, 0], accumulate=True)


def written(w: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    return (w * 1).index_put((counting(4), i), w[:, 0] * 2)


def written_everywhere(w: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    return (w * 1).index_put((counting(4)[:, None], counting(5)), w[0, :1] * 2)


def added_everywhere(w: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    return (w * 1).index_put((counting(4), counting(5)[:, None]), w[0, :1] * 2, accumulate=True)


PICKS: dict[str, Pick] = {
    "one of each row": lambda w, i, j: w[counting(4), i],
    "several of each row": lambda w, i, j: w[counting(4)[:, None], j],
    "by argmax": lambda w, i, j: w[torch.arange(0, 4), w[:, :, 0, 0].argmax(1)],
    "behind other places": lambda w, i, j: w[counting(4)[None, :], j.t()],
    "the second index counts": lambda w, i, j: w[i[:, None], counting(5)],
    "two are found": lambda w, i, j: w[counting(4), i, i],
    "found before what is counted": lambda w, i, j: w[i, i, counting(6)[:, None]],
    "two count": lambda w, i, j: w[counting(4)[:, None, None], i[:, None], counting(6)],
    "counted and left out": lambda w, i, j: w[counting(4), :, i],
    "all count": lambda w, i, j: w[counting(4)[:, None, None], counting(5) + 0],
    "all count, in another order": lambda w, i, j: w[counting(4), counting(5)[:, None], counting(6)[:, None, None]],
    "the diagonal": lambda w, i, j: w[:, :4][counting(4), counting(4)],
    "int32": lambda w, i, j: w[torch.arange(4, dtype=torch.int32), i.int()],
    "added": added,
    "added everywhere": added_everywhere,
    "written": written,
    "written everywhere": written_everywhere,
}

NOT_COUNTED: dict[str, Pick] = {
    "by value": lambda w, i, j: w[i[:, None], j],
    "a part of the rows": lambda w, i, j: w[counting(2), i[:2]],
    "from one": lambda w, i, j: w[torch.arange(1, 4), i[:3]],
    "every other": lambda w, i, j: w[torch.arange(0, 4, 2), i[:2]],
    "further": lambda w, i, j: w[:3][counting(3) - 1, i[:3]],
}


class Picks(nn.Module):
    def __init__(self, pick: Pick) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 5, 6, 3, generator=torch.Generator().manual_seed(0)))
        self.pick = pick

    def forward(self, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return self.pick(self.w, i, j).pow(3).sum()


@pytest.mark.parametrize(
    ("pick", "is_counted"),
    [(pick, True) for pick in PICKS.values()] + [(pick, False) for pick in NOT_COUNTED.values()],
    ids=[*PICKS, *NOT_COUNTED],
)
def test_the_results_equal_torch(pick: Pick, is_counted: bool):
    model, batch = Picks(pick), (ROWS, PLACES)
    step = capture_step(model, None, torch.optim.SGD, batch)
    left = [node for node in step.graph.nodes if str(node.target).startswith(("aten.index.", "aten.index_put"))]
    assert bool(left) != is_counted
    compare(run_captured(step, model, batch), run_eager(model, None, batch), tol=1e-6)


def test_a_position_out_of_bounds_is_still_an_error():
    model, batch = Picks(lambda w, i, j: w[counting(4), i]), (ROWS, PLACES)
    step = capture_step(model, None, torch.optim.SGD, batch)
    with pytest.raises(RuntimeError, match="out of bounds"):
        run_captured(step, model, (ROWS + 5, PLACES))
