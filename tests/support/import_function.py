"""Import a function of tensors, outside a training step, as IR, to check the rules of its ops."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from shardwright.lowering.calls.arguments import element_type
from shardwright.lowering.capture.captured import ORIGIN, CaptureError, Origin
from shardwright.lowering.capture.decompositions import DETERMINANTS
from shardwright.lowering.capture.indexing import index_first_dims
from shardwright.lowering.capture.normalize import SPELLED, gives_argument, remove_dead_nodes, use_fused_ops
from shardwright.lowering.capture.random import draw_by_place
from shardwright.lowering.importer.nodes import NodeImporter
from shardwright.lowering.importer.unknown_ops import UnknownOps


@dataclass(frozen=True)
class ImportedFunction:
    """
    A function `@op` of the IR.

    Args:
        inputs: the inputs of the function, then the constants it holds, and a seed if it draws random numbers.
        draws: whether it draws random numbers; they depend on positions and differ from torch's generator.
    """

    module: ModuleOp
    inputs: tuple[torch.Tensor, ...]
    draws: bool


def import_function(
    function: Callable[..., Sequence[torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    *,
    functional: bool = True,
    probe: bool = True,
) -> ImportedFunction:
    """
    Trace `function` on `inputs`, which keep their values, and convert its calls to IR.

    Args:
        functional: whether to functionalize while tracing. A function that asks autograd for gradients is traced
            unchanged, and then functionalized.
        probe: whether to infer the rules of ops outside the table.

    Raises:
        CaptureError: the function calls an op that the IR cannot represent.
    """
    trace = partial(make_fx, decomposition_table=dict(DETERMINANTS))
    plain = function if functional else trace(function)(*_by_value(inputs))
    traced = trace(torch.func.functionalize(plain))(*_by_value(inputs))
    if any(map(_writes, traced.graph.nodes)):
        # The writes of an op that is composed of other ops (circular `pad`) appear only in its trace.
        traced = trace(torch.func.functionalize(traced))(*_by_value(inputs))
    graph = traced.graph
    seed = draw_by_place(graph)
    for node in filter(_writes, graph.nodes):
        raise CaptureError(f"{node.target} writes into an operand, but values of the IR are immutable")
    for node in graph.nodes:
        node.meta[ORIGIN] = Origin("", "", 0, "forward", node.name)
        node.target = SPELLED.get(node.target, node.target)
    index_first_dims(graph)
    use_fused_ops(graph)
    remove_dead_nodes(graph)
    rules = UnknownOps(probe)
    block = Block()
    nodes = NodeImporter(block, rules)
    given = iter(_by_value(inputs))
    values: list[torch.Tensor] = []
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            value = torch.tensor(7) if node is seed else _constant(traced, node, given)
            kind = TensorType(element_type(value.dtype), tuple(value.shape))
            nodes.values[node] = block.insert_arg(kind, len(block.args))
            values.append(value)
        elif node.op == "call_function":
            _check(node)
            nodes.add(node)
    results = _results(graph.output_node(), nodes)
    block.add_op(ReturnOp(*results))
    types = ([argument.type for argument in block.args], [result.type for result in results])
    return ImportedFunction(ModuleOp([FuncOp("op", types, Region(block))]), tuple(values), seed is not None)


def _writes(node: Node) -> bool:
    """Return whether a call writes into an operand, except the final assignment of an argument's new value."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable and not gives_argument(node)


def _check(node: Node) -> None:
    if node.target is not operator.getitem and "val" not in node.meta:
        raise CaptureError(f"{node.target} returns something other than tensors")
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        raise CaptureError(f"{node.target} draws random numbers in a way that is not supported")


def _by_value(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return contiguous copies, as values of the IR are."""
    return [each.detach().clone(memory_format=torch.contiguous_format) for each in inputs]


def _constant(traced: GraphModule, node: Node, given: Iterator[torch.Tensor]) -> torch.Tensor:
    if node.op == "placeholder":
        return next(given)
    value = getattr(traced, str(node.target))
    if not isinstance(value, torch.Tensor):
        raise CaptureError(
            f"the function holds {type(value).__name__} '{node.target}', which cannot be expressed in the IR"
        )
    return value.detach()


def _results(output: Node, nodes: NodeImporter) -> list[SSAValue]:
    (returned,) = output.args
    listed = returned if isinstance(returned, list | tuple) else [returned]
    return [nodes.operand(node) for node in listed if isinstance(node, Node)]
