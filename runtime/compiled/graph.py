"""
The graph of a function of tensors, and what Inductor compiles it to.

A graph is traced from tensors without memory, so nothing is computed. Shapes and strides are fixed: those of a program
do not change from step to step. Equal graphs, those of equal layers say, are compiled once in a process; Inductor's own
cache keeps them on disk from run to run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.utils import GmWrapper
from torch._inductor.compile_fx import compile_fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ..plan import PlanError
from .usable import ADVICE

LOG = logging.getLogger("shardwright")

Results = Sequence[torch.Tensor]
Function = Callable[[list[torch.Tensor]], Results]
"""Of a list of tensors, which it empties."""

_aten = torch.ops.aten

_KERNELS = frozenset(
    {
        _aten.mm,
        _aten.addmm,
        _aten.bmm,
        _aten.baddbmm,
        _aten.convolution,
        _aten.convolution_backward,
        _aten._scaled_dot_product_flash_attention_for_cpu,
        _aten._scaled_dot_product_flash_attention_for_cpu_backward,
        _aten._scaled_dot_product_flash_attention,
        _aten._scaled_dot_product_flash_attention_backward,
        _aten._scaled_dot_product_efficient_attention,
        _aten._scaled_dot_product_efficient_attention_backward,
    }
)
"""Ops that Inductor leaves to the kernels that compute them otherwise."""

_LEAST_FUSED = 2
"""Other ops than these, and than views, of a graph that is worth to be compiled."""


@dataclass(frozen=True)
class TracedGraph:
    """
    A traced function.

    Args:
        module: the ops.
        examples: its arguments, without memory.
    """

    module: torch.fx.GraphModule
    examples: Sequence[torch.Tensor]

    @staticmethod
    def of(function: Function, given: Sequence[torch.Tensor]) -> TracedGraph:
        """The graph of a function of tensors such as `given`, which are not touched."""
        mode = FakeTensorMode()
        examples = [mode.from_tensor(tensor) for tensor in given]
        with torch.no_grad(), mode:
            module = make_fx(lambda *tensors: function(list(tensors)))(*examples)
        return TracedGraph(module, examples)

    @property
    def is_worth_compiling(self) -> bool:
        """Whether Inductor could fuse anything."""
        targets = [node.target for node in self.module.graph.nodes if node.op == "call_function"]
        ops = [target for target in targets if isinstance(target, torch._ops.OpOverload)]
        return sum(op.overloadpacket not in _KERNELS and not op.is_view for op in ops) >= _LEAST_FUSED

    @property
    def key(self) -> tuple[object, ...]:
        """What equal graphs have in common."""
        kept = [id(value) for _, value in sorted(vars(self.module).items()) if isinstance(value, torch.Tensor)]
        forms = [(each.shape, each.stride(), each.dtype, each.device) for each in self.examples]
        return (self.module.code, *forms, *kept)

    def compiled(self, name: str = "a function") -> Function:
        """
        What Inductor makes of it.

        Args:
            name: for messages.

        Raises:
            PlanError: it fails.
        """
        if (known := _COMPILED.get(self.key)) is not None:
            return known
        start = time.perf_counter()
        # So wrapped, its list of arguments is emptied, and memory is free after the last use.
        wrapped: Any = GmWrapper(self.module, lambda flat: flat)
        try:
            with torch.no_grad():
                made: Any = compile_fx(wrapped, list(self.examples))
        except Exception as error:
            reason = str(error).strip().splitlines() or [""]
            raise PlanError(f"Inductor cannot compile {name}: {type(error).__name__}: {reason[0]}; {ADVICE}") from error
        seconds = time.perf_counter() - start
        LOG.debug("compiled %s, of %d ops, in %.1f s", name, len(self.module.graph.nodes), seconds)
        return _COMPILED.setdefault(self.key, made)


_COMPILED: dict[tuple[object, ...], Function] = {}
"""By key; what a process has compiled."""
