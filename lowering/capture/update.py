"""
Trace an optimizer's own `step` on fake tensors to the graph of the update of one parameter.

The optimizer runs with one parameter in its group and a prepared state; the learning rate and the count of steps
are inputs (`numbers`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.fx
from torch._decomp import get_decompositions
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ...ir.garbage import collector_paused
from .captured import ORIGIN, CapturedUpdate, CaptureError, Origin, ParameterGroup, StateSpec
from .indexing import index_first_dims
from .normalize import gives_argument, outputs_of, remove_dead_nodes, remove_identities
from .numbers import Branches, by_branches
from .optimizer_step import WRAPPERS, OneStep, UpdateForm, UpdateInputs, optimizer_name

aten = torch.ops.aten

_DECOMPOSED = (aten.addcdiv, aten.addcmul, aten.square, aten.stack, aten.norm)
"""Compounds to decompose."""

_WAYS = 8
"""The maximum number of paths through the conditions in an update's code."""


class NotCountingError(RuntimeError):
    """
    A state that appeared to count steps does not count every step.

    Args:
        name: name of the state in `UpdateForm.counters`.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} does not count every step")
        self.name = name


class UpdateTracer:
    """
    A tracer of the updates of one optimizer.

    Args:
        mode: mode of the fake tensors.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, mode: FakeTensorMode) -> None:
        self.optimizer, self.mode = optimizer, mode

    def trace(
        self, group: ParameterGroup, shape: Sequence[int], dtype: torch.dtype, form: UpdateForm
    ) -> CapturedUpdate:
        """
        Trace the update of a parameter with this shape and dtype in a group.

        Raises:
            CaptureError: the update cannot be traced, or needs the value of a tensor.
            NotCountingError: a counter of `form` does not count every step.
        """
        try:
            with collector_paused():
                return self._trace(group, shape, dtype, form)
        except NotCountingError:
            raise
        except Exception as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> CaptureError:
        if isinstance(error, CaptureError):
            return error
        traceback, place = error.__traceback__, ""
        while traceback is not None:
            file = traceback.tb_frame.f_code.co_filename
            if not any(part in file for part in _NOT_OF_OPTIMIZERS):
                place = f"{file}:{traceback.tb_lineno}: "
            traceback = traceback.tb_next
        return CaptureError(
            f"the update of {optimizer_name(self.optimizer)} cannot be captured: {place}{error}; an update has"
            " to be tensor operations on its parameter, gradient and state, the learning rate and the count of steps"
        )

    def _trace(
        self, group: ParameterGroup, shape: Sequence[int], dtype: torch.dtype, form: UpdateForm
    ) -> CapturedUpdate:
        step = OneStep(self.optimizer, group, form)
        with self.mode:
            param, grad = torch.empty(tuple(shape), dtype=dtype), torch.empty(tuple(shape), dtype=dtype)
            count, rate = torch.zeros(()), torch.zeros((), dtype=torch.float64)
            states_after = step.first(UpdateInputs(param.clone(), grad, [], count, rate), Branches((), _WAYS))
            names = [name for name in states_after if name not in form.counters]
            states = [torch.empty(states_after[name].shape, dtype=states_after[name].dtype) for name in names]
            inputs = (param, grad, *states, count, rate)
            order = (*names, *form.counters)
            later = make_fx(_function(lambda given, ways: step.later(given, names, ways), order))(*inputs)
            whole: Callable[..., object] = later
            if form.first_apart:
                whole = _chosen(make_fx(_function(step.first, order))(*inputs), later, 1 + len(names))
            graph = self._functional(whole, inputs)
        _check_counters(graph, form.counters)
        specs = (
            StateSpec(name, tuple(state.shape), state.dtype, form.initial.get(name, 0.0))
            for name, state in zip(names, states, strict=True)
        )
        return CapturedUpdate(graph, tuple(specs))

    def _functional(self, function: Callable[..., object], inputs: Sequence[torch.Tensor]) -> torch.fx.Graph:
        """Return a graph without writes, in the form that the importer expects."""
        # Imported here because it imports sympy and only one rank of a job captures.
        from torch._functorch.compile_utils import fx_graph_cse

        table = {**get_decompositions(_DECOMPOSED), **_AS_SUMS}
        traced = make_fx(torch.func.functionalize(function), decomposition_table=table)(*inputs)
        graph = fx_graph_cse(traced.graph)
        for node in list(graph.nodes):
            if gives_argument(node):
                node.replace_all_uses_with(node.args[1])
                graph.erase_node(node)
        for node in list(graph.nodes):
            node.meta[ORIGIN] = Origin("", "", 0, "update", node.name)
            if node.op == "get_attr":
                _constant(graph, node, getattr(traced, str(node.target)), self.mode)
        remove_identities(graph)
        _simplify(graph)
        index_first_dims(graph)
        remove_dead_nodes(graph)
        _check_ops(graph)
        return graph


def _check_ops(graph: torch.fx.Graph) -> None:
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if torch.Tag.nondeterministic_seeded in node.target.tags:
            raise RuntimeError(f"it draws random numbers ({node.target})")
        if node.target._schema.is_mutable:
            raise RuntimeError(f"{node.target} writes in place and could not be made functional")


def _function(
    run: Callable[[UpdateInputs, Branches], Mapping[str, torch.Tensor]], order: Sequence[str]
) -> Callable[..., list[torch.Tensor]]:
    """Return a pure function from the inputs of a step to the new parameter and states, in this order."""

    def function(*values: torch.Tensor) -> list[torch.Tensor]:
        def one_way(branches: Branches) -> list[torch.Tensor]:
            given = UpdateInputs.of([value.clone() for value in values])
            after = run(given, branches)
            return [given.param, *(after[name] for name in order)]

        return by_branches(one_way, _WAYS)

    return function


def _chosen(first: torch.fx.GraphModule, later: torch.fx.GraphModule, chosen: int) -> Callable[..., list[torch.Tensor]]:
    """Return a function that selects the outputs of `first` in the first step, and of `later` in all others."""

    def function(*inputs: torch.Tensor) -> list[torch.Tensor]:
        begins = inputs[-2] == 0
        one = first(*(value.clone() for value in inputs))
        other = later(*(value.clone() for value in inputs))
        pairs = zip(one[:chosen], other[:chosen], strict=True)
        return [*(torch.where(begins, a.to(b.dtype), b) for a, b in pairs), *other[chosen:]]

    return function


def _check_counters(graph: torch.fx.Graph, counters: Mapping[str, float]) -> None:
    """Remove the counters, which are the last outputs; raise NotCountingError if one does not add 1 per step."""
    listed = outputs_of(graph)
    kept = len(listed) - len(counters)
    count = graph.find_nodes(op="placeholder")[-2]
    for node, (name, start) in zip(listed[kept:], counters.items(), strict=True):
        added, source = 0.0, node
        while source.target in (aten.add.Tensor, aten._to_copy.default):
            if source.target is aten.add.Tensor:
                if not isinstance(source.args[1], int | float):
                    break
                added += source.args[1]
            if not isinstance(operand := source.args[0], torch.fx.Node):
                break
            source = operand
        if source is not count or added != start + 1:
            raise NotCountingError(name)
    graph.output_node().args = (listed[:kept],)
    remove_dead_nodes(graph)


def _simplify(graph: torch.fx.Graph) -> None:
    """Remove products with 1, which tracing creates for ``1 / x``, and selections between equal values."""
    for node in list(graph.nodes):
        match node.target, node.args:
            case aten.mul.Tensor, (torch.fx.Node() as same, 1 | 1.0):
                pass
            case aten.where.self, (_, torch.fx.Node() as same, other) if same is other:
                pass
            case _:
                continue
        before, after = same.meta["val"], node.meta["val"]
        if before.dtype == after.dtype and before.shape == after.shape:
            node.replace_all_uses_with(same)
            graph.erase_node(node)


def _mean(
    x: torch.Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    total = aten.sum.dim_IntList(x, dim, keepdim, dtype=dtype)
    return total / (x.numel() // max(total.numel(), 1))


def _vector_norm(
    x: torch.Tensor,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    if ord != 2 or x.is_complex():
        return NotImplemented
    result = dtype or x.dtype
    x = x.to(torch.float32 if result in (torch.bfloat16, torch.float16) else result)
    return aten.sum.dim_IntList(x * x, dim, keepdim).sqrt().to(result)


_AS_SUMS: dict[OpOverload, Callable[..., object]] = {
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.linalg_vector_norm.default: _vector_norm,
}
"""Decompositions of reductions to sums, so that operands may be split over ranks."""


def _constant(graph: torch.fx.Graph, node: torch.fx.Node, value: object, mode: FakeTensorMode) -> None:
    """Replace a constant tensor of one element by an `aten.full` node."""
    value = getattr(value, "constant", None) if isinstance(value, FakeTensor) else value
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise RuntimeError("it uses a tensor other than its parameter, gradient or state, or a number")
    with graph.inserting_before(node), mode:
        full = graph.call_function(aten.full.default, (list(value.shape), value.item()), {"dtype": value.dtype})
        full.meta = {"val": torch.empty(value.shape, dtype=value.dtype), ORIGIN: node.meta[ORIGIN]}
    node.replace_all_uses_with(full)
    graph.erase_node(node)


_NOT_OF_OPTIMIZERS = (
    *WRAPPERS,
    os.path.dirname(os.path.dirname(__file__)),
    *("torch/_", "torch/fx/", "torch/overrides.py", "torch/utils/", "<eval_with_key>"),
)
