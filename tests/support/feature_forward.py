"""Scripts about the operations of `forward`."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from features import cross_entropy, planned, refused, trains_alike, two_layers, works
from torch import nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import flex_attention
from torch.utils import checkpoint as checkpointing
from torch.utils.checkpoint import checkpoint

import shardwright as sw
from shardwright.ir.not_supported import (
    ASSERTED,
    CHECKED,
    CHECKPOINT_POLICY,
    COMPLEX_NUMBER,
    CONTROL_FLOW,
    COUNTED,
    CUDA_AUTOCAST,
    FP8,
    GENERATOR,
    NUMPY,
    OTHER_ATTENTION,
    OTHER_RANDOM,
    RANDOM_OP,
    REPLACED_BUFFER,
    SAVED_TENSORS,
    STRIDES,
    VALUE,
    WRITTEN_PARAMETER,
)


class Between(nn.Module):
    """Two linear layers; between them, a function of this module and the hidden value."""

    def __init__(self, function: Callable[..., torch.Tensor], *others: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)
        self.others = nn.ModuleList(others)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.function(self.first(x), *self.others))


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad * 2 * ctx.saved_tensors[0] ** 2


@works("autograd.Function")
def autograd_function():
    trains_alike(Between(Cubed.apply))


@works("torch.func.vmap")
def vmapped():
    trains_alike(Between(lambda h: torch.func.vmap(lambda row: row / (1 + row.square().sum()))(h)))


@works("torch.func.grad")
def grad_inside():
    trains_alike(Between(torch.func.vmap(torch.func.grad(lambda row: row.sin().sum()))))


@works("autograd.grad in forward")
def gradient_penalty():
    def penalised(h: torch.Tensor) -> torch.Tensor:
        (slope,) = torch.autograd.grad(h.pow(3).sum(), h, create_graph=True)
        return h + slope

    trains_alike(Between(penalised))


@refused(
    "branch on a value",
    "needs the values of a tensor.* let no shape, branch or Python number depend on them",
    VALUE,
)
def branch():
    planned(Between(lambda h: h * 2 if h.sum() > 0 else h))


@refused(".item() in forward", "needs the values of a tensor", VALUE)
def item():
    planned(Between(lambda h: h * h.max().item()))


def checked(h: torch.Tensor) -> torch.Tensor:
    assert not torch.isnan(h).any(), "no gaps"
    return h.sin()


@refused("assert in forward", r"torch\.Tensor\.item, .* needs the values of a tensor", ASSERTED)
def asserting():
    planned(Between(checked))


@works("distributions")
def distributions():
    def likelihood(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        spread = torch.distributions.Normal(0.0, logits.exp()).log_prob(logits)
        return -torch.distributions.Categorical(logits=logits).log_prob(labels).mean() - spread.mean()

    torch.distributions.Distribution.set_default_validate_args(True)
    trains_alike(two_layers(), likelihood)
    assert torch.distributions.Distribution._validate_args


def attends(attention: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Plan a model with attention over eight positions of sixteen numbers."""

    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return attention(self.layer(x)).square().mean()

    planned(Attends(), None, (torch.randn(2, 1, 8, 16),))


@refused("flex_attention", "FlexAttention", OTHER_ATTENTION)
def flex():
    attends(lambda q: flex_attention(q, q, q))  # pyright: ignore[reportArgumentType, reportReturnType]


@refused("causal_lower_right", "CausalBias", OTHER_ATTENTION)
def lower_right():
    attends(lambda q: nn.functional.scaled_dot_product_attention(q, q, q, causal_lower_right(8, 8)))


@refused("nonzero", "needs the values of a tensor", VALUE)
def nonzero():
    planned(Between(lambda h: h * h.nonzero().sum()))


@refused("index by a boolean mask", "needs the values of a tensor", VALUE)
def boolean_mask():
    planned(Between(lambda h: h * h[h > 0].sum()))


@refused("masked_select", r"torch\.masked_select, by way of aten\.masked_select\.default, needs the values", VALUE)
def masked_select():
    planned(Between(lambda h: h * torch.masked_select(h, h > 0).sum()))


@refused("torch.cov", r"torch\.cov, by way of aten\.equal\.default, needs the values", VALUE)
def covariance():
    planned(Between(lambda h: h * torch.cov(h).sum()))


@refused("torch.linalg.cholesky", r"torch\.linalg\.cholesky raises an error that depends on the values", CHECKED)
def cholesky():
    planned(Between(lambda h: h * torch.linalg.cholesky(h.mT @ h + torch.eye(8)).sum()))


@refused("torch.linalg.inv", r"torch\.linalg\.inv raises an error that depends on the values", CHECKED)
def inverse():
    planned(Between(lambda h: h @ torch.linalg.inv(h.mT @ h + torch.eye(8))))


@refused("torch.linalg.solve", r"torch\.linalg\.solve raises an error that depends on the values", CHECKED)
def solve():
    planned(Between(lambda h: torch.linalg.solve(h.mT @ h + torch.eye(8), h.mT).mT))


@works("linear algebra that does not raise")
def solve_without_raising():
    trains_alike(Between(lambda h: torch.linalg.solve_ex(h.mT @ h + torch.eye(8), h.mT)[0].mT))


@works("determinants of a matrix and of its transpose")
def determinants():
    def scaled(h: torch.Tensor) -> torch.Tensor:
        matrix = (h.mT @ h).cumsum(0) + 4 * torch.eye(8)
        return h * (torch.slogdet(matrix)[1] + torch.slogdet(matrix.mT)[1] + torch.det(matrix[:2, :2].mT))

    trains_alike(Between(scaled))


@refused("complex Python numbers", r"argument 'other': a value of type complex has no form in the IR", COMPLEX_NUMBER)
def complex_number():
    planned(Between(lambda h: (h * (1 + 2j)).abs()))


@refused(".numpy() in forward", "numpy", NUMPY)
def to_numpy():
    planned(Between(lambda h: h * torch.from_numpy(np.tanh(h.detach().numpy()))))


@refused("torch.cond", r"a control-flow operator.* use torch\.where", CONTROL_FLOW)
def cond():
    planned(Between(lambda h: torch.cond(h.sum() > 0, lambda h: h.sin(), lambda h: h.cos(), (h,))))


@works("complex tensors")
def complex_numbers():
    trains_alike(Between(lambda h: torch.fft.rfft(h).abs().repeat(1, 2)[:, :8]))


@refused("random numbers of numpy", "takes random numbers from numpy or from Python's random", OTHER_RANDOM)
def numpy_random():
    planned(Between(lambda h: h * float(np.random.rand())))


@refused("random numbers of Python", "takes random numbers from numpy or from Python's random", OTHER_RANDOM)
def python_random():
    planned(Between(lambda h: h * random.random()))


@refused("random numbers of a generator", r"from a torch\.Generator.* leave the generator out", GENERATOR)
def own_generator():
    generator = torch.Generator().manual_seed(0)
    planned(Between(lambda h: h * torch.rand(8, generator=generator)))


@refused("random op that cannot be split", "poisson.*random numbers that cannot be drawn shard by shard", RANDOM_OP)
def poisson():
    planned(Between(lambda h: h * torch.poisson(h.detach().exp())))


@works("as_strided")
def strided():
    trains_alike(Between(lambda h: h.tanh().as_strided((6, 8), (1, 6))))


@refused("as_strided of a part", "as_strided.default reads the memory of a tensor that is a view of another", STRIDES)
def strided_part():
    planned(Between(lambda h: h.tanh()[:, ::2].as_strided((6, 8), (1, 6))))


@works("no_grad in forward")
def without_gradient():
    def normalised(h: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = h.abs().mean()
        return h / scale

    trains_alike(Between(normalised))


@works("detach")
def detached():
    trains_alike(Between(lambda h: h + (h.round() - h).detach()))


@works("in-place ops")
def in_place():
    trains_alike(Between(lambda h: (h * 2).mul_(2).add_(1)))


@works("buffer written in forward")
def written_buffer():
    class Counting(Between):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.get_buffer("calls").add_(1).mul_(0.9)
            return super().forward(x) * self.get_buffer("calls")

    trains_alike(Counting(torch.tanh))


@refused(
    "buffer replaced in forward",
    r"assigns a new tensor to the buffer 'calls'; write into it instead",
    REPLACED_BUFFER,
)
def replaced_buffer():
    class Counting(Between):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls = self.calls + 1
            return super().forward(x)

    planned(Counting(torch.tanh))


@refused("parameter written in forward", "forward writes into the parameter 'first.bias'", WRITTEN_PARAMETER)
def written_parameter():
    class Writing(Between):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.first.bias.mul_(0.9)
            return super().forward(x)

    planned(Writing(torch.tanh))


@works("number that the first forward sets")
def number_set_once():
    class Caching(Between):
        length = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.length = max(self.length, x.shape[1])
            return super().forward(x) * self.length

    trains_alike(Caching(torch.tanh))


@refused("number that forward counts", "every forward changes the number 'seen' of the model", COUNTED)
def counted_number():
    class Counting(Between):
        seen = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += 1
            return super().forward(x) * self.seen

    planned(Counting(torch.tanh))


# Precision and memory


@works("autocast in the model")
def autocast_inside():
    class Narrow(Between):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x).float()

    trains_alike(Narrow(torch.tanh), tolerance=1e-2)


@refused("autocast of CUDA in the model", "CUDA autocast is on.* precision='bf16-mixed'", CUDA_AUTOCAST)
def cuda_autocast_inside():
    class Narrow(Between):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # As torch.autocast("cuda") does on a machine with a CUDA device.
            torch.set_autocast_enabled("cuda", True)
            try:
                return super().forward(x)
            finally:
                torch.set_autocast_enabled("cuda", False)

    planned(Narrow(torch.tanh))


@works("autocast to float16 in the model")
def half_autocast_inside():
    class Narrow(Between):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.float16):
                return super().forward(x).float()

    trains_alike(Narrow(torch.tanh), tolerance=1e-2)


@works("precision=fp16-mixed")
def half_mixed():
    def in_half(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16):
            return cross_entropy(model(batch[0]), batch[1])

    scaling = sw.LossScaling(1024.0, growth_interval=2)
    options = {"precision": "fp16-mixed", "loss_scaling": scaling}
    assert planned(two_layers(), **options).loss_scale == 1024.0
    step = trains_alike(two_layers(), in_plain=in_half, tolerance=1e-3, **options)
    assert step.loss_scale == step.metrics["loss_scale"].item() == 2048.0


@refused("loss scaling in bfloat16", "loss scaling needs precision='fp16-mixed'")
def scaled_bfloat16():
    planned(two_layers(), precision="bf16-mixed", loss_scaling=sw.LossScaling())


@refused("precision=fp8-mixed", "no matrix product runs in float8", FP8)
def float8():
    planned(two_layers(), precision="fp8-mixed")


@works("checkpoint")
def checkpointed():
    trains_alike(Between(lambda h: checkpoint(torch.sin, h, use_reentrant=False)))


@works("reentrant checkpoint")
def reentrant_checkpoint():
    trains_alike(Between(lambda h: checkpoint(torch.sin, h, use_reentrant=True)))


@works("checkpoint_sequential")
def sequential_checkpoint():
    layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
    halves = partial(checkpointing.checkpoint_sequential, segments=2, use_reentrant=False)
    trains_alike(Between(lambda h, layers: halves(layers, input=h), layers))


@refused("checkpoint with context_fn", r"has a context_fn.*keep_activations=0\.3", CHECKPOINT_POLICY)
def selective_checkpoint():
    policy = partial(checkpointing.create_selective_checkpoint_contexts, [torch.ops.aten.sin.default])
    planned(Between(lambda h: checkpoint(torch.sin, h, use_reentrant=False, context_fn=policy)))


@refused("saved tensors on the CPU", "hooks the tensors that are saved for backward.* leave them out", SAVED_TENSORS)
def offloaded():
    def saved_on_cpu(h: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu():
            return h.sin()

    planned(Between(saved_on_cpu))
