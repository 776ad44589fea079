"""The pieces of a cross-entropy equal their definitions and torch's cross-entropy."""

import pytest
import torch
import torch.nn.functional as F

from shardwright.lowering.fused import cross_entropy_ops
from shardwright.runtime import cross_entropy as kernels

LABELS = torch.tensor([0, 6, -100, 3, 3, 2])


def scores(dtype: torch.dtype, rows: int = 6, classes: int = 7) -> torch.Tensor:
    """Return scores, some too large to be exponentiated."""
    drawn = torch.randn(rows, classes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (30 * drawn + 500).to(dtype)


@pytest.mark.parametrize("module", [cross_entropy_ops, kernels])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_pieces_make_torch_s_loss_and_gradient(module, dtype: torch.dtype):
    given = scores(dtype).requires_grad_()
    loss = F.cross_entropy(given, LABELS, reduction="none")
    weights = torch.linspace(-1, 1, 6, dtype=dtype)
    (expected,) = torch.autograd.grad(loss, given, weights)
    plain = given.detach()
    largest = plain.amax(1)
    logsumexp = module.sum_exp(plain, largest).log() + largest
    torch.testing.assert_close(logsumexp, plain.logsumexp(1))
    counted = weights.masked_fill(LABELS == -100, 0)
    torch.testing.assert_close(module.cross_entropy_backward(counted, plain, logsumexp, LABELS), expected)


@pytest.mark.parametrize("part", [(0, 3, 7), (3, 4, 7), (4, 7, 7)])
@pytest.mark.parametrize("block", [1, 5, 1 << 20])
def test_parts_and_blocks_equal_the_definition(part: tuple[int, int, int], block: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernels, "_BLOCK", block)
    plain = scores(torch.float64)
    logsumexp, some = plain.logsumexp(1), plain[:, part[0] : part[1]].t().contiguous().t()
    grad = torch.linspace(-1, 1, 6, dtype=torch.float64)
    for name, arguments, given in (
        ("sum_exp", (some, plain.amax(1)), {}),
        ("cross_entropy_backward", (grad, some, logsumexp, LABELS), {"part": part}),
    ):
        found = getattr(kernels, name)(*arguments, **given)
        torch.testing.assert_close(found, getattr(cross_entropy_ops, name)(*arguments, **given))
        assert found.is_contiguous()


def test_no_rows_give_empty_results():
    none = torch.empty(0, 5)
    assert kernels.sum_exp(none, torch.empty(0)).shape == (0,)
    labels = torch.empty(0, dtype=torch.int64)
    assert kernels.cross_entropy_backward(torch.empty(0), none, torch.empty(0), labels).shape == (0, 5)
