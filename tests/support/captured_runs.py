"""Run a captured step with numbers, and the same step in eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch import nn

from shardwright.api.checking.counter_random import counter_random
from shardwright.ir.counter import step_seed
from shardwright.lowering.capture.calling import Batch, batch_items, compute_loss
from shardwright.lowering.capture.capture import CapturedStep
from shardwright.lowering.capture.captured import ORIGIN, Origin
from shardwright.lowering.fused import attention_ops
from shardwright.runtime import fused_attention as kernels

KERNELS: dict[Any, Any] = {
    attention_ops.attention: kernels.attention,
    attention_ops.attention_backward: kernels.attention_backward,
}


Results = dict[tuple[str, str], torch.Tensor]
"""Values by role and name."""


class _Evaluator(torch.fx.Interpreter):
    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        function = KERNELS.get(target, target)
        result = function(*args, **kwargs)
        expected, got = self._expected_shapes(), _shapes(result)
        if isinstance(got, list):  # a gradient that nobody asked for comes out as None
            expected = [want if have is not None else None for want, have in zip(expected, got, strict=True)]
        assert expected == got, f"{target}: {expected} expected, got {got}"
        return result

    def run_node(self, n: torch.fx.Node) -> Any:
        self._node = n
        return super().run_node(n)

    def _expected_shapes(self) -> Any:
        return _shapes(self._node.meta["val"])


def _shapes(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    return [_shapes(v) for v in value] if isinstance(value, tuple | list) else None


def tensor_named(model: nn.Module, name: str) -> torch.Tensor:
    """A parameter, buffer or plain attribute by its dotted name."""
    owner, _, attribute = name.rpartition(".")
    return getattr(model.get_submodule(owner), attribute)


def op_name(node: torch.fx.Node) -> str:
    """The name of the op that a node calls, without its overload."""
    assert callable(node.target)
    return node.target.__name__.split(".")[0]


def graph_calls(step: CapturedStep) -> list[tuple[torch.fx.Node, Origin]]:
    """The calls of a graph, each with its place in the source."""
    return [(n, n.meta[ORIGIN]) for n in step.graph.nodes if n.op not in ("placeholder", "output")]


def doubled(batch: Any) -> Any:
    """A batch with its floating tensors in float64."""

    def double(item: Any) -> Any:
        return item.double() if isinstance(item, torch.Tensor) and item.is_floating_point() else item

    if isinstance(batch, dict):
        return {key: double(item) for key, item in batch.items()}
    return tuple(double(item) for item in batch)


def run_captured(step: CapturedStep, model: nn.Module, batch: Batch, dtype: torch.dtype | None = None) -> Results:
    """Return the outputs of a captured step by role and name, on a model's weights; check every shape."""
    items = batch_items(batch)
    values = []
    for given in step.inputs:
        if given.role == "constant":
            value = given.value
        elif given.role == "seed":
            value = torch.tensor(step_seed(0, 0))
        else:
            value = items[given.name] if given.role == "batch" else tensor_named(model, given.name)
        assert value is not None
        value = value.detach().to(dtype) if dtype and value.is_floating_point() else value.detach()
        assert (tuple(value.shape), value.dtype) == (given.shape, given.dtype), given
        values.append(value)
    results = _Evaluator(torch.fx.GraphModule({}, step.graph)).run(*values)
    assert len(results) == len(step.outputs)
    return {(out.role, out.name): value for out, value in zip(step.outputs, results, strict=True)}


def run_eager(model: nn.Module, loss: Callable[..., Any] | None, batch: Batch) -> Results:
    """Run a copy of the model with the captured random numbers; return its loss, gradients and buffers."""
    model = copy.deepcopy(model)
    with counter_random():
        value = compute_loss(model, loss, batch)
    value.backward()
    grads = {("grad", n): p.grad for n, p in model.named_parameters() if p.grad is not None}
    buffers = {("buffer", n): b for n, b in model.named_buffers()}
    return {("loss", "loss"): value.detach()} | grads | buffers


def compare(got: Results, expected: Results, tol: float) -> None:
    """Compare losses, gradients and buffers in the 2-norm, relative to at least 1e-3 of the largest of the role."""
    roles = {key for key in expected if key[0] != "buffer"}
    assert {key for key in got if key[0] != "buffer"} == roles
    for key, value in got.items():
        kind = [v for k, v in expected.items() if k[0] == key[0]]
        scale = max(norm(expected[key]), 1e-3 * max(norm(v) for v in kind))
        assert norm(value.double() - expected[key].double()) <= tol * scale, key


def norm(value: torch.Tensor) -> float:
    return torch.linalg.vector_norm(value.double()).item()
