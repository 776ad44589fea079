"""Captured graphs: their form, their source locations, their memory, and refusals."""

from __future__ import annotations

import importlib
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint as checkpointing
from captured_runs import graph_calls, op_name
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from shardwright.lowering.capture.capture import (
    CapturedStep,
    CaptureError,
    GroupSpec,
    OptimizerSpec,
    capture_step,
)
from shardwright.lowering.capture.captured import ORIGIN, Origin
from shardwright.models import training_step

SGD = partial(torch.optim.SGD, lr=0.1)
X, Y = torch.ones(4, 6), torch.zeros(4, dtype=torch.int64)
OUTSIDE = torch.ones(3, requires_grad=True)
HERE = Path(__file__).name


def captured(name: str) -> CapturedStep:
    step = training_step(name)
    return capture_step(step.model, step.loss, step.optimizer, step.batch)


def test_places_in_gpt2() -> None:
    step = captured("gpt2-tiny")
    by_op: dict[tuple[str, str], list[Origin]] = {}
    for node, origin in graph_calls(step):
        by_op.setdefault((origin.layer, op_name(node)), []).append(origin)
    attend = by_op["h.1.attn", "attention"] + by_op["h.1.attn", "attention_backward"]
    assert [origin.phase for origin in attend] == ["forward", "backward"]
    assert attend[0].line == attend[1].line
    line = Path(attend[0].file).read_text().splitlines()[attend[0].line - 1]
    assert "scaled_dot_product_attention" in line
    assert len(by_op["h.0.attn.q", "addmm"]) == 1
    assert len(by_op["h.0.attn.q", "mm"]) == 2
    assert {origin.layer for origin in by_op["lm_head", "mm"]} == {"lm_head"}
    assert ("", "_log_softmax") in by_op


def test_places_without_a_line_of_the_users_fall_back_on_torch() -> None:
    step = capture_step(nn.Sequential(nn.Linear(6, 3), nn.ReLU()), F.cross_entropy, SGD, (X, Y))
    by_layer = {origin.layer: Path(origin.file).name for _, origin in graph_calls(step)}
    assert by_layer == {"0": "linear.py", "1": "functional.py", "": "functional.py"}


def test_dtype_converts_floating_tensors_only() -> None:
    step = training_step("vit-tiny")
    captured64 = capture_step(step.model, step.loss, step.optimizer, step.batch, dtype=torch.float64)
    assert [i.dtype for i in captured64.inputs_of("batch")] == [torch.float64, torch.int64]
    assert {i.dtype for i in captured64.inputs_of("param")} == {torch.float64}


def test_tensors_on_other_devices_are_captured_as_if_on_the_cpu() -> None:
    with torch.device("meta"):
        model = nn.Linear(6, 3)
    step = capture_step(model, F.cross_entropy, SGD, (X.to("meta"), Y.to("meta")))
    assert {node.meta["val"].device.type for node in step.graph.find_nodes(op="placeholder")} == {"cpu"}


def test_names_of_nodes_show_their_origin() -> None:
    names = {node.name for node in captured("mlp-tiny").graph.nodes}
    assert {
        "layers_0_weight",
        "_0",
        "layers_0_addmm",
        "relu",
        "layers_2_mm_grad",
        "nll_loss_backward",
    } <= names


def test_capturing_an_eight_gigabyte_model_allocates_little_memory() -> None:
    script = """
        import resource
        import torch
        from functools import partial
        from shardwright.lowering.capture.capture import capture_step
        from shardwright.models.mlp import MLP

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

        batch = (torch.ones(8, 16384), torch.zeros(8, dtype=torch.int64))
        capture_step(partial(MLP, (4, 4)), torch.nn.functional.cross_entropy, torch.optim.AdamW,
                     (torch.ones(2, 4), torch.zeros(2, dtype=torch.int64)))
        before = peak()
        loss = torch.nn.functional.cross_entropy
        step = capture_step(partial(MLP, (16384,) * 9), loss, torch.optim.AdamW, batch)
        assert sum(i.shape[0] * i.shape[-1] * 4 for i in step.inputs if len(i.shape) == 2) > 8e9
        print(peak() - before)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 100  # MB


def test_autocast_in_a_model_is_captured() -> None:
    captured = capture_step(Does(_autocast), F.cross_entropy, SGD, (X, Y))
    products = [node for node in captured.graph.nodes if "mm" in str(node.target)]
    assert {node.meta["val"].dtype for node in products} >= {torch.bfloat16}
    values = zip(captured.outputs, captured.graph.output_node().all_input_nodes, strict=True)
    gradients = {node.meta["val"].dtype for output, node in values if output.role == "grad"}
    assert gradients == {torch.float32}


AVERAGES = ("exp_avg", "exp_avg_sq")
LARGEST = (*AVERAGES, "max_exp_avg_sq")


def _one_group(kind: Any, lr: float, states: tuple[str, ...], **hyper: Any) -> OptimizerSpec:
    return OptimizerSpec(kind, (GroupSpec(lr, hyper, states),))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            partial(torch.optim.AdamW, lr=1e-3, betas=(0.8, 0.95), eps=1e-7, weight_decay=0.2),
            _one_group("adamw", 1e-3, AVERAGES, beta1=0.8, beta2=0.95, eps=1e-7, weight_decay=0.2),
        ),
        (
            partial(torch.optim.Adam, lr=1e-3),
            _one_group("adam", 1e-3, AVERAGES, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0),
        ),
        (
            partial(torch.optim.Adam, amsgrad=True, weight_decay=0.1),
            _one_group("adam", 1e-3, LARGEST, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.1, amsgrad=True),
        ),
        (
            partial(torch.optim.Adam, decoupled_weight_decay=True, weight_decay=0.1),
            _one_group("adamw", 1e-3, AVERAGES, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.1),
        ),
        (
            partial(torch.optim.SGD, lr=0.5, momentum=0.9, dampening=0.3, maximize=True),
            _one_group(
                "sgd",
                0.5,
                ("momentum_buffer",),
                momentum=0.9,
                dampening=0.3,
                weight_decay=0,
                nesterov=False,
                maximize=True,
            ),
        ),
        (
            partial(torch.optim.SGD, lr=0.5, weight_decay=0.1),
            _one_group("sgd", 0.5, (), momentum=0, dampening=0, weight_decay=0.1, nesterov=False),
        ),
        (
            partial(torch.optim.SGD, lr=torch.tensor(0.5), momentum=0.9, nesterov=True),
            _one_group("sgd", 0.5, ("momentum_buffer",), momentum=0.9, dampening=0, weight_decay=0, nesterov=True),
        ),
    ],
    ids=["adamw", "adam", "amsgrad", "decoupled adam", "dampened sgd", "sgd", "nesterov"],
)
def test_optimizers_and_their_settings_are_captured(make: Callable[..., Any], expected: OptimizerSpec) -> None:
    assert capture_step(nn.Linear(6, 3), F.cross_entropy, make, (X, Y)).optimizer == expected


def _groups(parameters: Any) -> torch.optim.Optimizer:
    first, *rest = parameters
    return torch.optim.SGD([{"params": [first], "lr": 0.1}, {"params": rest, "momentum": 0.9}], lr=0.2)


def _by_name(named_parameters: Any) -> torch.optim.Optimizer:
    named = list(named_parameters)
    decayed, others = ([p for n, p in named if (n == "weight") is is_weight] for is_weight in (True, False))
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3)


def test_groups_of_parameters_have_separate_settings() -> None:
    found = capture_step(nn.Linear(6, 3), F.cross_entropy, _groups, (X, Y)).optimizer
    assert found is not None
    assert (found.group_of("weight").lr, found.group_of("bias").lr) == (0.1, 0.2)
    assert (found.group_of("weight").states, found.group_of("bias").states) == ((), ("momentum_buffer",))


def test_groups_may_be_made_by_name() -> None:
    found = capture_step(nn.Linear(6, 3), F.cross_entropy, _by_name, (X, Y)).optimizer
    assert found is not None
    assert [found.group_of(name).hyper["weight_decay"] for name in ("weight", "bias")] == [0.1, 0.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(torch.optim.AdamW, foreach=False, differentiable=True), r"AdamW has differentiable=True"),
        (torch.optim.LBFGS, r"LBFGS evaluates the model again inside its step"),
        (lambda p: torch.optim.SGD([next(p)], lr=1.0), r"leaves out the parameter 'bias'"),
    ],
)
def test_optimizers_that_are_refused(make: Callable[..., Any], message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        capture_step(nn.Linear(6, 3), F.cross_entropy, make, (X, Y))


class Does(nn.Module):
    """A linear layer, followed by the function of a test."""

    def __init__(self, what: Callable[[Does, torch.Tensor], Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)
        self.drop = nn.Dropout(0.25)
        self.register_buffer("seen", torch.zeros(3))
        self.what = what

    def forward(self, x: torch.Tensor) -> Any:
        return self.what(self, self.fc(x))


def _autocast(self: Does, h: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return self.fc(h @ h.t() @ torch.ones(4, 6))


def _reassign(self: Does, h: torch.Tensor) -> torch.Tensor:
    self.seen = h.detach().mean(0)
    return h


def _write_parameter(self: Does, h: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        self.fc.weight.mul_(0.5)
    return h


def _check_and_reassign(self: Does, h: torch.Tensor) -> torch.Tensor:
    torch._check(h.max().item() < 1e3)
    self.seen = h.detach().mean(0)
    return h


def test_each_layer_of_a_recurrent_network_is_one_op_whatever_its_length() -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.LSTM(5, 3, num_layers=2, bidirectional=True, dropout=0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.cells(x)[0].square().mean()

    def captured(length: int) -> list[str]:
        found = capture_step(Network(), None, SGD, (torch.randn(length, 4, 5),))
        return [op_name(node) for node, _ in graph_calls(found)]

    names = captured(4)
    assert (names.count("recurrent"), names.count("recurrent_backward")) == (4, 4)
    assert names == captured(400)


def _keeps_products() -> Any:
    return create_selective_checkpoint_contexts([torch.ops.aten.mm.default])


@pytest.mark.parametrize("reentrant", [True, False])
def test_ops_under_a_checkpoint_are_marked(reentrant: bool) -> None:
    def twice(self: Does, h: torch.Tensor) -> torch.Tensor:
        inner = checkpoint(lambda x: checkpoint(self.fc, x.relu(), use_reentrant=reentrant), X, use_reentrant=reentrant)
        return h + inner + checkpoint(torch.tanh, h, use_reentrant=reentrant)

    found = capture_step(Does(twice), F.cross_entropy, SGD, (X, Y))
    regions = {node.name: node.meta[ORIGIN].region for node in found.graph.nodes if ORIGIN in node.meta}
    assert {name: region for name, region in regions.items() if region} == {
        "relu": 1, "fc_t_1": 1, "fc_addmm_1": 1, "tanh": 2,
    }  # fmt: skip
    assert checkpointing.CheckpointFunction.__module__ == "torch.utils.checkpoint"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            lambda self, h: h[:, torch.randperm(3)],
            rf"{HERE}:\d+.*randperm.* draws random numbers that cannot be drawn shard.*native_dropout, bernoulli",
        ),
        (lambda self, h: h * torch.multinomial(h.exp(), 1), rf"{HERE}:\d+.*multinomial.* draws random numbers"),
        (lambda self, h: h * h.max().item(), rf"capture Does: .*{HERE}:\d+.*_local_scalar_dense"),
        (lambda self, h: h if h.sum() > 0 else -h, rf"{HERE}:\d+.*let no shape, branch or Python number"),
        (lambda self, h: h[h > 0].sum().expand(4, 3), rf"{HERE}:\d+.*nonzero|{HERE}:\d+.*index"),
        (lambda self, h: h.index_put((X[:, :3] > 0,), h.sum().expand(12)), rf"{HERE}:\d+: the gradient of this: aten"),
        (lambda self, h: h * random.random(), r"random numbers from numpy or from Python's random.*draw them with"),
        (lambda self, h: h * np.random.rand(), r"random numbers from numpy or from Python's random"),
        (
            lambda self, h: checkpoint(self.fc, h @ h.t() @ X, use_reentrant=False, context_fn=_keeps_products),
            rf"{HERE}:\d+.*context_fn.*not supported; leave it out.*keep_activations",
        ),
        (_check_and_reassign, rf"{HERE}:\d+.*_local_scalar_dense"),
        (_reassign, rf"{HERE}:\d+.*assigns a new tensor to the buffer 'seen'.*copy_"),
        (_write_parameter, r"writes into the parameter 'fc.weight'"),
        (lambda self, h: h.view(5, 5), rf"{HERE}:\d+.*invalid for input.*eager PyTorch"),
        (lambda self, h: torch.zeros(4, 3), r"does not depend on any parameter"),
        (lambda self, h: h * OUTSIDE, r"outside the model that requires a gradient; make it a parameter"),
    ],
    ids=[
        "randperm",
        "multinomial",
        "item",
        "branch",
        "dynamic-shape",
        "gradient-of-a-dynamic-shape",
        "python-random",
        "numpy-random",
        "checkpoint-with-a-policy",
        "checked-and-reassigned-buffer",
        "reassigned-buffer",
        "written-parameter",
        "eager-error",
        "constant-loss",
        "outside-parameter",
    ],
)
def test_models_that_are_refused(what: Callable[[Does, torch.Tensor], Any], message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        capture_step(Does(what), F.cross_entropy, SGD, (X, Y))


def test_a_model_without_a_loss_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"cannot capture Does: .*Does returned a NoneType"):
        capture_step(Does(lambda self, h: None), None, SGD, (X,))


def test_a_factory_that_needs_values_is_refused() -> None:
    def make() -> nn.Module:
        return nn.Linear(6, int(torch.linspace(0, 3, 4)[-1].item()))

    with pytest.raises(CaptureError, match=r"cannot build the model under fake tensors"):
        capture_step(make, F.cross_entropy, SGD, (X, Y))


def test_a_factory_that_returns_no_module_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"returned a Tensor, not a torch.nn.Module"):
        capture_step(lambda: X, F.cross_entropy, SGD, (X, Y))  # type: ignore[arg-type, return-value]


def test_parameters_that_share_memory_without_being_tied_are_refused() -> None:
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = nn.Parameter(first.weight.data)
    net = nn.Sequential(first, second)
    with pytest.raises(CaptureError, match=r"'0.weight' and '1.weight' share memory"):
        capture_step(net, F.cross_entropy, SGD, (X, Y))


def test_a_trainable_loss_is_refused() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, out: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(out * self.scale, labels)

    with pytest.raises(CaptureError, match=r"loss module Scaled has a tensor 'scale' that training changes"):
        capture_step(nn.Linear(6, 3), Scaled(), SGD, (X, Y))


def test_forward_may_import_a_module_that_draws_random_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package rich does this, for its first style."""
    (tmp_path / "draws_once.py").write_text("import random\nSTART = random.getrandbits(24)\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    class Imports(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            importlib.import_module("draws_once")
            return super().forward(input)

    assert capture_step(Imports(6, 3), F.cross_entropy, SGD, (X, Y)).graph
    assert "draws_once" in sys.modules
    sys.modules.pop("draws_once")
