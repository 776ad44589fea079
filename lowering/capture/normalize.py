"""
Bring a traced joint graph into one form: no identities, no dead code, one spelling per thing.

Each function rewrites the graph in place and keeps ``meta["val"]`` of what it leaves.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
import torch.fx
from torch._prims_common import get_computation_dtype

from ...ir.not_supported import CONTROL_FLOW, OTHER_ATTENTION, RANDOM_OP, SPARSE_GRADIENT
from ..fused.attention_ops import attention
from ..fused.random_draws import DRAWS, arguments_by_name
from ..fused.table import BY_DEFINITION, STANDING_FOR
from .captured import LOSS_GRADIENT, ORIGIN, CaptureError, Origin

aten = torch.ops.aten

ALWAYS_IDENTITY = frozenset(
    {
        aten.detach.default,
        aten.alias.default,
        aten.lift.default,
        aten.lift_fresh.default,
        aten.lift_fresh_copy.default,
    }
)
"""Ops whose result is their operand in a functional graph."""

IDENTITY_AT_SAME_SHAPE = frozenset(
    {
        aten.view.default,
        aten.expand.default,
        aten.slice.Tensor,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.squeeze.default,
    }
)
"""Ops that only ever drop, repeat or regroup elements, in order."""

IDENTITY_AT_SAME_LAYOUT = frozenset({aten.clone.default, aten._to_copy.default})
"""Copies, which do nothing to a value unless they change its dtype, shape or strides."""

SPELLED = {
    aten._unsafe_view.default: aten.view.default,
    aten._conj.default: aten._conj_physical.default,
}
"""Ops that differ only in what autograd may assume, or in when they are carried out."""


def remove_identities(graph: torch.fx.Graph) -> None:
    """Replace ops that return their first operand by it, respell the rest, and join views of views."""
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        node.target = SPELLED.get(node.target, node.target)
        _skip_inner_view(node)
        _leave_out_nothing(node)
        same = _same_value(node)
        if same is not None:
            node.replace_all_uses_with(same)
            graph.erase_node(node)


def _skip_inner_view(node: torch.fx.Node) -> None:
    """Let a view of a view look at the inner one's source, where that is contiguous and so viewable."""
    if node.target is not aten.view.default:
        return
    inner, shape = node.args
    if isinstance(inner, torch.fx.Node) and inner.target is aten.view.default:
        source = inner.args[0]
        if isinstance(source, torch.fx.Node) and source.meta["val"].is_contiguous():
            node.args = (source, shape)


def _leave_out_nothing(node: torch.fx.Node) -> None:
    """Take tensors of the shape [0] out of a concatenation, which torch allows beside those of any shape."""
    if node.target is aten.cat.default:
        parts, *dim = node.args
        assert isinstance(parts, Sequence)
        kept = [part for part in parts if isinstance(part, torch.fx.Node) and part.meta["val"].shape != (0,)]
        if kept:
            node.args = (kept, *dim)


def _same_value(node: torch.fx.Node) -> torch.fx.Node | None:
    """The earlier node that has this node's value, if there is one."""
    match node.target, node.args:
        case aten.cat.default, ([torch.fx.Node() as only], *_):
            return only
        case aten.copy.default, (_, torch.fx.Node() as written, *_) if _is_alike(node, written):
            return written
        case _, (torch.fx.Node() as source, *_) if _is_identity(node, source):
            return source
        case aten.t.default, (torch.fx.Node(target=aten.t.default, args=(torch.fx.Node() as twice,)), *_):
            return twice
        case _:
            return None


def _is_alike(node: torch.fx.Node, other: torch.fx.Node) -> bool:
    """Whether two nodes have values of one shape and dtype."""
    one, two = node.meta.get("val"), other.meta.get("val")
    if not isinstance(one, torch.Tensor) or not isinstance(two, torch.Tensor):
        return False
    return one.shape == two.shape and one.dtype == two.dtype


def _is_identity(node: torch.fx.Node, source: torch.fx.Node) -> bool:
    if node.target in ALWAYS_IDENTITY:
        return True
    if not _is_alike(node, source):
        return False
    if node.target in IDENTITY_AT_SAME_LAYOUT:
        return source.meta["val"].stride() == node.meta["val"].stride()
    return node.target in IDENTITY_AT_SAME_SHAPE


def gives_argument(node: torch.fx.Node) -> bool:
    """Whether a call gives an argument of the graph its new value, at the end."""
    into = node.args[0] if node.target is aten.copy_.default else None
    return isinstance(into, torch.fx.Node) and into.op == "placeholder"


def outputs_of(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The nodes that a graph returns."""
    (listed,) = graph.output_node().args
    assert isinstance(listed, Sequence)
    return [node for node in listed if isinstance(node, torch.fx.Node)]


def remove_dead_nodes(graph: torch.fx.Graph) -> None:
    """Erase what no output needs. Inputs stay."""
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)


def use_fused_ops(graph: torch.fx.Graph) -> None:
    """Replace ops of torch and other libraries by the fused ops in their place, which name no device or library."""
    for node in graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload) or node.target.name() not in STANDING_FOR:
            continue
        op, names = STANDING_FOR[node.target.name()]
        arguments = arguments_by_name(node.target, node.args, node.kwargs)
        node.target, node.kwargs = op.definition, {}
        node.args = tuple(arguments[name] for name in names or arguments)
        if op.definition is attention:
            _correct_sums(node)


def _correct_sums(node: torch.fx.Node) -> None:
    """Give the logarithms of sums the dtype that attention computes in: torch 2.11 says float32, of float64 too."""
    out, sums = node.meta["val"]
    if sums.dtype == (computed := get_computation_dtype(out.dtype)):
        return
    node.meta["val"] = (out, sums.to(computed))
    for user in node.users:
        if user.target is operator.getitem and user.args[1] == 1:
            user.meta["val"] = node.meta["val"][1]


def replace_tangent(graph: torch.fx.Graph, tangent: torch.fx.Node, number: float) -> None:
    """Replace the placeholder of an output's own gradient by a constant: one for the loss, else zero."""
    value, first_use = tangent.meta["val"], min(tangent.users, default=graph.output_node())
    with graph.inserting_before(first_use):
        constant = graph.call_function(
            aten.full.default,
            (list(value.shape), number),
            {"dtype": value.dtype, "device": value.device, "pin_memory": False},
        )
    origin = first_use.meta.get(ORIGIN, Origin("", "", 0, "backward", ""))
    constant.meta = {"val": value, ORIGIN: replace(origin, name=_joined(origin.layer, "full_grad"))}
    constant.meta[LOSS_GRADIENT] = number == 1.0
    tangent.replace_all_uses_with(constant)
    graph.erase_node(tangent)


def add_nodes(graph: torch.fx.Graph, terms: list[torch.fx.Node]) -> torch.fx.Node:
    """The sum of the gradients that meet in one tied parameter, right before the output."""
    total = terms[0]
    for term in terms[1:]:
        with graph.inserting_before(graph.output_node()):
            total = graph.call_function(aten.add.Tensor, (total, term))
        origin = term.meta[ORIGIN]
        total.meta = {
            "val": term.meta["val"],
            ORIGIN: replace(origin, name=_joined(origin.layer, "add_grad")),
        }
    return total


def _joined(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def order_placeholders(graph: torch.fx.Graph, order: Iterable[torch.fx.Node]) -> None:
    """Put all placeholders first, in the order given."""
    anchor = next(node for node in graph.nodes if node.op != "placeholder")
    for node in order:
        anchor.prepend(node)


def rename_nodes(graph: torch.fx.Graph, input_names: Iterable[str]) -> None:
    """Name placeholders after the inputs and all other nodes after their layer and op."""
    names = iter(input_names)
    for node in graph.nodes:
        if node.op == "placeholder":
            node._rename(_identifier(next(names)))
            node.target = node.name
        elif node.op != "output":
            node._rename(_identifier(node.meta[ORIGIN].name))


def _identifier(name: str) -> str:
    name = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return f"_{name}" if name[:1].isdigit() else name


def check_ops(graph: torch.fx.Graph) -> None:
    """
    Refuse what cannot be distributed.

    Raises:
        CaptureError: a random op, an op that writes in place or gives a sparse tensor, or a call of no operator.
    """
    for node in graph.nodes:
        if node.op in ("placeholder", "output") or node.target is operator.getitem or node.target in BY_DEFINITION:
            continue
        origin = node.meta[ORIGIN]
        where = f"{origin.file}:{origin.line}" + (f" (module {origin.layer!r})" if origin.layer else "")
        if not isinstance(node.target, torch._ops.OpOverload):
            raise CaptureError(
                f"{where}: {node.target} is a control-flow operator, which is not supported; {CONTROL_FLOW.instead}"
            )
        if any(value.layout != torch.strided for value in _tensors_of(node)):
            raise CaptureError(f"{where}: {node.target} returns a sparse tensor; {SPARSE_GRADIENT.instead}")
        if node.target.namespace == "torch_attn":
            raise CaptureError(f"{where}: {node.target} is called, which is not supported; {OTHER_ATTENTION.instead}")
        if torch.Tag.nondeterministic_seeded in node.target.tags:
            names = dict.fromkeys(op._schema.name.removeprefix("aten::") for op in DRAWS if not op._schema.is_mutable)
            raise CaptureError(
                f"{where}: {node.target} draws random numbers that cannot be drawn shard by shard, as those of "
                f"{', '.join(names)} can; {RANDOM_OP.instead}"
            )
        if node.target._schema.is_mutable:
            raise CaptureError(
                f"{where}: {node.target} writes in place and could not be made functional; write the model without it"
            )


def _tensors_of(node: torch.fx.Node) -> list[torch.Tensor]:
    """The fake results of a node."""
    value = node.meta.get("val")
    found = value if isinstance(value, tuple | list) else (value,)
    return [each for each in found if isinstance(each, torch.Tensor)]
