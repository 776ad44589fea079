"""
Define one layer of a recurrent network, in one direction, and its gradient.

Torch has an op for all layers of a network, which it computes by one call of a library or by ordinary ops for each step
of the sequence. The interpreter runs these definitions, and the runtime's functions are tested against them.

Shapes: inputs ``[t, b, i]``; weights ``[g, i]`` and ``[g, h]``, and biases ``[g]``, for `g` gates of `h` numbers each
(4 in an LSTM, 3 in a GRU, else 1); a state is ``[2, b, h]`` in an LSTM (hidden state and cell) and else ``[1, b, h]``.
"""

from __future__ import annotations

from functools import partial

import torch

from .fused_op import FusedOp


def recurrent(
    inputs: torch.Tensor,
    state: torch.Tensor,
    of_inputs: torch.Tensor,
    of_state: torch.Tensor,
    bias: torch.Tensor,
    bias_of_state: torch.Tensor,
    kind: str = "lstm",
    reverse: bool = False,
) -> tuple[torch.Tensor, ...]:
    """
    Return the hidden states of all steps, ``[t, b, h]``, and the last state.

    Args:
        state: the state before the first step.
        of_inputs: weights of the inputs.
        of_state: weights of the hidden state.
        kind: ``lstm``, ``gru``, ``rnn_tanh`` or ``rnn_relu``.
        reverse: whether the last input comes first.
    """
    gates = inputs @ of_inputs.t() + bias
    hidden: list[torch.Tensor] = []
    for entering in (gates.flip(0) if reverse else gates).unbind():
        state = _step(entering, state[0] @ of_state.t() + bias_of_state, state, kind)
        hidden.append(state[0])
    return torch.stack(hidden[::-1] if reverse else hidden), state


def recurrent_backward(
    grad: torch.Tensor,
    grad_state: torch.Tensor,
    inputs: torch.Tensor,
    state: torch.Tensor,
    of_inputs: torch.Tensor,
    of_state: torch.Tensor,
    bias: torch.Tensor,
    bias_of_state: torch.Tensor,
    kind: str = "lstm",
    reverse: bool = False,
) -> tuple[torch.Tensor, ...]:
    """
    Return the gradients of `recurrent` with respect to its six tensors, in order.

    Args:
        grad: gradient of the hidden states of all steps.
        grad_state: gradient of the last state.
    """
    operands = (inputs, state, of_inputs, of_state, bias, bias_of_state)
    gradients = torch.func.vjp(partial(recurrent, kind=kind, reverse=reverse), *operands)[1]
    return gradients((grad, grad_state))


OPS = tuple(FusedOp(op, {f"shardwright::{op.__name__}": ()}) for op in (recurrent, recurrent_backward))


def _step(entering: torch.Tensor, kept: torch.Tensor, state: torch.Tensor, kind: str) -> torch.Tensor:
    """Return the next state; `entering` and `kept` are the products of the input and of the hidden state."""
    if kind == "lstm":
        into, out_of, new, shown = (entering + kept).chunk(4, -1)
        cell = out_of.sigmoid() * state[1] + into.sigmoid() * new.tanh()
        return torch.stack([shown.sigmoid() * cell.tanh(), cell])
    if kind == "gru":
        (reset, keep, new), (reset_kept, keep_kept, new_kept) = entering.chunk(3, -1), kept.chunk(3, -1)
        keep, new = (keep + keep_kept).sigmoid(), (new + (reset + reset_kept).sigmoid() * new_kept).tanh()
        return new + keep * (state - new)
    return _ACTIVATIONS[kind](entering + kept).unsqueeze(0)


_ACTIVATIONS = {"rnn_tanh": torch.tanh, "rnn_relu": torch.relu}
