"""
Bring a traced joint graph into one form, without identities, dead code or alternative spellings of an op.

Each function rewrites the graph in place and keeps ``meta["val"]`` of the remaining nodes.
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
"""Ops that return their operand in a functional graph."""

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
"""Ops that only drop, repeat or regroup elements and keep their order: identities if the shape stays."""

IDENTITY_AT_SAME_LAYOUT = frozenset({aten.clone.default, aten._to_copy.default})
"""Copies: identities if dtype, shape and strides stay."""

SPELLED = {
    aten._unsafe_view.default: aten.view.default,
    aten._conj.default: aten._conj_physical.default,
}
"""Op -> an equivalent op that differs only in autograd's assumptions or in laziness."""


def remove_identities(graph: torch.fx.Graph) -> None:
    """Replace identities by their operand, respell ops by `SPELLED`, and join views of views."""
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
    """Let a view of a view read the source of the inner view, if this source is contiguous."""
    if node.target is not aten.view.default:
        return
    inner, shape = node.args
    if isinstance(inner, torch.fx.Node) and inner.target is aten.view.default:
        source = inner.args[0]
        if isinstance(source, torch.fx.Node) and source.meta["val"].is_contiguous():
            node.args = (source, shape)


def _leave_out_nothing(node: torch.fx.Node) -> None:
    """Remove tensors of shape [0] from a concatenation, where torch allows them among tensors of any shape."""
    if node.target is aten.cat.default:
        parts, *dim = node.args
        assert isinstance(parts, Sequence)
        nonempty = [part for part in parts if isinstance(part, torch.fx.Node) and part.meta["val"].shape != (0,)]
        if nonempty:
            node.args = (nonempty, *dim)


def _same_value(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return an earlier node that has the value of this node, or None."""
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
    first, second = node.meta.get("val"), other.meta.get("val")
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return False
    return first.shape == second.shape and first.dtype == second.dtype


def _is_identity(node: torch.fx.Node, source: torch.fx.Node) -> bool:
    if node.target in ALWAYS_IDENTITY:
        return True
    if not _is_alike(node, source):
        return False
    if node.target in IDENTITY_AT_SAME_LAYOUT:
        return source.meta["val"].stride() == node.meta["val"].stride()
    return node.target in IDENTITY_AT_SAME_SHAPE


def gives_argument(node: torch.fx.Node) -> bool:
    """Return whether a node is the final copy of a new value into an argument of the graph."""
    into = node.args[0] if node.target is aten.copy_.default else None
    return isinstance(into, torch.fx.Node) and into.op == "placeholder"


def outputs_of(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """Return the output nodes of a graph."""
    (listed,) = graph.output_node().args
    assert isinstance(listed, Sequence)
    return [node for node in listed if isinstance(node, torch.fx.Node)]


def remove_dead_nodes(graph: torch.fx.Graph) -> None:
    """Erase all nodes that no output depends on, except inputs."""
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)


def use_fused_ops(graph: torch.fx.Graph) -> None:
    """Replace ops of torch and other libraries by fused ops, which are independent of device and library."""
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
    """Set the dtype of the logsumexp to attention's compute dtype; torch 2.11 reports float32 even for float64."""
    out, sums = node.meta["val"]
    if sums.dtype == (computed := get_computation_dtype(out.dtype)):
        return
    node.meta["val"] = (out, sums.to(computed))
    for user in node.users:
        if user.target is operator.getitem and user.args[1] == 1:
            user.meta["val"] = node.meta["val"][1]


def replace_tangent(graph: torch.fx.Graph, tangent: torch.fx.Node, number: float) -> None:
    """Replace the placeholder of an output's gradient by a constant: 1 for the loss, else 0."""
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
    """Insert the sum of the gradients of a tied parameter before the output, and return it."""
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
    """Move all placeholders to the front, in this order."""
    anchor = next(node for node in graph.nodes if node.op != "placeholder")
    for node in order:
        anchor.prepend(node)


def rename_nodes(graph: torch.fx.Graph, input_names: Iterable[str]) -> None:
    """Name placeholders after the inputs, and all other nodes after their layer and op."""
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
    Refuse graphs with ops that cannot be distributed.

    Raises:
        CaptureError: a node calls a random op, writes in place, returns a sparse tensor, or calls something other than
            an operator.
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
                f"{where}: {node.target} draws random numbers that cannot be drawn shard by shard; supported ops: "
                f"{', '.join(names)}; {RANDOM_OP.instead}"
            )
        if node.target._schema.is_mutable:
            raise CaptureError(
                f"{where}: {node.target} writes in place and could not be made functional; write the model without it"
            )


def _tensors_of(node: torch.fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    return [item for item in values if isinstance(item, torch.Tensor)]
