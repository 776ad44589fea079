"""Reads and writes by strides are captured as views, or otherwise by position, with the same numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from captured_runs import compare, run_captured, run_eager
from torch import nn

from shardwright.lowering.capture.capture import capture_step
from shardwright.lowering.capture.captured import CaptureError

Read = Callable[[torch.Tensor], torch.Tensor]


def written(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.as_strided((4,), (7,)).mul_(3)
    return y


def written_box(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.as_strided((3, 1, 2), (2, 5, 12), 3).mul_(3)
    return y


VIEWS: dict[str, Read] = {
    "as it lies": lambda x: (x * 2).as_strided((4, 1, 6), (6, 7, 1)),
    "flat": lambda x: (x * 2).as_strided((24,), (1,)),
    "in another order": lambda x: (x * 2).as_strided((2, 3, 4), (1, 2, 6)),
    "a part": lambda x: (x + 1).as_strided((2, 3), (6, 1), 8),
    "every other": lambda x: (x + 1).as_strided((3, 2), (2, 12), 1),
    "one element": lambda x: (x + 1).as_strided((1, 1), (3, 9), 7),
    "of what was read by strides": lambda x: (x * 2).as_strided((6, 4), (1, 6)).as_strided((24,), (1,)).cumsum(0),
    "of what lies in another order": lambda x: (x * 2).t().as_strided((2, 12), (12, 1)),
    "a part is written": written_box,
}

READS: dict[str, Read] = {
    "overlapping": lambda x: x.as_strided((3, 4, 2), (6, 1, 1), 2),
    "repeated": lambda x: (x + 1).as_strided((3, 4), (0, 2)),
    "another order": lambda x: (x * 2).t().as_strided((2, 3), (12, 1), 1),
    "written": written,
    "like another": lambda x: torch.empty_strided((4, 6), (1, 4)).copy_(x).pow(2),
    "conjugate": lambda x: torch.view_as_real(torch.view_as_complex(x.view(4, 3, 2)).conj() * 2).sum(0),
}


class Reads(nn.Module):
    def __init__(self, read: Read) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 6, generator=torch.Generator().manual_seed(0)))
        self.read = read

    def forward(self, scale: torch.Tensor) -> torch.Tensor:
        return self.read(self.w * scale).pow(3).sum()


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_the_results_equal_torch(read: Read):
    model, batch = Reads(read), (torch.tensor(0.5),)
    step = capture_step(model, None, torch.optim.SGD, batch)
    assert not [node for node in step.graph.nodes if "strided" in str(node.target)]
    compare(run_captured(step, model, batch), run_eager(model, None, batch), tol=1e-6)


@pytest.mark.parametrize("read", VIEWS.values(), ids=VIEWS)
def test_boxes_are_views(read: Read):
    model, batch = Reads(read), (torch.tensor(0.5),)
    step = capture_step(model, None, torch.optim.SGD, batch)
    assert not [node for node in step.graph.nodes if str(node.target).startswith(("aten.index", "aten.as_strided"))]
    compare(run_captured(step, model, batch), run_eager(model, None, batch), tol=1e-6)


def test_strides_that_reach_into_another_tensor_are_refused():
    model = Reads(lambda x: x[1:].as_strided((2, 3), (6, 1)))
    with pytest.raises(CaptureError, match=r"test_capture_strides.py:\d+.*is a view of another"):
        capture_step(model, None, torch.optim.SGD, (torch.tensor(0.5),))
