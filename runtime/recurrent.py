"""
Layers of recurrent networks, by torch's op for the device.

The functions take the arguments of the definitions of the same names. The gradient computes the layer again, since the
reserve space of a library could not be split with the batch.
"""

from __future__ import annotations

import torch


def recurrent(
    inputs: torch.Tensor,
    state: torch.Tensor,
    of_inputs: torch.Tensor,
    of_state: torch.Tensor,
    bias: torch.Tensor,
    bias_of_state: torch.Tensor,
    kind: str = "lstm",
    reverse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the hidden states of all steps and the last state."""
    with torch.no_grad():
        return _layer((inputs, state, of_inputs, of_state, bias, bias_of_state), kind, reverse)


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
    """Return the gradients of inputs, state, weights and biases."""
    given = (inputs, state, of_inputs, of_state, bias, bias_of_state)
    with torch.enable_grad():
        operands = tuple(operand.detach().requires_grad_() for operand in given)
        return torch.autograd.grad(_layer(operands, kind, reverse), operands, (grad, grad_state))


_KERNELS = {"gru": torch.gru, "rnn_tanh": torch.rnn_tanh, "rnn_relu": torch.rnn_relu}


def _layer(operands: tuple[torch.Tensor, ...], kind: str, reverse: bool) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, state, *weights = operands
    inputs = inputs.flip(0) if reverse else inputs
    # Biases, one layer, no dropout, whether gradients follow, one direction, time first.
    settings = (True, 1, 0.0, torch.is_grad_enabled(), False, False)
    if kind == "lstm":
        hidden, *last = torch.lstm(inputs, state.split(1), weights, *settings)
        state = torch.cat(last)
    else:
        hidden, state = _KERNELS[kind](inputs, state, weights, *settings)
    return hidden.flip(0) if reverse else hidden, state
