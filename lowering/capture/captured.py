"""The result of capture: one fx graph of a training step, and what its inputs and outputs are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
import torch.fx

InputRole = Literal["param", "buffer", "batch", "constant", "seed"]
OutputRole = Literal["loss", "metric", "output", "grad", "buffer"]
Phase = Literal["forward", "backward", "update"]

ParameterGroup: TypeAlias = Mapping[str, Any]
"""A group of an optimizer of torch: its parameters, and its settings by torch's names."""

LOSS_GRADIENT = "loss_gradient"
"""The key of ``meta`` that is true of the node which backward begins with, the gradient of the loss."""

ORIGIN = "shardwright"
"""The key of a node's `meta` that holds its `Origin`."""


class CaptureError(ValueError):
    """A training step that cannot be captured; the message says where, why and what to do."""


@dataclass(frozen=True)
class Origin:
    """
    Where a node comes from in the user's model.

    Args:
        layer: the path of the module whose forward made it, such as ``h.0.attn.q``; empty for the model
            itself and for the loss function.
        file: the file of the innermost line of the model's own code, or of `torch.nn` where there is none.
        line: that line, counted from 1; 0 where it is unknown.
        phase: a backward node has the layer and line of the forward node that it differentiates; one of an update
            has the layer of its parameter.
        name: a readable name for the value, from layer and op; not unique.
        region: the number of the checkpointed region that a forward node is in, 0 for none: what is computed there and
            needed in backward is to be computed again.
    """

    layer: str
    file: str
    line: int
    phase: Phase
    name: str
    region: int = 0


@dataclass(frozen=True)
class StepInput:
    """
    One input of the captured graph.

    Args:
        role: ``param``, ``buffer``, ``batch``, ``constant`` (a tensor that the forward made from literals or
            found outside the model), or ``seed`` (of the random numbers of the step).
        name: the name in the single-device model for a parameter or buffer; the key, or the position as a
            string, for an item of the batch.
        shape: the global shape.
        requires_grad: whether a parameter wants a gradient. It may get none all the same, when the loss
            does not depend on it; then there is no ``grad`` output and the optimizer leaves it alone.
        aliases: the other names of a tied parameter or shared buffer in the state dict.
        persistent: False for a buffer that is not part of the state dict by this name (and for a tensor that a module
            holds as a plain attribute, which is captured as such a buffer).
        value: the tensor itself for a constant, else None.
    """

    role: InputRole
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool = False
    aliases: tuple[str, ...] = ()
    persistent: bool = True
    value: torch.Tensor | None = None


@dataclass(frozen=True)
class StepOutput:
    """
    One output of the captured graph.

    Args:
        role: ``loss``, ``metric``, ``output`` (a tensor of what the model returns), ``grad`` (of the parameter `name`),
            or ``buffer`` (the value that the buffer `name` has after the step).
        name: the parameter's, buffer's or metric's name; ``loss`` for the loss; of an output its number.
    """

    role: OutputRole
    name: str


@dataclass(frozen=True)
class GroupSpec:
    """
    The settings of the updates of a group.

    Args:
        lr: the learning rate that the optimizer was made with; an input at run time.
        hyper: the other settings, by torch's names. SGD: ``momentum``, ``dampening``, ``weight_decay``,
            ``nesterov``. Adam and AdamW: ``beta1``, ``beta2``, ``eps``, ``weight_decay``, and ``amsgrad`` where it is
            on. All three: ``maximize`` where it is on. Of another optimizer all that are plain values.
        states: of fused updates the tensors kept per parameter, of its shape and dtype, zero at first: nothing or
            ``momentum_buffer``; ``exp_avg``, ``exp_avg_sq`` and perhaps ``max_exp_avg_sq``. The step count is one for
            all parameters, counted from 1, and like the learning rate an input at run time.
    """

    lr: float
    hyper: Mapping[str, object]
    states: tuple[str, ...] = ()


@dataclass(frozen=True)
class StateSpec:
    """
    A tensor that the optimizer keeps for a parameter.

    Args:
        initial: what each of its elements is before the first step.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    initial: float = 0.0


@dataclass(frozen=True)
class CapturedUpdate:
    """
    The update of a parameter as an optimizer's own code computes it, for all parameters of a shape, dtype and group.

    Args:
        graph: functional; its placeholders are the parameter, its gradient, the states, the number of steps before
            this one (float32) and the learning rate (float64), its outputs the new parameter and the new states.
        states: in order.
    """

    graph: torch.fx.Graph
    states: tuple[StateSpec, ...]


@dataclass(frozen=True)
class OptimizerSpec:
    """
    The optimizer: its groups, and the update of every parameter that has a gradient.

    Args:
        kind: ``sgd``, ``adam`` or ``adamw``, which are fused; of another optimizer the name of its class.
        groups: in the order of the optimizer.
        members: by parameter, the number of its group; empty where there is one.
        updates: by parameter, its update; empty where all are fused.
    """

    kind: str
    groups: tuple[GroupSpec, ...]
    members: Mapping[str, int] = field(default_factory=dict[str, int])
    updates: Mapping[str, CapturedUpdate] = field(default_factory=dict[str, CapturedUpdate])

    def group_of(self, parameter: str) -> GroupSpec:
        """The group of a parameter."""
        return self.groups[self.members.get(parameter, 0)]

    def states_of(self, parameter: StepInput) -> tuple[StateSpec, ...]:
        """The states of a parameter."""
        if parameter.name in self.updates:
            return self.updates[parameter.name].states
        names = self.group_of(parameter.name).states
        return tuple(StateSpec(name, parameter.shape, parameter.dtype) for name in names)


@dataclass(frozen=True)
class CapturedStep:
    """
    The forward and backward pass of a training step, or the forward pass alone, as one graph of global shapes.

    Every node calls an ATen (or custom) `OpOverload`, `operator.getitem` on a node of several results, or
    one of the functions of `attention_ops` and `random_ops`. The graph is functional. Each node has ``meta["val"]``, a
    fake tensor (or a tuple of them), and ``meta["shardwright"]``, an `Origin`.

    Args:
        graph: its placeholders are `inputs` in order, its output the list of `outputs` in order.
        inputs: parameters, then buffers, batch tensors, constants, and the seed where random numbers are drawn.
        outputs: the loss, the metrics, the gradients in the order of their parameters, then the changed buffers.
            What else the model returns is dropped, for training needs the loss alone. Of the forward pass alone the
            loss and the metrics, or what the model returns.
        optimizer: the update that follows; None where there is none.
        model: the class of the model, for messages.
    """

    graph: torch.fx.Graph
    inputs: tuple[StepInput, ...]
    outputs: tuple[StepOutput, ...]
    optimizer: OptimizerSpec | None
    model: str

    def inputs_of(self, role: InputRole) -> tuple[StepInput, ...]:
        """The inputs of one role, in order."""
        return tuple(i for i in self.inputs if i.role == role)
