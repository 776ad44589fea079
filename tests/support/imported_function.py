"""From a function of tensors to IR: what ops compute outside a training step, for checks of their rules."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from shardwright.lowering.calls.arguments import element_type
from shardwright.lowering.capture.captured import ORIGIN, CaptureError, Origin
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
        inputs: those that were given, then the constants that the function holds, and a seed where it draws numbers.
        draws: whether it draws random numbers: by place, which gives others than torch's generator.
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
    Trace `function` on `inputs`, which keep their values, and convert what it called.

    Args:
        functional: whether ops that write in place are replaced at once; a function that asks autograd for gradients
            is traced as it is, and the ops that this found are replaced.
        probe: whether the rules of ops that the table lacks are inferred.

    Raises:
        CaptureError: it calls what the IR has no form for.
    """
    plain = function if functional else make_fx(function)(*_by_value(inputs))
    traced = make_fx(torch.func.functionalize(plain))(*_by_value(inputs))
    if any(map(_writes, traced.graph.nodes)):
        # The writes of an op that is composed of others (circular `pad`) show only in its trace.
        traced = make_fx(torch.func.functionalize(traced))(*_by_value(inputs))
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
    """Whether a call writes into an operand; not where it gives an argument its new value, at the end."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable and not gives_argument(node)


def _check(node: Node) -> None:
    if node.target is not operator.getitem and "val" not in node.meta:
        raise CaptureError(f"{node.target} returns something other than tensors")
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        raise CaptureError(f"{node.target} draws random numbers in a way that is not supported")


def _by_value(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies that lie in memory in order, as values of the IR do."""
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
