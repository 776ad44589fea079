"""Convert AOTAutograd's joint graph to a captured graph: named inputs and outputs with roles, merged ties, one form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch
import torch.fx
from torch import nn
from torch._functorch._aot_autograd import descriptors as aot
from torch.fx.graph import CodeGen

from ...ir.not_supported import OUTSIDE_WEIGHT, TRAINED_LOSS, WRITTEN_PARAMETER
from .captured import CaptureError, InputRole, StepInput, StepOutput
from .fake import first_names, transient_buffers
from .indexing import index_first_dims
from .normalize import (
    add_nodes,
    check_ops,
    order_placeholders,
    remove_dead_nodes,
    remove_identities,
    rename_nodes,
    replace_tangent,
    use_fused_ops,
)
from .random import SEED, draw_by_place
from .row_lookup import look_up_by_row
from .strides import forget_strides
from .trace import LOSS, METRICS, MODEL, OUTPUT

_Paired: TypeAlias = "tuple[StepInput, torch.fx.Node]"


@dataclass
class _Joint:
    """The placeholders and outputs of a joint graph, sorted by role."""

    is_forward: bool
    named: dict[str, torch.fx.Node] = field(default_factory=dict)
    batch: list[torch.fx.Node] = field(default_factory=list)
    tangents: list[tuple[torch.fx.Node, float]] = field(default_factory=list)
    loss: torch.fx.Node | None = None
    metrics: list[torch.fx.Node] = field(default_factory=list)
    grads: dict[str, torch.fx.Node] = field(default_factory=dict)
    mutated: dict[str, torch.fx.Node] = field(default_factory=dict)


def assemble(
    traced: torch.fx.GraphModule,
    model: nn.Module,
    loss: Callable[..., object] | None,
    batch_names: tuple[str, ...],
    dtype: torch.dtype | None,
    *,
    is_forward: bool = False,
) -> tuple[tuple[StepInput, ...], tuple[StepOutput, ...]]:
    """
    Rewrite ``traced.graph`` in place into a captured step's graph.

    Args:
        traced: a joint graph, or the graph of a forward pass, with descriptors and origins.
        model: the fake model, for names, ties and flags.
        loss: the user's loss; if it is a module, its tensors become constants.
        batch_names: the names of the batch's tensors, in order.
        dtype: the dtype that floating-point tensors were converted to, or None.
        is_forward: whether the graph has no backward pass; then writes to buffers and unused inputs are dropped.

    Raises:
        CaptureError: the graph does something that a distributed program cannot.
    """
    graph = traced.graph
    joint = _sort(graph, is_forward=is_forward)
    ties = _merge_ties(graph, joint, model)
    for tangent, number in joint.tangents:
        replace_tangent(graph, tangent, number)
    of_model = traced.meta[OUTPUT] is not None
    outputs = _set_model_outputs(graph, joint) if of_model else _set_outputs(graph, joint, traced.meta[METRICS])
    inputs = _model_inputs(joint, model, ties)
    inputs += [(_input("batch", *pair), pair[1]) for pair in zip(batch_names, joint.batch, strict=True)]
    inputs += _loss_constants(joint, loss, dtype) + _lifted_constants(traced)
    seed = draw_by_place(graph)
    forget_strides(graph)
    index_first_dims(graph)
    look_up_by_row(graph)
    remove_identities(graph)
    use_fused_ops(graph)
    remove_dead_nodes(graph)
    inputs += _seed_input(graph, seed)
    if is_forward:
        inputs = _used(graph, inputs)
    check_ops(graph)
    order_placeholders(graph, [node for _, node in inputs])
    graph.set_codegen(CodeGen())
    rename_nodes(graph, [step_input.name for step_input, _ in inputs])
    return tuple(step_input for step_input, _ in inputs), outputs


def _used(graph: torch.fx.Graph, inputs: list[_Paired]) -> list[_Paired]:
    """Return the inputs that the graph uses, and erase the placeholders of all others."""
    used = [pair for pair in inputs if pair[1].users]
    for _, node in inputs:
        if not node.users:
            graph.erase_node(node)
    return used


def _sort(graph: torch.fx.Graph, *, is_forward: bool) -> _Joint:
    joint = _Joint(is_forward=is_forward)
    for node in graph.find_nodes(op="placeholder"):
        match node.meta["desc"]:
            case aot.ParamAOTInput(name) | aot.BufferAOTInput(name):
                joint.named[name] = node
            case aot.PlainAOTInput():
                joint.batch.append(node)
            case aot.TangentAOTInput(aot.PlainAOTOutput()):
                joint.tangents.append((node, 1.0))
            case aot.TangentAOTInput():
                joint.tangents.append((node, 0.0))
            case other:
                raise CaptureError(f"the model needs an input of a kind that is not supported: {other}")
    output = graph.output_node()
    (values,) = output.args
    assert isinstance(values, Sequence)
    for desc, value in zip(output.meta["desc"], values, strict=True):
        _sort_output(joint, desc, value)
    if not joint.tangents and not is_forward:
        raise CaptureError("the loss does not depend on any parameter that requires a gradient")
    return joint


def _sort_output(joint: _Joint, desc: object, output: object) -> None:
    value = output if isinstance(output, torch.fx.Node) else None
    match desc:
        case aot.PlainAOTOutput(0):
            joint.loss = value
        case aot.PlainAOTOutput() if value is not None:
            joint.metrics.append(value)
        case aot.GradAOTOutput(aot.ParamAOTInput(name)):
            if value is not None:
                joint.grads[name] = value
        case aot.InputMutationAOTOutput() if joint.is_forward:
            pass
        case aot.InputMutationAOTOutput(aot.BufferAOTInput(name)) if value is not None:
            joint.mutated[name] = value
        case aot.InputMutationAOTOutput(aot.ParamAOTInput(name)):
            raise CaptureError(
                f"forward writes into the parameter {name.removeprefix(MODEL + '.')!r}; {WRITTEN_PARAMETER.instead}"
            )
        case _:
            pass


def _merge_ties(graph: torch.fx.Graph, joint: _Joint, model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Merge each tied tensor into one input and one summed gradient; return the other names by first name."""
    _, param_ties = first_names(model.named_parameters(remove_duplicate=False))
    _, buffer_ties = first_names(model.named_buffers(remove_duplicate=False))
    for first, others in (param_ties | buffer_ties).items():
        names = [f"{MODEL}.{name}" for name in (first, *others)]
        if any(name in joint.mutated for name in names):
            raise CaptureError(
                f"forward writes into one buffer that has several names, {', '.join((first, *others))}; give "
                "each module a separate buffer"
            )
        grads = [grad for name in names if (grad := joint.grads.pop(name, None)) is not None]
        if grads:
            joint.grads[names[0]] = add_nodes(graph, grads)
        for name in names[1:]:
            other = joint.named.pop(name)
            other.replace_all_uses_with(joint.named[names[0]])
            graph.erase_node(other)
    return param_ties | buffer_ties


def _set_outputs(graph: torch.fx.Graph, joint: _Joint, metrics: Sequence[str]) -> tuple[StepOutput, ...]:
    assert joint.loss is not None
    outputs = [(StepOutput("loss", "loss"), joint.loss)]
    outputs += [(StepOutput("metric", name), node) for name, node in zip(metrics, joint.metrics, strict=True)]
    for name in joint.named:
        if name in joint.grads:
            outputs.append((StepOutput("grad", name.removeprefix(f"{MODEL}.")), joint.grads[name]))
    for name, node in joint.mutated.items():
        outputs.append((StepOutput("buffer", name.removeprefix(f"{MODEL}.")), node))
    graph.output_node().args = ([node for _, node in outputs],)
    return tuple(output for output, _ in outputs)


def _set_model_outputs(graph: torch.fx.Graph, joint: _Joint) -> tuple[StepOutput, ...]:
    assert joint.loss is not None
    nodes = [joint.loss, *joint.metrics]
    graph.output_node().args = (nodes,)
    return tuple(StepOutput("output", str(number)) for number in range(len(nodes)))


def _model_inputs(joint: _Joint, model: nn.Module, ties: dict[str, tuple[str, ...]]) -> list[_Paired]:
    params = dict(model.named_parameters())
    transient = transient_buffers(model)
    inputs: list[_Paired] = []
    for full_name, node in joint.named.items():
        if not full_name.startswith(f"{MODEL}."):
            continue
        name = full_name.removeprefix(f"{MODEL}.")
        step_input = replace(
            _input("param" if name in params else "buffer", name, node),
            requires_grad=name in params and params[name].requires_grad,
            aliases=tuple(alias for alias in ties.get(name, ()) if alias not in transient),
            persistent=name not in transient,
        )
        inputs.append((step_input, node))
    return inputs


def _input(role: InputRole, name: str, node: torch.fx.Node) -> StepInput:
    value = node.meta["val"]
    return StepInput(role, name, tuple(value.shape), value.dtype)


def _constant(name: str, node: torch.fx.Node, value: torch.Tensor) -> _Paired:
    return replace(_input("constant", name, node), value=value.detach()), node


def _loss_constants(joint: _Joint, loss: Callable[..., object] | None, dtype: torch.dtype | None) -> list[_Paired]:
    """Return the tensors of a loss module, which is never fake and must not be trained."""
    if not isinstance(loss, nn.Module):
        return []
    constants: list[_Paired] = []
    for name, tensor in (*loss.named_parameters(), *loss.named_buffers()):
        full_name = f"{LOSS}.{name}"
        if tensor.requires_grad or full_name in joint.mutated:
            raise CaptureError(
                f"the loss module {type(loss).__name__} has a tensor {name!r} that training changes; "
                f"{TRAINED_LOSS.instead}"
            )
        value = tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
        constants.append(_constant(full_name, joint.named[full_name], value))
    return constants


def _lifted_constants(traced: torch.fx.GraphModule) -> list[_Paired]:
    """Turn tensors that forward creates from literals or finds outside the model into inputs."""
    graph, constants, placeholders = traced.graph, [], {}
    for node in graph.find_nodes(op="get_attr"):
        name = str(node.target)
        value = getattr(traced, name)
        if name not in placeholders:
            value = getattr(value, "constant", value)
            if not isinstance(value, torch.Tensor):
                raise CaptureError(
                    "the forward uses a tensor that was created with the model and has no values under fake tensors; "
                    "register it with register_buffer so that it is an input with a name"
                )
            if value.requires_grad:
                raise CaptureError(
                    f"the forward uses a tensor of shape {tuple(value.shape)} outside the model that requires a "
                    f"gradient; {OUTSIDE_WEIGHT.instead}"
                )
            with graph.inserting_before(next(iter(graph.nodes))):
                placeholders[name] = graph.placeholder(name)
            placeholders[name].meta["val"] = node.meta["val"]
            constants.append(_constant(name.lstrip("_"), placeholders[name], value))
        node.replace_all_uses_with(placeholders[name])
        graph.erase_node(node)
    return constants


def _seed_input(graph: torch.fx.Graph, seed: torch.fx.Node | None) -> list[_Paired]:
    """Return the seed as an input if the graph uses any random numbers."""
    if seed is None:
        return []
    if not seed.users:
        graph.erase_node(seed)
        return []
    return [(_input("seed", SEED, seed), seed)]
