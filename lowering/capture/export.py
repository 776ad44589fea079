"""
The second way to trace a forward: from the graph that `torch.export` reads out of the model's Python code.

Fake tensors have no values, so a model that looks at one cannot simply be run. Where nothing but a check depends on
it, as in ``assert lengths.max().item() <= limit``, export leaves the check aside. Its graph is then run in the model's
place, node by node, each with the layer and line that export notes.
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
    A step that runs the exported graph of another.

    Args:
        step: a fake model and its loss, as a module from batch tensors to the scalar loss and metrics.
        tensors: the fake batch.

    Raises:
        CaptureError: forward assigns new tensors to buffers, which the graph would leave out.
        Exception: whatever `torch.export` raises where it cannot read the step's code.
    """

    def __init__(self, step: nn.Module, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.model, self.loss = step.model, step.loss
        assert isinstance(self.model, nn.Module)
        self.recorder = SiteRecorder(self.model)
        graph = _exported(step, tensors)
        _remove_checks(graph.graph)
        # In a list, for its parameters are those of the model and should not have a second name.
        self._graph = [graph]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return _Replay(self._graph[0], self, self.recorder).run(*tensors)


class _Replay(torch.fx.Interpreter):
    """Runs an exported graph on the tensors that a module has now, and notes where each call is from."""

    def __init__(self, graph: torch.fx.GraphModule, owner: nn.Module, recorder: SiteRecorder) -> None:
        super().__init__(graph)
        self._owner, self._recorder = owner, recorder

    def run_node(self, n: torch.fx.Node) -> object:
        with self._recorder.noting(_site_of(n)):
            return super().run_node(n)

    def fetch_attr(self, target: str) -> object:
        found: object = self._owner
        for name in target.split("."):
            found = getattr(found, name, None)
        return super().fetch_attr(target) if found is None else found


def _exported(step: nn.Module, tensors: list[torch.Tensor]) -> torch.fx.GraphModule:
    # Where it fails it shows the graph so far, before an error that does not refer to it.
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("always")
        graph = torch.export.export(step, tuple(tensors), strict=True).module(check_guards=False)
    if any("_buffers" in str(each.message) for each in caught):
        raise CaptureError(f"forward assigns a new tensor to a buffer; {REPLACED_BUFFER.instead}")
    assert isinstance(graph, torch.fx.GraphModule)
    return graph


def _site_of(node: torch.fx.Node) -> Site:
    """The layer, and the innermost line of the model's own code, or else of torch.nn."""
    modules = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    layer = modules[-1].partition(".")[2] if modules else ""
    lines = [(match["file"], int(match["line"])) for match in _LINE.finditer(node.meta.get("stack_trace") or "")]
    for wanted in ("model", "torch.nn"):
        for file, line in reversed(lines):
            if kind_of(file) == wanted:
                return Site(layer, file, line)
    return Site(layer, "", 0)


def _remove_checks(graph: torch.fx.Graph) -> None:
    """Erase checks of values, and what only they needed."""
    for node in reversed(list(graph.nodes)):
        is_check = isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name.startswith(_CHECKS)
        if is_check or (node.op == "call_function" and not node.is_impure() and not node.users):
            graph.erase_node(node)
