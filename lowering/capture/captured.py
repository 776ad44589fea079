"""The result of capture: one fx graph of a training step, with descriptions of its inputs and outputs."""

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
"""A parameter group of a torch optimizer: its parameters, and its settings by torch's names."""

LOSS_GRADIENT = "loss_gradient"
"""The key of ``meta`` that is true for the first node of backward, the gradient of the loss."""

ORIGIN = "shardwright"
"""The key of a node's `meta` that holds its `Origin`."""


class CaptureError(ValueError):
    """A failure to capture a training step; the message names the place, the reason and the remedy."""


@dataclass(frozen=True)
class Origin:
    """
    The place in the user's model that a node comes from.

    Args:
        layer: the path of the module whose forward created the node, such as ``h.0.attn.q``; empty for the model
            itself and for the loss function.
        file: the file of the innermost frame in the model's own code, or in `torch.nn` if the model has no frame.
        line: the line of this frame, counted from 1; 0 if unknown.
        phase: the phase of the node. A backward node has the layer and line of the forward node that it
            differentiates; an update node has the layer of its parameter.
        name: a readable name for the value, from layer and op; not unique.
        region: the number of the checkpointed region of a forward node, or 0. Values that are computed in a region
            and needed in backward are recomputed.
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
        role: ``param``, ``buffer``, ``batch``, ``constant`` (a tensor that the forward creates from literals or
            finds outside the model), or ``seed`` (for the random numbers of the step).
        name: the name in the single-device model for a parameter or buffer; the key, or the position as a
            string, for an item of the batch.
        shape: the global shape.
        requires_grad: whether a parameter requires a gradient. If the loss does not depend on the parameter, the graph
            lacks its ``grad`` output and the optimizer skips it.
        aliases: the other names of a tied parameter or shared buffer in the state dict.
        persistent: False for a buffer that the state dict does not hold under this name. A tensor that a module
            holds as a plain attribute is captured as such a buffer.
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
        role: ``loss``, ``metric``, ``output`` (a tensor in the model's result), ``grad`` (of the parameter `name`),
            or ``buffer`` (the value of the buffer `name` after the step).
        name: the name of the parameter, buffer or metric; ``loss`` for the loss; the number of an output.
    """

    role: OutputRole
    name: str


@dataclass(frozen=True)
class GroupSpec:
    """
    The update settings of a parameter group.

    Args:
        lr: the initial learning rate of the optimizer; the learning rate is an input at run time.
        hyper: the other settings, by torch's names. SGD: ``momentum``, ``dampening``, ``weight_decay``,
            ``nesterov``. Adam and AdamW: ``beta1``, ``beta2``, ``eps``, ``weight_decay``, and ``amsgrad`` if on.
            All three: ``maximize`` if on. Other optimizers: all settings that are plain values.
        states: the tensors that a fused update keeps per parameter, initially zero, in the parameter's shape and
            dtype: ``momentum_buffer`` or nothing for SGD; ``exp_avg``, ``exp_avg_sq`` and optionally
            ``max_exp_avg_sq`` for Adam. The step count, counted from 1, is one run-time input for all parameters.
    """

    lr: float
    hyper: Mapping[str, object]
    states: tuple[str, ...] = ()


@dataclass(frozen=True)
class StateSpec:
    """
    A tensor that the optimizer keeps for a parameter.

    Args:
        initial: the value of every element before the first step.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    initial: float = 0.0


@dataclass(frozen=True)
class CapturedUpdate:
    """
    The update that an optimizer's own code computes for every parameter of one shape, dtype and group.

    Args:
        graph: a functional graph. Its placeholders are the parameter, its gradient, the states, the number of previous
            steps (float32) and the learning rate (float64); its outputs are the new parameter and the new states.
        states: the states, in the order of the placeholders.
    """

    graph: torch.fx.Graph
    states: tuple[StateSpec, ...]


@dataclass(frozen=True)
class OptimizerSpec:
    """
    The optimizer: its groups, and the update of every parameter that has a gradient.

    Args:
        kind: ``sgd``, ``adam`` or ``adamw``, which are fused, or the class name of another optimizer.
        groups: the groups, in the order of the optimizer.
        members: parameter -> number of its group; empty for a single group.
        updates: parameter -> captured update; empty for a fused kind.
    """

    kind: str
    groups: tuple[GroupSpec, ...]
    members: Mapping[str, int] = field(default_factory=dict[str, int])
    updates: Mapping[str, CapturedUpdate] = field(default_factory=dict[str, CapturedUpdate])

    def group_of(self, parameter: str) -> GroupSpec:
        """Return the group of a parameter."""
        return self.groups[self.members.get(parameter, 0)]

    def states_of(self, parameter: StepInput) -> tuple[StateSpec, ...]:
        """Return the optimizer states of a parameter."""
        if parameter.name in self.updates:
            return self.updates[parameter.name].states
        names = self.group_of(parameter.name).states
        return tuple(StateSpec(name, parameter.shape, parameter.dtype) for name in names)


@dataclass(frozen=True)
class CapturedStep:
    """
    The forward and backward pass of a training step, or the forward pass alone, as one graph of global shapes.

    Every node calls an ATen (or custom) `OpOverload`, `operator.getitem` on a node with several results, or
    a function of `attention_ops` or `random_ops`. The graph is functional. Each node has ``meta["val"]``, a
    fake tensor (or a tuple of fake tensors), and ``meta["shardwright"]``, an `Origin`.

    Args:
        graph: a graph with the placeholders `inputs` and a list of the `outputs`, both in order.
        inputs: parameters, then buffers, batch tensors, constants, and the seed if random numbers are drawn.
        outputs: the loss, the metrics, the gradients in the order of their parameters, then the modified buffers;
            other results of the model are dropped. For a forward pass alone: the loss and the metrics, or the model's
            result.
        optimizer: the update that follows, if any.
        model: the name of the model's class, for messages.
    """

    graph: torch.fx.Graph
    inputs: tuple[StepInput, ...]
    outputs: tuple[StepOutput, ...]
    optimizer: OptimizerSpec | None
    model: str

    def inputs_of(self, role: InputRole) -> tuple[StepInput, ...]:
        """Return the inputs with this role, in order."""
        return tuple(i for i in self.inputs if i.role == role)
