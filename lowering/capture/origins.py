"""
Find the module, file and line that each node of a captured graph comes from, including backward nodes.

While the model's forward is traced, a torch function mode sees every call of the model. It attaches the running
module and the innermost line of the model's code to the traced nodes, and records them under the autograd
sequence numbers that the call consumes. A backward node has the sequence number of the forward node that it
differentiates, and so gets the same place.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from types import CodeType, FrameType

import torch
import torch.fx
import torch.fx.traceback
from torch import nn
from torch.overrides import TorchFunctionMode

from ...ir.not_supported import CUDA_AUTOCAST, GENERATOR, REPLACED_BUFFER
from .captured import ORIGIN, CaptureError, Origin
from .checkpoints import Regions, checkpoints_numbered
from .rewrites import rewritten

_TORCH = os.path.dirname(torch.__file__)
_LOWERING = os.path.dirname(os.path.dirname(__file__))
_PLUMBING = (_TORCH, _LOWERING, contextlib.__file__, functools.__file__, "<frozen", "<eval")


@dataclass(frozen=True)
class Site:
    """
    A place in the model: the module's path, a file and line (empty and 0 if unknown), and the number of the
    checkpointed region, or 0.
    """

    layer: str
    file: str
    line: int
    region: int = 0

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else "the model"
        return f"{where} (module {self.layer!r})" if self.layer else where


class SiteRecorder(TorchFunctionMode):
    """
    A mode that records a `Site` for every torch function called inside `recording`.

    Args:
        model: the module that gives the paths.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.latest = Site("", "", 0)
        self._function: object = None
        self.by_sequence: dict[int, Site] = {}
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._running: list[str] = [""]
        self._regions = Regions()
        self._root: CodeType | None = None

    @contextlib.contextmanager
    def recording(self) -> Generator[None, None, None]:
        """Record while the body runs; the caller must be the outermost forward of the step."""
        self._root = sys._getframe(2).f_code
        self._regions = Regions()
        hooks = nn.modules.module
        handles = (
            hooks.register_module_forward_pre_hook(lambda module, args: self._enter(module)),
            hooks.register_module_forward_hook(lambda module, args, out: self._leave(), always_call=True),
            hooks.register_module_buffer_registration_hook(self._refuse_reassignment),
        )
        try:
            with self, checkpoints_numbered(self._regions, lambda: self.latest):
                yield
        finally:
            for handle in handles:
                handle.remove()
            self._running[1:] = []

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        site = self.latest = self._site()
        self._function = func
        if torch.is_autocast_enabled("cuda"):
            # Steps are captured on the CPU, where the autocast of another device has no effect.
            raise CaptureError(f"{site}: CUDA autocast is on, which capture cannot see; {CUDA_AUTOCAST.instead}")
        if kwargs and kwargs.get("generator") is not None:
            raise CaptureError(
                f"{site}: random numbers are drawn from a torch.Generator, which is not captured; {GENERATOR.instead}"
            )
        with self.noting(site):
            return rewritten(func, args, kwargs or {})(*args, **(kwargs or {}))

    @property
    def function(self) -> str:
        """The torch function that the model called last, as users write it."""
        name = torch.overrides.resolve_name(self._function) if self._function is not None else None
        return name or getattr(self._function, "__name__", "an op of torch")

    @contextlib.contextmanager
    def noting(self, site: Site) -> Generator[None, None, None]:
        """Attribute the calls of the body, and their gradients, to a site."""
        self.latest = site
        first = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        with torch.fx.traceback.annotate({ORIGIN: site}):
            yield
        for number in range(first, torch.autograd._get_sequence_nr()):  # type: ignore[attr-defined]
            self.by_sequence[number] = site

    def _enter(self, module: nn.Module) -> None:
        self._running.append(self._paths.get(id(module), self._running[-1]))

    def _leave(self) -> None:
        self._running.pop()

    def _refuse_reassignment(self, module: nn.Module, name: str, value: torch.Tensor | None) -> None:
        if value is module._buffers.get(name):
            return  # as in self.count += 1, which writes in place and assigns the same tensor
        raise CaptureError(
            f"{self._site()}: forward assigns a new tensor to the buffer {name!r}; {REPLACED_BUFFER.instead}"
        )

    def _site(self) -> Site:
        """Return the innermost line of the model's code, or else of torch.nn, inside the step's forward."""
        own: FrameType | None = None
        fallback: FrameType | None = None
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code is not self._root:
            kind = kind_of(frame.f_code.co_filename)
            if kind == "model" and own is None:
                own = frame
            elif kind == "torch.nn" and fallback is None:
                fallback = frame
            frame = frame.f_back
        return replace(_site_of(own or fallback, self._running[-1]), region=self._regions.current)


@functools.cache
def kind_of(filename: str) -> str:
    """Return the owner of a file: ``model``, ``torch.nn``, or ``plumbing``, which users never look at."""
    if filename.startswith(os.path.join(_TORCH, "nn")):
        return "torch.nn"
    return "plumbing" if filename.startswith(_PLUMBING) else "model"


def _site_of(frame: FrameType | None, layer: str) -> Site:
    return Site(layer, frame.f_code.co_filename, frame.f_lineno) if frame else Site(layer, "", 0)


def attach_origins(graph: torch.fx.Graph, recorder: SiteRecorder) -> None:
    """
    Give every node of a joint graph its `Origin` under ``meta["shardwright"]``.

    Nodes that autograd creates between layers take the site of their last operand. A sum of gradients therefore
    belongs to the first use of the value in forward, which is differentiated last.
    """
    for node in graph.nodes:
        if node.op == "placeholder" or node.op == "output":
            continue
        site = _recorded_site(node, recorder) or _neighbour_site(node)
        phase = "backward" if is_backward(node) else "forward"
        name = ".".join(part for part in (site.layer, _op_name(node)) if part)
        region = site.region if phase == "forward" else 0
        node.meta[ORIGIN] = Origin(site.layer, site.file, site.line, phase, name, region)


def is_backward(node: torch.fx.Node) -> bool:
    """Return whether autograd created this node of a joint graph."""
    return bool(node.meta.get("autograd_backward")) or node.meta.get("partitioner_tag") == "is_backward"


def _recorded_site(node: torch.fx.Node, recorder: SiteRecorder) -> Site | None:
    if node.meta.get("is_gradient_acc"):
        return None
    if is_backward(node):
        return recorder.by_sequence.get(node.meta.get("seq_nr", -1))
    return node.meta.get("custom", {}).get(ORIGIN)


def _neighbour_site(node: torch.fx.Node) -> Site:
    for operand in reversed(node.all_input_nodes):
        origin = operand.meta.get(ORIGIN)
        if origin is not None:
            return Site(origin.layer, origin.file, origin.line, origin.region)
    return Site("", "", 0)


def _op_name(node: torch.fx.Node) -> str:
    target = node.target
    if target is operator.getitem:
        producer, index = node.args
        assert isinstance(producer, torch.fx.Node)
        return f"{_op_name(producer)}_{index}"
    if isinstance(target, torch._ops.OpOverload):
        base = target.overloadpacket.__name__
    else:
        base = target if isinstance(target, str) else target.__name__
    return f"{base}_grad" if is_backward(node) and not base.endswith("_backward") else base
