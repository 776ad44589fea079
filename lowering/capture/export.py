"""
The fallback for tracing a forward: replay the graph that `torch.export` extracts from the model's Python code.

Fake tensors have no values, so a model that reads a value cannot run on them. If only a check depends on the value, as
in ``assert lengths.max().item() <= limit``, export keeps the check apart. Its graph then runs in place of the model,
node by node, and each node has the layer and line that export recorded.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings

import torch
import torch.fx
from torch import nn

from ...ir.not_supported import REPLACED_BUFFER
from .captured import CaptureError
from .origins import Site, SiteRecorder, kind_of

_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_CHECKS = ("aten::_assert_scalar", "aten::_assert_async", "aten::_assert_tensor_metadata", "aten::sym_constrain_range")


class ExportedStep(nn.Module):
    """
    A step that runs the exported graph of another step.

    Args:
        step: a module with a fake model and its loss, which maps batch tensors to the scalar loss and the metrics.
        tensors: the fake batch.

    Raises:
        CaptureError: forward assigns new tensors to buffers, which the graph would omit.
        Exception: any error of `torch.export` if it cannot process the step's code.
    """

    def __init__(self, step: nn.Module, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.model, self.loss = step.model, step.loss
        assert isinstance(self.model, nn.Module)
        self.recorder = SiteRecorder(self.model)
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("always")
            graph = torch.export.export(step, tuple(tensors), strict=True).module(check_guards=False)
        if any("_buffers" in str(warning.message) for warning in caught):
            raise CaptureError(f"forward assigns a new tensor to a buffer; {REPLACED_BUFFER.instead}")
        assert isinstance(graph, torch.fx.GraphModule)
        # Erase checks of values, and nodes that only these checks use.
        for node in reversed(list(graph.graph.nodes)):
            is_check = isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name.startswith(_CHECKS)
            if is_check or (node.op == "call_function" and not node.is_impure() and not node.users):
                graph.graph.erase_node(node)
        # The list hides the graph from nn.Module: its parameters belong to the model and must not get a second name.
        self._graph = [graph]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return _Replay(self._graph[0], self, self.recorder).run(*tensors)


class _Replay(torch.fx.Interpreter):
    """An interpreter that runs an exported graph on a module's current tensors and records the site of each call."""

    def __init__(self, graph: torch.fx.GraphModule, owner: nn.Module, recorder: SiteRecorder) -> None:
        super().__init__(graph)
        self._owner, self._recorder = owner, recorder

    def run_node(self, n: torch.fx.Node) -> object:
        with self._recorder.noting(_site_of(n)):
            return super().run_node(n)

    def fetch_attr(self, target: str) -> object:
        value: object = self._owner
        for name in target.split("."):
            value = getattr(value, name, None)
        return super().fetch_attr(target) if value is None else value


def _site_of(node: torch.fx.Node) -> Site:
    """Return the layer of a node and the innermost line of the model's own code, or else of torch.nn."""
    modules = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    layer = modules[-1].partition(".")[2] if modules else ""
    lines = [(match["file"], int(match["line"])) for match in _LINE.finditer(node.meta.get("stack_trace") or "")]
    for wanted in ("model", "torch.nn"):
        for file, line in reversed(lines):
            if kind_of(file) == wanted:
                return Site(layer, file, line)
    return Site(layer, "", 0)
