"""
Capture each layer of a recurrent network as one op.

Torch's own op for a network decomposes into several ops for each step of the sequence, and these take minutes to plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch.nn import functional

from ..fused import recurrent_ops

KINDS: Mapping[object, str] = {
    torch.lstm: "lstm",
    torch.gru: "gru",
    torch.rnn_tanh: "rnn_tanh",
    torch.rnn_relu: "rnn_relu",
}
"""Function of torch that computes all layers -> kind of its layers."""

_TENSORS = 6
"""The number of tensors of `recurrent`."""


def is_plain(inputs: object, state: object, weights: object, *settings: Any) -> bool:
    """Return whether a call is without packed sequences, projections of the hidden state and autocast."""
    # With packed sequences, the third argument is the state and the fourth has the weights.
    if not isinstance(inputs, torch.Tensor) or not isinstance(weights, Sequence) or not isinstance(settings[0], bool):
        return False
    has_biases, num_layers, _, _, bidirectional, _ = settings
    is_whole = len(weights) == num_layers * (1 + bidirectional) * (4 if has_biases else 2)
    return is_whole and inputs.numel() > 0 and not torch.is_autocast_enabled(inputs.device.type)


def layers_of(kind: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a function that replaces torch's op for the layers of a kind."""
    return partial(_layers, kind)


def _layers(
    kind: str,
    inputs: torch.Tensor,
    state: torch.Tensor | Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Compute what torch's op of the kind computes for these arguments."""
    states = torch.stack([state] if isinstance(state, torch.Tensor) else list(state), 1)
    rest, last = list(weights), list[torch.Tensor]()
    hidden = inputs.transpose(0, 1) if batch_first else inputs
    for layer in range(num_layers):
        sides = list[torch.Tensor]()
        for reverse in (False, True)[: 1 + bidirectional]:
            given, rest = rest[: 2 + 2 * has_biases], rest[2 + 2 * has_biases :]
            given += [given[0].new_zeros(len(given[0]))] * (4 - len(given))
            side, final = _op()(hidden, states[len(last)], *given, kind, reverse)
            sides.append(side)
            last.append(final)
        hidden = torch.cat(sides, -1) if bidirectional else sides[0]
        if layer < num_layers - 1:
            hidden = functional.dropout(hidden, dropout, train)
    return hidden.transpose(0, 1) if batch_first else hidden, *torch.stack(last, 1)


@cache
def _op() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Return `recurrent` as an op of torch that autograd does not look into."""
    tensors = ", ".join(f"Tensor {name}" for name in "abcdef")
    declare = partial(torch.library.custom_op, mutates_args=())
    settings = "str kind, bool reverse"
    forward = declare(
        "shardwright::recurrent", recurrent_ops.recurrent, schema=f"({tensors}, {settings}) -> (Tensor, Tensor)"
    )
    results = ", ".join(["Tensor"] * _TENSORS)
    backward = declare(
        "shardwright::recurrent_backward",
        recurrent_ops.recurrent_backward,
        schema=f"(Tensor y, Tensor z, {tensors}, {settings}) -> ({results})",
    )

    @forward.register_fake
    def _(inputs: torch.Tensor, state: torch.Tensor, *rest: object) -> tuple[torch.Tensor, ...]:
        return inputs.new_empty(len(inputs), *state.shape[1:]), torch.empty_like(state)

    @backward.register_fake
    def _(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(map(torch.empty_like, given[2 : 2 + _TENSORS]))

    def save(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[torch.Tensor, ...], output: object) -> None:
        ctx.save_for_backward(*inputs[:_TENSORS])
        ctx.settings = inputs[_TENSORS:]  # type: ignore[attr-defined]

    forward.register_autograd(
        lambda ctx, *grads: (*backward(*grads, *ctx.saved_tensors, *ctx.settings), None, None), setup_context=save
    )
    return forward
