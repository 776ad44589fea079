"""
The update of one parameter as a graph: an optimizer's own `step`, traced on fake tensors.

The optimizer runs with one parameter in its group; the learning rate and the count of steps are inputs
(`capture_numbers`), and the state is put in its place beforehand.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.fx
from torch._functorch.compile_utils import fx_graph_cse
from torch._decomp import get_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ..ir.garbage import collector_paused
from .capture_indexing import index_first_dims
from .capture_normalize import remove_dead_nodes, remove_identities
from .capture_numbers import Branches, by_branches, number, numbers_as_tensors
from .captured import ORIGIN, CapturedUpdate, CaptureError, Origin, StateSpec

aten = torch.ops.aten

_DECOMPOSED = (aten.addcdiv, aten.addcmul, aten.square, aten.stack, aten.norm)
"""Compounds that are written out."""

_WAYS = 8
"""How many ways through the conditions of its code an update may have."""

_OF_TORCH = ("torch/optim/optimizer.py", "torch/utils/_contextlib.py")
"""Where the wrappers of a step are from that are not part of what it computes."""


@dataclass(frozen=True)
class UpdateForm:
    """
    What is known of the updates of a parameter beside its optimizer's code.

    Args:
        initial: by state that the graph keeps, what its elements are before the first step.
        counts: by state that counts steps, what it is before the first one.
        group_counts: the same of settings of the group.
        constants: states that are no tensors and do not change.
        numbers: states that are Python numbers.
        first_apart: whether the first step is another graph, which makes the states, chosen while no step was made.
    """

    initial: Mapping[str, float]
    counts: Mapping[str, float]
    group_counts: Mapping[str, float]
    constants: Mapping[str, Any]
    numbers: frozenset[str] = frozenset()
    first_apart: bool = False


def optimizer_name(optimizer: torch.optim.Optimizer) -> str:
    """The full name of its class."""
    return f"{type(optimizer).__module__}.{type(optimizer).__name__}"


def group_alone(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], parameter: torch.Tensor
) -> torch.optim.Optimizer:
    """A copy of an optimizer that has one group with one parameter, and no state."""
    alone = object.__new__(type(optimizer))
    for name, value in vars(optimizer).items():
        vars(alone)[name] = copy.copy(value) if isinstance(value, dict | list | set) else value
    alone.param_groups = [{**group, "params": [parameter]}]
    alone.state = defaultdict(dict)
    return alone


def plain_step(optimizer: torch.optim.Optimizer) -> Callable[[torch.optim.Optimizer], Any]:
    """The class's step without torch's profiling around it."""
    step: Any = type(optimizer).step
    while hasattr(step, "__wrapped__") and inspect.unwrap(step) is not step:
        if not getattr(step, "__code__", None) or not step.__code__.co_filename.endswith(_OF_TORCH):
            break
        step = step.__wrapped__
    return step


class UpdateTracer:
    """
    Traces the updates of one optimizer.

    Args:
        mode: of the fake tensors.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, mode: FakeTensorMode) -> None:
        self.optimizer, self.mode = optimizer, mode
        self.step = plain_step(optimizer)

    def trace(
        self, group: Mapping[str, Any], shape: Sequence[int], dtype: torch.dtype, form: UpdateForm
    ) -> CapturedUpdate:
        """
        The update of a parameter of a shape and dtype in a group.

        Raises:
            CaptureError: the update cannot be traced, or asks for the value of a tensor.
        """
        try:
            with collector_paused():
                return self._trace(group, shape, dtype, form)
        except Exception as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> CaptureError:
        if isinstance(error, CaptureError):
            return error
        return CaptureError(
            f"the update of {optimizer_name(self.optimizer)} cannot be captured: {_place(error)}{error}; an update has to be"
            " tensor operations on its parameter, gradient and state, the learning rate and the count of steps"
        )

    def _trace(
        self, group: Mapping[str, Any], shape: Sequence[int], dtype: torch.dtype, form: UpdateForm
    ) -> CapturedUpdate:
        with self.mode:
            param, grad = torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype)
            count, rate = torch.zeros(()), torch.zeros((), dtype=torch.float64)
            made = self._states_made(group, param, form)
            names = list(made)
            states = [torch.empty(value.shape, dtype=value.dtype) for value in made.values()]

        def run(first: bool) -> Callable[..., list[torch.Tensor]]:
            def function(*inputs: torch.Tensor) -> list[torch.Tensor]:
                return by_branches(lambda branches: one_way(branches, *(value.clone() for value in inputs)), _WAYS)

            def one_way(branches: Branches, param: torch.Tensor, grad: torch.Tensor, *rest: torch.Tensor) -> list[torch.Tensor]:
                *states, count, rate = rest
                given = {} if first else dict(zip(names, states, strict=True))
                after = self._run(group, form, param, grad, given, count, rate, first, branches)
                return [param, *(_tensor(after[name]) for name in names)]

            return function

        inputs = (param, grad, *states, count, rate)
        with self.mode:
            later = make_fx(run(first=False))(*inputs)
            whole: Callable[..., Any] = later
            if form.first_apart:
                whole = _chosen(make_fx(run(first=True))(*inputs), later)
            graph = self._functional(whole, inputs)
        specs = (
            StateSpec(name, tuple(state.shape), state.dtype, form.initial.get(name, 0.0))
            for name, state in zip(names, states, strict=True)
        )
        return CapturedUpdate(graph, tuple(specs))

    def _states_made(
        self, group: Mapping[str, Any], param: torch.Tensor, form: UpdateForm
    ) -> dict[str, torch.Tensor]:
        """The states after a first step, on fake tensors; numbers among them are tensors."""
        grad, count, rate = torch.empty_like(param), torch.zeros(()), torch.zeros((), dtype=torch.float64)
        after = self._run(group, form, param.clone(), grad, {}, count, rate, True, Branches(()))
        left_out = {*form.counts, *form.constants}
        return {name: _tensor(value) for name, value in after.items() if name not in left_out}

    def _run(
        self,
        group: Mapping[str, Any],
        form: UpdateForm,
        param: torch.Tensor,
        grad: torch.Tensor,
        states: Mapping[str, torch.Tensor],
        count: torch.Tensor,
        rate: torch.Tensor,
        first: bool,
        branches: Branches,
    ) -> dict[str, Any]:
        """Run one step on tensors, and return the states after it."""
        with torch.no_grad():
            settings = {"lr": number(rate.clone()), "foreach": False, "fused": False}
            known = {name: value for name, value in settings.items() if name in group}
            known |= {name: number(_from(count, at)) for name, at in form.group_counts.items()}
            alone = group_alone(self.optimizer, {**group, **known}, param)
            param.grad = grad
            if (before := self._made_before(param, first)) is not None:
                alone.state[param] = before
            if not first:
                counted = {name: _from(count, at) for name, at in form.counts.items()}
                counted = {name: number(value) if name in form.numbers else value for name, value in counted.items()}
                states = {name: number(value) if name in form.numbers else value for name, value in states.items()}
                alone.state[param] = {**form.constants, **counted, **states}
            with numbers_as_tensors(branches):
                self.step(alone)
            return dict(alone.state.get(param, {}))

    def _made_before(self, param: torch.Tensor, first: bool) -> dict[str, Any] | None:
        """States that the optimizer has since it was made, of which a parameter of this shape has some too."""
        if not first:
            return None
        alike = (state for given, state in self.optimizer.state.items() if given.shape == param.shape)
        found = next(alike, None)
        if found is None:
            return None
        return {
            name: torch.empty(value.shape, dtype=value.dtype) if isinstance(value, torch.Tensor) else value
            for name, value in found.items()
        }

    def _functional(self, function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> torch.fx.Graph:
        """A graph without writes, with the form that import expects."""
        table = {**get_decompositions(_DECOMPOSED), **_AS_SUMS}
        traced = make_fx(torch.func.functionalize(function), decomposition_table=table)(*inputs)
        graph = fx_graph_cse(traced.graph)
        for node in list(graph.nodes):
            if node.target is aten.copy_.default and cast(torch.fx.Node, node.args[0]).op == "placeholder":
                node.replace_all_uses_with(node.args[1])
                graph.erase_node(node)
        for node in list(graph.nodes):
            node.meta[ORIGIN] = Origin("", "", 0, "update", node.name)
            if node.op == "get_attr":
                _constant(graph, node, getattr(traced, str(node.target)), self.mode)
        remove_identities(graph)
        _remove_products_with_one(graph)
        index_first_dims(graph)
        remove_dead_nodes(graph)
        self._check(graph)
        return graph

    def _check(self, graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
                continue
            if torch.Tag.nondeterministic_seeded in node.target.tags:
                raise RuntimeError(f"it draws random numbers ({node.target})")
            if node.target._schema.is_mutable:
                raise RuntimeError(f"{node.target} writes in place and could not be made functional")


def _chosen(first: torch.fx.GraphModule, later: torch.fx.GraphModule) -> Callable[..., list[torch.Tensor]]:
    """The first step where none was made before, else a later one."""

    def function(*inputs: torch.Tensor) -> list[torch.Tensor]:
        begins = inputs[-2] == 0
        one = first(*(value.clone() for value in inputs))
        other = later(*(value.clone() for value in inputs))
        return [torch.where(begins, a.to(b.dtype), b) for a, b in zip(one, other, strict=True)]

    return function


def _from(count: torch.Tensor, start: float) -> torch.Tensor:
    """A count that was `start` before the first step."""
    return count.double() + start if start else count.double()


def _remove_products_with_one(graph: torch.fx.Graph) -> None:
    """``1 / x`` is traced as the reciprocal of x times 1."""
    for node in list(graph.nodes):
        if node.target is aten.mul.Tensor and node.args[1] == 1:
            source = node.args[0]
            if source.meta["val"].dtype == node.meta["val"].dtype:
                node.replace_all_uses_with(source)
                graph.erase_node(node)


def _mean(x: torch.Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    total = aten.sum.dim_IntList(x, dim, keepdim, dtype=dtype)
    return total / (x.numel() // max(total.numel(), 1))


def _vector_norm(
    x: torch.Tensor, ord: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    if ord != 2 or x.is_complex():
        return NotImplemented
    result = dtype or x.dtype
    x = x.to(torch.float32 if result in (torch.bfloat16, torch.float16) else result)
    return aten.sum.dim_IntList(x * x, dim, keepdim).sqrt().to(result)


_AS_SUMS: dict[Any, Callable[..., Any]] = {
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.linalg_vector_norm.default: _vector_norm,
}
"""Reductions that are written out as sums, for these need not be whole on a rank."""


def _tensor(value: Any) -> torch.Tensor:
    """A state as the graph keeps it."""
    return value if isinstance(value, torch.Tensor) else torch.full((), value, dtype=torch.float64)


def _constant(graph: torch.fx.Graph, node: torch.fx.Node, value: Any, mode: FakeTensorMode) -> None:
    """Write a tensor that the code made of one number as that."""
    value = getattr(value, "constant", None) if isinstance(value, torch._subclasses.FakeTensor) else value
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise RuntimeError("it uses a tensor that is neither its parameter, gradient, state nor a number")
    with graph.inserting_before(node), mode:
        made = graph.call_function(aten.full.default, (list(value.shape), value.item()), {"dtype": value.dtype})
        made.meta = {"val": torch.empty(value.shape, dtype=value.dtype), ORIGIN: node.meta[ORIGIN]}
    node.replace_all_uses_with(made)
    graph.erase_node(node)


def _place(error: BaseException) -> str:
    """Where in the optimizer's code an error is from, as far as that is known."""
    traceback, found = error.__traceback__, ""
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not any(part in file for part in _NOT_OF_OPTIMIZERS):
            found = f"{file}:{traceback.tb_lineno}: "
        traceback = traceback.tb_next
    return found


_NOT_OF_OPTIMIZERS = (
    *_OF_TORCH, os.path.dirname(__file__), "torch/_", "torch/fx/", "torch/overrides.py", "torch/utils/", "<eval_with_key>"
)  # fmt: skip
