"""
The graph of a function of tensors, and its compilation by Inductor.

Tracing uses tensors without memory, so it is cheap. Shapes and strides are constants, because a program has the same
in every step. A process compiles equal graphs (of equal layers, for example) once; Inductor's own cache keeps
the results on disk from run to run.
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
"""A function of a list of tensors, which empties the list."""

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
"""Ops that Inductor does not fuse: it calls the same kernels as eager execution."""

_LEAST_FUSED = 2
"""The least number of ops, other than these and views, in a graph that is worth compiling."""


@dataclass(frozen=True)
class TracedGraph:
    """
    A traced function.

    Args:
        module: the ops of the function.
        examples: arguments without memory, which give shapes, strides and dtypes.
    """

    module: torch.fx.GraphModule
    examples: Sequence[torch.Tensor]

    @staticmethod
    def of(function: Function, given: Sequence[torch.Tensor]) -> TracedGraph:
        """Trace a function with tensors like `given`, whose data is not touched."""
        mode = FakeTensorMode()
        examples = [mode.from_tensor(tensor) for tensor in given]
        with torch.no_grad(), mode:
            module = make_fx(lambda *tensors: function(list(tensors)))(*examples)
        return TracedGraph(module, examples)

    @property
    def is_worth_compiling(self) -> bool:
        """Whether the graph has enough ops for Inductor to fuse."""
        targets = [node.target for node in self.module.graph.nodes if node.op == "call_function"]
        ops = [target for target in targets if isinstance(target, torch._ops.OpOverload)]
        return sum(op.overloadpacket not in _KERNELS and not op.is_view for op in ops) >= _LEAST_FUSED

    @property
    def key(self) -> tuple[object, ...]:
        """A key that is the same for equal graphs."""
        constants = [id(value) for _, value in sorted(vars(self.module).items()) if isinstance(value, torch.Tensor)]
        forms = [(example.shape, example.stride(), example.dtype, example.device) for example in self.examples]
        return (self.module.code, *forms, *constants)

    def compiled(self, name: str = "a function") -> Function:
        """
        Compile the graph with Inductor, or return the result of an earlier compilation of an equal graph.

        Raises:
            PlanError: Inductor fails.
        """
        if (cached := _COMPILED.get(self.key)) is not None:
            return cached
        start = time.perf_counter()
        # With this wrapper the argument list is emptied, so that memory is free after the last use.
        wrapped: Any = GmWrapper(self.module, lambda flat: flat)
        try:
            with torch.no_grad():
                function: Any = compile_fx(wrapped, list(self.examples))
        except Exception as error:
            reason = str(error).strip().splitlines() or [""]
            raise PlanError(f"Inductor cannot compile {name}: {type(error).__name__}: {reason[0]}; {ADVICE}") from error
        seconds = time.perf_counter() - start
        LOG.debug("compiled %s, of %d ops, in %.1f s", name, len(self.module.graph.nodes), seconds)
        return _COMPILED.setdefault(self.key, function)


_COMPILED: dict[tuple[object, ...], Function] = {}
"""The functions that this process has compiled, by key."""
