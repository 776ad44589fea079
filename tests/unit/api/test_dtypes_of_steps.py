"""Steps of narrow and mixed dtypes train as eager PyTorch does, also after passes that rewrite them."""

from __future__ import annotations

import copy
from functools import partial
from typing import Literal

import pytest
import torch
from split_cluster import split_cluster
from torch import nn
from torch.nn import functional

import shardwright as sw
from shardwright.ir.mesh import Mesh

SGD = partial(torch.optim.SGD, lr=0.1)
DECOMPOSED = "prepare,decompose-batch-norm,canonicalize,cse,dce,search-strategy,program,finish"


@pytest.mark.parametrize("train_scale", [True, False])
@pytest.mark.parametrize("precision", [None, "bf16-mixed"])
def test_decomposed_batch_norms_train_as_eager_pytorch(precision: Literal["bf16-mixed"] | None, train_scale: bool):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4, affine=train_scale)
    ).append(nn.Flatten())
    model[1].requires_grad_(train_scale)
    eager, batch = copy.deepcopy(model), (torch.randn(8, 3, 6, 6) + 3, torch.randint(16, (8,)))
    step = sw.parallelize(
        model,
        functional.cross_entropy,
        SGD,
        batch,
        split_cluster(Mesh.of(gpu=1)),
        plan=sw.PlanOptions(pipeline=DECOMPOSED),
        precision=precision,
    )
    assert "aten._native_batch_norm" not in step.program
    loss, optimizer = step(batch), SGD(eager.parameters())
    with torch.autocast("cpu", torch.bfloat16, enabled=precision is not None):
        expected = functional.cross_entropy(eager(batch[0]), batch[1])
    expected.backward()
    optimizer.step()
    rtol, atol = (2e-2, 2e-3) if precision is not None else (1e-4, 1e-5)
    torch.testing.assert_close(loss, expected.detach(), rtol=rtol, atol=atol)
    found = step.state_dict()
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=rtol, atol=atol, msg=lambda text, at=name: f"{at}: {text}")


@pytest.mark.parametrize(("precision", "dtype"), [("bf16-mixed", torch.bfloat16), ("fp16-mixed", torch.float16)])
def test_group_norm_in_mixed_precision_trains_as_eager_pytorch(
    precision: Literal["bf16-mixed", "fp16-mixed"], dtype: torch.dtype
):
    """The gradient of the input is in float32 on fake tensors, and in the input's dtype in torch's kernels."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten())
    eager, batch = copy.deepcopy(model), (torch.randn(8, 3, 6, 6), torch.randint(16, (8,)))
    step = sw.parallelize(
        model, functional.cross_entropy, SGD, batch, split_cluster(Mesh.of(gpu=1)), precision=precision
    )
    assert "group_norm_backward" in step.program
    loss, optimizer = step(batch), SGD(eager.parameters())
    with torch.autocast("cpu", dtype):
        expected = functional.cross_entropy(eager(batch[0]), batch[1])
    expected.backward()
    optimizer.step()
    torch.testing.assert_close(loss, expected.detach(), rtol=2e-2, atol=2e-3)
    found = step.state_dict()
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=2e-2, atol=2e-3, msg=lambda text, at=name: f"{at}: {text}")


class LargeMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.out = nn.Linear(8, 512), nn.Linear(512, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = self.wide(x).relu()
        return functional.mse_loss(self.out(hidden).float(), y) + 0.1 * hidden.mean().float()


def test_a_float16_mean_is_summed_in_float32():
    torch.manual_seed(0)
    model, batch = LargeMean(), (torch.randn(1024, 8) * 3, torch.randn(1024, 4))
    eager = copy.deepcopy(model)
    plan = sw.PlanOptions(pins="dp")
    step = sw.parallelize(model, None, SGD, batch, split_cluster(Mesh.of(gpu=1)), plan=plan, precision="fp16-mixed")
    with torch.autocast("cpu", torch.float16):
        expected = eager(*batch).detach()
    torch.testing.assert_close(step(batch), expected)


class SeveralDtypes(nn.Module):
    """A model with a scalar gate, and a weight of another dtype."""

    def __init__(self, dtype: torch.dtype, other: torch.dtype) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4, dtype=dtype)
        self.gate = nn.Parameter(torch.tensor(0.7, dtype=dtype))
        self.weight = nn.Parameter(torch.ones(4, dtype=other))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss((self.layer(x) * self.gate * self.weight).to(y.dtype), y) * 30


BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64


@pytest.mark.parametrize(("dtype", "other"), [(BF16, BF16), (F32, F64), (BF16, F32)])
def test_gradients_of_several_dtypes_are_clipped(dtype: torch.dtype, other: torch.dtype):
    torch.manual_seed(0)
    model, batch = SeveralDtypes(dtype, other), (torch.randn(16, 8, dtype=dtype), torch.randn(16, 4, dtype=dtype))
    eager = copy.deepcopy(model)
    plan = sw.PlanOptions(pins="dp")
    step = sw.parallelize(model, None, SGD, batch, split_cluster(Mesh.of(gpu=1)), plan=plan, clip_norm=0.5)
    loss, optimizer = step(batch), SGD(eager.parameters())
    expected = eager(*batch)
    expected.backward()
    norm = nn.utils.clip_grad_norm_(eager.parameters(), 0.5, foreach=False)
    optimizer.step()
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(step.metrics["grad_norm"].double(), norm.double(), rtol=1e-2, atol=0)
    found = step.state_dict()
    for name, value in eager.state_dict().items():
        # Eager rounds the norm of each gradient to its dtype.
        rtol, atol = (2**-6, 1e-5) if dtype is torch.bfloat16 else (None, None)
        torch.testing.assert_close(found[name], value, rtol=rtol, atol=atol)
