"""Captured graphs compared with eager PyTorch: the loss and every gradient, in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captured_runs import compare, doubled, run_captured, run_eager
from torch import nn

from shardwright.lowering.capture.calling import compute_loss
from shardwright.lowering.capture.capture import CapturedStep, capture_step
from shardwright.lowering.capture.captured import ORIGIN

SGD = partial(torch.optim.SGD, lr=0.1)


def check(model: nn.Module, loss: Callable[..., Any] | None, batch: Any) -> CapturedStep:
    """Capture a model, run it with its weights in float64, and compare with eager PyTorch."""
    model = model.double()
    batch = doubled(batch)
    expected = run_eager(model, loss, batch)
    step = capture_step(model, loss, SGD, batch)
    compare(run_captured(step, model, batch), expected, tol=1e-10)
    return step


Wrap = Callable[[torch.Tensor], Any]


class Net(nn.Module):
    """Two linear layers around the function `between`; `wrap` makes the result."""

    def __init__(self, between: Callable[..., torch.Tensor], wrap: Wrap = lambda x: x) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.second = nn.Linear(5, 4)
        self.between = between
        self.wrap = wrap

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.wrap(self.second(self.between(self.first(x), *args, **kwargs)))


X = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(8) % 4


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: x.square().mean(),
        lambda x: (x.square().mean(), x),
        lambda x: {"loss": x.square().mean(), "logits": x},
        lambda x: SimpleNamespace(loss=x.square().mean(), logits=x),
        lambda x: x.square().mean().view(1),
        lambda x: {"loss_size": x.square().mean(), "loss_sum": x.abs().sum(), "logits": x},
    ],
    ids=["scalar", "tuple", "key", "attribute", "one-element", "several"],
)
def test_the_model_may_return_its_loss(wrap: Callable[[torch.Tensor], Any]) -> None:
    step = check(Net(torch.relu, wrap), None, (X,))
    assert [output.role for output in step.outputs] == ["loss", "grad", "grad", "grad", "grad"]


@pytest.mark.parametrize("wrap", [tuple, list, lambda losses: dict(zip("ab", losses, strict=True))])
def test_several_losses_are_added(wrap: Callable[[Any], Any]) -> None:
    def loss(out: torch.Tensor, labels: torch.Tensor) -> Any:
        return wrap((F.cross_entropy(out, labels), out.square().mean()))

    check(Net(torch.relu), loss, (X, Y))
    eager = Net(torch.relu)
    expected = F.cross_entropy(eager(X), Y) + eager(X).square().mean()
    torch.testing.assert_close(compute_loss(eager, loss, (X, Y)), expected)


def test_dict_batch_with_plain_values() -> None:
    net = Net(lambda h, scale, flag: torch.tanh(h) * scale if flag else h)
    step = check(net, F.cross_entropy, {"x": X, "scale": 0.5, "flag": True, "labels": Y})
    assert [given.name for given in step.inputs_of("batch")] == ["x", "labels"]


@pytest.mark.parametrize(
    "loss",
    [
        F.cross_entropy,
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)),
        partial(F.cross_entropy, label_smoothing=0.1),
        lambda out, labels: F.mse_loss(out, F.one_hot(labels, 4).to(out.dtype)),
        lambda out, labels: F.smooth_l1_loss(out, F.one_hot(labels, 4).to(out.dtype)),
        lambda out, labels: F.huber_loss(out, F.one_hot(labels, 4).to(out.dtype)),
        lambda out, labels: F.l1_loss(out, F.one_hot(labels, 4).to(out.dtype)),
        lambda out, labels: F.binary_cross_entropy_with_logits(out, F.one_hot(labels, 4).to(out.dtype)),
        lambda out, labels: F.binary_cross_entropy(out.sigmoid(), F.one_hot(labels, 4).to(out.dtype)),
        lambda out, labels: F.kl_div(out.log_softmax(-1), out.softmax(-1).flip(0), reduction="batchmean"),
    ],
    ids=["ce", "weighted-ce", "smoothed-ce", "mse", "smooth-l1", "huber", "l1", "bce-logits", "bce", "kl"],
)
def test_losses(loss: Callable[..., Any]) -> None:
    check(Net(torch.relu), loss, (X, Y))


def test_tied_weights_are_one_input_with_the_sum_of_gradients() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))
            self.b.weight = self.a.weight
            self.c.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(torch.tanh(self.b(torch.tanh(self.a(x))))).square().mean()

    step = check(Tied(), None, (X,))
    first = step.inputs[0]
    assert (first.name, first.aliases) == ("a.weight", ("b.weight", "c.weight"))
    assert [i.name for i in step.inputs_of("param")] == ["a.weight", "a.bias", "b.bias", "c.bias"]


def test_unused_and_frozen_parameters_are_listed_without_a_gradient() -> None:
    net = Net(torch.relu)
    net.spare = nn.Linear(2, 2)
    net.first.weight.requires_grad_(False)
    step = check(net, F.cross_entropy, (X, Y))
    by_name = {given.name: given for given in step.inputs}
    assert by_name["spare.weight"].requires_grad
    assert not by_name["first.weight"].requires_grad
    grads = {output.name for output in step.outputs if output.role == "grad"}
    assert grads == {"first.bias", "second.weight", "second.bias"}


def test_buffers() -> None:
    class Buffered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(nn.BatchNorm1d(5))
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
            self.register_buffer("mean", torch.zeros(4), persistent=False)
            self.register_buffer("shift", torch.ones(4))
            self.plain = torch.full((4,), 2.0, dtype=torch.float64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.net(x) * self.plain + self.shift
            self.calls += 1  # type: ignore[operator]
            self.get_buffer("mean").mul_(0.9).add_(out.detach().mean(0), alpha=0.1)
            return out

    step = check(Buffered(), F.cross_entropy, (X, Y))
    changed = {output.name for output in step.outputs if output.role == "buffer"}
    statistics = {f"net.between.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert changed == {"calls", "mean"} | statistics
    fleeting = {given.name for given in step.inputs_of("buffer") if not given.persistent}
    assert fleeting == {"mean", "plain"}


def test_constants_keep_their_values() -> None:
    outside = torch.tensor([0.5, 1.5, 2.5, 3.5, 4.5], dtype=torch.float64)
    step = check(
        Net(lambda h: h * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=h.dtype) + outside),
        F.cross_entropy,
        (X, Y),
    )
    values = [given.value for given in step.inputs_of("constant")]
    assert sorted(value[0].item() for value in values if value is not None) == [0.5, 1.0]


def test_tricky_views_and_inplace_writes() -> None:
    def between(h: torch.Tensor) -> torch.Tensor:
        h = h.reshape(4, 2, 5).transpose(0, 1).reshape(8, 5)
        h = h.t().contiguous().t().clone()
        h[1:3] = 0
        h.mul_(2)
        return torch.stack(h.expand(2, 8, 5).unbind(0)).sum(0).squeeze(-1)

    check(Net(between), F.cross_entropy, (X, Y))


class Sine(torch.autograd.Function):
    """A function with a custom backward, which is not its derivative."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return 2 * grad * ctx.saved_tensors[0].cos()


SEQUENCE = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(1))
IMAGE = torch.randn(4, 8, 10, 10, generator=torch.Generator().manual_seed(2))
TOKENS = torch.arange(24).view(4, 6) % 9
COLUMNS = TOKENS[:, :, None] % 8
ENCODER = partial(nn.TransformerEncoderLayer, 8, 2, 16, dropout=0.0, batch_first=True)


@pytest.mark.parametrize(
    ("make", "run", "x"),
    [
        (partial(nn.RMSNorm, 8), None, SEQUENCE),
        (partial(nn.GroupNorm, 2, 8), None, IMAGE),
        (partial(nn.InstanceNorm2d, 8, affine=True), None, IMAGE),
        (partial(nn.BatchNorm2d, 8), None, IMAGE),
        (ENCODER, None, SEQUENCE),
        (partial(nn.MultiheadAttention, 8, 2), lambda m, x: m(x, x, x)[0], SEQUENCE),
        (partial(nn.LSTM, 8, 5), lambda m, x: m(x)[0], SEQUENCE),
        (partial(nn.LSTM, 8, 5, batch_first=True), lambda m, x: m(x)[1][1], SEQUENCE),
        (partial(nn.LSTM, 8, 5, proj_size=3), lambda m, x: m(x)[0], SEQUENCE),
        (partial(nn.GRU, 8, 5, 2, bias=False, bidirectional=True), lambda m, x: m(x)[0] + m(x)[1].mean(), SEQUENCE),
        (partial(nn.RNN, 8, 5, nonlinearity="relu"), lambda m, x: m(x, x[:1, :, :5])[1], SEQUENCE),
        (partial(nn.Embedding, 9, 5, padding_idx=0), None, TOKENS),
        (partial(nn.Linear, 8, 8), lambda m, x: F.gaussian_nll_loss(m(x), x, m(x).exp(), eps=1.0), SEQUENCE),
        (partial(nn.Linear, 8, 8), lambda m, x: nn.GaussianNLLLoss(full=True)(m(x), x, x[..., 0] ** 2), SEQUENCE),
        (partial(nn.EmbeddingBag, 9, 5), None, TOKENS),
        (partial(nn.EmbeddingBag, 9, 5, mode="sum"), lambda m, x: m(x, per_sample_weights=x.to(m.weight)), TOKENS),
        (partial(nn.EmbeddingBag, 9, 5, mode="max"), None, TOKENS),
        (partial(nn.EmbeddingBag, 9, 5, padding_idx=0), None, TOKENS),
        (partial(nn.ConvTranspose2d, 8, 4, 3, stride=2), None, IMAGE),
        (partial(nn.Conv2d, 8, 8, 3, groups=8, padding=1), None, IMAGE),
        (partial(nn.Conv2d, 8, 4, 1), lambda m, x: F.adaptive_avg_pool2d(F.max_pool2d(m(x), 2), 1), IMAGE),
        (partial(nn.Conv2d, 8, 4, 1), lambda m, x: F.interpolate(m(x), scale_factor=2), IMAGE),
        (partial(nn.Linear, 8, 8), lambda m, x: Sine.apply(m(x)), SEQUENCE),
        (partial(nn.Linear, 8, 8), lambda m, x: torch.einsum("bij,bkj->bik", m(x), x), SEQUENCE),
        (
            partial(nn.Linear, 8, 8),
            lambda m, x: m(x).topk(2)[0] + m(x).gather(-1, TOKENS[:, :, None] % 8),
            SEQUENCE,
        ),
        (partial(nn.Linear, 8, 8), lambda m, x: torch.cat(m(x).split(3, -1)[:2], -1).roll(1, 1), SEQUENCE),
        (partial(nn.Linear, 8, 8), lambda m, x: m(x) * m(x).detach().var(-1, keepdim=True), SEQUENCE),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), None, SEQUENCE),
        (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), None, SEQUENCE),
    ],
    ids=[
        "rms-norm",
        "group-norm",
        "instance-norm",
        "batch-norm",
        "encoder-layer",
        "multihead",
        "lstm",
        "lstm-cells",
        "lstm-projected",
        "gru-both-ways",
        "rnn-from-a-state",
        "padding-idx",
        "variances-below-eps",
        "a-variance-per-row",
        "mean-of-bags",
        "weighted-bags",
        "largest-of-bags",
        "bags-with-padding",
        "transposed-conv",
        "depthwise-conv",
        "pools",
        "interpolate",
        "autograd-function",
        "einsum",
        "topk-gather",
        "split-cat-roll",
        "detach-var",
        "weight-norm",
        "spectral-norm",
    ],
)
def test_layers_of_torch(make: Callable[[], nn.Module], run: Any, x: torch.Tensor) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = make()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (run(self.layer, x) if run else self.layer(x)).square().mean()

    step = check(Model(), None, (x,))
    assert all(node.meta[ORIGIN].line for node in step.graph.nodes if node.op == "call_function")


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("masked", [None, "bool", "float"])
def test_attention_with_masks_and_scale(causal: bool, masked: str | None) -> None:
    if causal and masked:
        pytest.skip("torch takes a mask or causality, not both")
    masks = {
        None: None,
        "bool": torch.ones(4, 4).tril().bool(),
        "float": torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
    }

    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(6, 3 * 8)
            self.out = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
            q, k, v = (t.view(2, 4, 2, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=0.3)
            return self.out(mixed.transpose(1, 2).reshape(8, 8))

    step = check(Attend(), F.cross_entropy, (X, masks[masked], Y))
    names = {getattr(node.target, "__name__", "") for node in step.graph.nodes}
    assert {"attention", "attention_backward"} <= names


def test_the_callers_grad_mode_does_not_matter() -> None:
    with torch.no_grad():
        step = capture_step(Net(torch.relu), F.cross_entropy, SGD, (X, Y))
    assert len(step.outputs) == 5


def test_a_module_instance_is_left_as_it_is() -> None:
    net = Net(torch.relu)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    kept = dict(net.named_parameters())
    capture_step(lambda: net, F.cross_entropy, SGD, (X, Y), dtype=torch.float64)
    capture_step(net, F.cross_entropy, SGD, (X, Y), dtype=torch.float64)
    assert all(dict(net.named_parameters())[name] is value for name, value in kept.items())
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())


def test_a_model_may_read_values_if_it_is_not_compiling() -> None:
    def between(h: torch.Tensor) -> torch.Tensor:
        seen = torch.ones(8, 5, dtype=torch.bool)
        whole = not torch.compiler.is_compiling() and bool(seen.all())
        return h if whole else torch.where(seen, h, 0)

    check(Net(between), F.cross_entropy, (X, Y))
    assert not torch.compiler.is_compiling()


def test_assertions_on_values_leave_no_ops() -> None:
    def between(h: torch.Tensor) -> torch.Tensor:
        torch.ops.aten._assert_async(h.isfinite().all())
        return h

    step = check(Net(between), F.cross_entropy, (X, Y))
    assert not [node for node in step.graph.nodes if "assert" in node.name or "isfinite" in node.name]


def test_a_factory_may_read_numbers_that_it_makes_on_the_cpu() -> None:
    def make() -> nn.Module:
        widths = torch.linspace(2, 4, 2, device="cpu").int().tolist()
        return nn.Sequential(nn.Linear(6, widths[0]), nn.ReLU(), nn.Linear(widths[0], widths[1]))

    step = capture_step(make, F.cross_entropy, SGD, (X, Y))
    assert [given.shape for given in step.inputs_of("param")] == [(2, 6), (2,), (4, 2), (4,)]


def test_empty_tensors_are_left_out_of_a_concatenation() -> None:
    step = check(Net(lambda h: torch.cat([torch.tensor([], dtype=h.dtype), h], dim=-1)), F.cross_entropy, (X, Y))
    assert not [node for node in step.graph.nodes if "cat" in node.name]


def test_a_write_of_a_full_value_replaces_it() -> None:
    def between(h: torch.Tensor) -> torch.Tensor:
        rolled = h.new_zeros(h.shape)
        rolled[:, 1:] = h[:, :-1].clone()
        rolled[:, 0] = 3
        return rolled

    step = check(Net(between), F.cross_entropy, (X, Y))
    assert not step.graph.find_nodes(op="call_function", target=torch.ops.aten.copy.default)


MASK = torch.arange(40).view(8, 5) % 3 == 0


def _assign(h: torch.Tensor, mask: torch.Tensor, value: Any) -> torch.Tensor:
    h = h.clone()
    h[mask] = value
    return h


@pytest.mark.parametrize(
    "between",
    [
        lambda h: _assign(h, MASK, 2),
        lambda h: _assign(h, MASK, h.mean()),
        lambda h: _assign(h, MASK[:, 0], h[0]),
        lambda h: h.masked_scatter(MASK, h.t().sin()),
        lambda h: h.clone().masked_scatter_(MASK[:1], h.cos()),
    ],
    ids=["number", "scalar", "row", "masked-scatter", "in-place"],
)
def test_writes_by_a_mask(between: Callable[..., torch.Tensor]) -> None:
    check(Net(between), F.cross_entropy, (X, Y))


def test_a_torch_check_of_values_is_ignored() -> None:
    def between(h: torch.Tensor) -> torch.Tensor:
        lengths = (X > 0).sum(-1)
        torch._check(lengths.max().item() <= 6)
        return h * torch.arange(5)

    net = Net(between)
    net.spare = nn.Linear(2, 2)
    step = check(net, F.cross_entropy, (X, Y))
    origins = [node.meta[ORIGIN] for node in step.graph.nodes if node.op == "call_function"]
    assert {origin.layer for origin in origins} == {"", "first", "second"}
    assert all(origin.line for origin in origins if origin.layer)
    assert "spare.weight" in {given.name for given in step.inputs}
