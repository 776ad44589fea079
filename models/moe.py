"""
Mixture of experts: a router sends each token to a few of many feed-forward layers, the experts.

After Shazeer et al., "Outrageously Large Neural Networks" (2017, `sparsely_gated`), Fedus et al., "Switch Transformers"
(2021, `switch`) and Jiang et al., "Mixtral of Experts" (2024, `mixtral`), in the form of Lepikhin et al., "GShard"
(2020): tokens come in groups, and an expert takes a limited number of tokens from each group.

The letters of the shapes: g groups of s tokens, e experts with room for c tokens of a group, k experts per token,
features m, and h within an expert.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from ..api.grouped import grouped_mm

Dispatch = Literal["einsum", "scatter", "grouped"]
"""
The dispatch of tokens to their experts and back. ``einsum`` multiplies by one-hot masks ``[g, s, e, c]``, as
GShard does; ``scatter`` writes into buffers of the experts by index and gathers from them; ``grouped`` sorts all tokens
by expert and multiplies one matrix per expert with exactly its rows, without dropped tokens or empty places.
"""


@dataclass(frozen=True)
class MoEConfig:
    """
    A mixture of experts.

    Args:
        experts: number of experts.
        choices: number of experts that compute each token. With one choice the weight is the router's probability, with
            several it is the softmax over their scores.
        capacity: an expert has room for ``capacity * choices / experts`` of a group's tokens and ignores tokens beyond
            that: first choices come before second choices, earlier tokens before later ones. It has no effect on
            ``grouped``, which drops no tokens.
        groups: the number of groups that the tokens of a batch form; by default each sequence is a group. Room and
            places are counted per group, so groups can be split over devices and micro-batches, but the tokens of one
            group cannot: use at least as many groups as parts of the batch.
        noise: whether the router adds normal noise of a learned scale in training.
        gated: whether an expert gates its hidden features (SwiGLU, three matrices) or is a GELU between two matrices.
    """

    experts: int = 8
    choices: int = 2
    capacity: float = 1.25
    groups: int | None = None
    dispatch: Dispatch = "einsum"
    noise: bool = False
    gated: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.choices <= self.experts:
            raise ValueError(f"a token cannot be routed to {self.choices} of {self.experts} experts")

    def room(self, tokens: int) -> int:
        """Return the maximum number of tokens that an expert takes from a group."""
        return max(1, math.ceil(self.capacity * self.choices * tokens / self.experts))


def sparsely_gated(experts: int, **changes: object) -> MoEConfig:
    """Return a config with two experts per token, weighted by the softmax over the two; noise is off by default."""
    return MoEConfig(**{"experts": experts, "choices": 2, **changes})


def switch(experts: int, **changes: object) -> MoEConfig:
    """Return a config with one expert per token, weighted by its probability."""
    return MoEConfig(**{"experts": experts, "choices": 1, **changes})


def mixtral(experts: int, **changes: object) -> MoEConfig:
    """Return a config with two gated experts per token, without dropped tokens."""
    return MoEConfig(**{"experts": experts, "choices": 2, "dispatch": "grouped", "gated": True, **changes})


class Router(nn.Module):
    """A linear layer from tokens ``[g, s, m]`` to scores ``[g, s, e]``."""

    def __init__(self, width: int, config: MoEConfig) -> None:
        super().__init__()
        self.scores = nn.Linear(width, config.experts, bias=False)
        self.spread = nn.Linear(width, config.experts, bias=False) if config.noise else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.scores(x)
        if self.spread is not None and self.training:
            scores = scores + torch.randn_like(scores) * F.softplus(self.spread(x))
        return scores


Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Experts(nn.Module):
    """The experts, with stacked matrices ``[e, in, out]`` so that they are split and multiplied together."""

    def __init__(self, experts: int, width: int, hidden: int, *, gated: bool) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(experts, width, hidden))
        self.gate = nn.Parameter(torch.empty(experts, width, hidden)) if gated else None
        self.down = nn.Parameter(torch.empty(experts, hidden, width))
        for matrix in self.parameters():
            nn.init.normal_(matrix, std=0.02)

    def forward(self, x: torch.Tensor, product: Product = torch.bmm) -> torch.Tensor:
        """
        Apply each expert to its tokens.

        Args:
            x: tokens ``[e, n, m]``, or another form that `product` multiplies with the matrices of all experts.
        """
        hidden = product(x, self.up)
        hidden = F.gelu(hidden) if self.gate is None else F.silu(product(x, self.gate)) * hidden
        return product(hidden, self.down)


class MoE(nn.Module):
    """
    A mixture of experts in the place of a feed-forward layer, from ``[batch, length, m]`` to the same shape and a
    balancing loss: a scalar that penalizes uneven use, to be added to the step's loss with a small weight.
    """

    def __init__(self, width: int, hidden: int, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        self.router = Router(width, config)
        self.experts = Experts(config.experts, width, hidden, gated=config.gated)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        config = self.config
        tokens = x if config.groups is None else x.reshape(config.groups, -1, x.size(-1))
        scores = self.router(tokens)
        probabilities = scores.softmax(-1)
        if config.choices == 1:
            weights, chosen = probabilities.topk(1, dim=-1)
        else:
            best, chosen = scores.topk(config.choices, dim=-1)
            weights = best.softmax(-1)
        mixed = _MIXED[config.dispatch](tokens, weights, chosen, self.experts, config)
        return mixed.reshape(x.shape), balance(probabilities, chosen)


def balance(probabilities: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """
    Return the balancing loss ``mean over g of e * sum over experts i of f[g, i] * p[g, i]`` (GShard, algorithm 1).

    ``f[g, i]`` is the fraction of group g's first choices that go to expert i, and ``p[g, i]`` the mean probability of
    i. The loss is one for an even use. The mean over groups is additive for any division of the groups; a product of
    means is not.

    Args:
        probabilities: ``[g, s, e]``.
        chosen: ``[g, s, k]``, the best first.
    """
    experts = probabilities.size(-1)
    first = one_hot(chosen[..., 0], experts).to(probabilities.dtype)
    return experts * (first.mean(1) * probabilities.mean(1)).sum(-1).mean()


def one_hot(indices: torch.Tensor, size: int) -> torch.Tensor:
    """Return ``[..., size]`` with True at each index, and without True for an index out of range."""
    return indices.unsqueeze(-1) == torch.arange(size, device=indices.device)


def places(chosen: torch.Tensor, experts: int) -> torch.Tensor:
    """
    Return the place ``[g, k, s]`` of each choice in its expert's queue: first choices in token order, then second ones.

    Args:
        chosen: ``[g, k, s]``.
    """
    taken = one_hot(chosen.flatten(1), experts).long()
    before = taken.cumsum(1) - taken
    return (before * taken).sum(-1).reshape(chosen.shape)


def _by_einsum(
    x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, experts: Experts, config: MoEConfig
) -> torch.Tensor:
    chosen, room = chosen.transpose(1, 2), config.room(x.size(1))
    expert = one_hot(chosen, config.experts).to(x.dtype)
    place = one_hot(places(chosen, config.experts), room).to(x.dtype)
    dispatch = torch.einsum("gkse,gksc->gsec", expert, place)
    combine = torch.einsum("gkse,gksc->gsec", expert * weights.transpose(1, 2).unsqueeze(-1), place)
    sent = torch.einsum("gsec,gsm->egcm", dispatch, x)
    done = experts(sent.flatten(1, 2)).reshape(sent.shape)
    return torch.einsum("gsec,egcm->gsm", combine, done)


def _by_scatter(
    x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, experts: Experts, config: MoEConfig
) -> torch.Tensor:
    (groups, tokens, width), room = x.shape, config.room(x.size(1))
    chosen, slots = chosen.transpose(1, 2), config.experts * room
    place = places(chosen, config.experts)
    fits = (place < room).flatten(1).unsqueeze(-1)
    # Tokens that do not fit go to an extra slot, which is never read.
    slot = torch.where(fits, (chosen * room + place).flatten(1).unsqueeze(-1), slots).expand(-1, -1, width)
    source = x.unsqueeze(1).expand(-1, config.choices, -1, -1).flatten(1, 2)
    sent = x.new_zeros(groups, slots + 1, width).scatter(1, slot, source)[:, :slots]
    sent = sent.reshape(groups, config.experts, room, width).transpose(0, 1)
    done = experts(sent.flatten(1, 2)).reshape(sent.shape).transpose(0, 1)
    taken = done.flatten(1, 2).gather(1, slot.clamp(max=slots - 1))
    weighted = taken * (weights.transpose(1, 2).flatten(1).unsqueeze(-1) * fits)
    return weighted.reshape(groups, config.choices, tokens, width).sum(1)


def _by_grouped_products(
    x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, experts: Experts, config: MoEConfig
) -> torch.Tensor:
    width = x.size(-1)
    expert, order = chosen.flatten().sort(stable=True)
    ends = one_hot(expert, config.experts).sum(0).cumsum(0)
    sent = x.flatten(0, 1)[order // config.choices]
    done = experts(sent, lambda rows, matrices: grouped_mm(rows, matrices, ends))
    weighted = done[order.argsort()] * weights.reshape(-1, 1)
    return weighted.reshape(-1, config.choices, width).sum(1)


_MIXED: dict[Dispatch, Callable[..., torch.Tensor]] = {
    "einsum": _by_einsum,
    "scatter": _by_scatter,
    "grouped": _by_grouped_products,
}


def through(blocks: Iterable[nn.Module], x: torch.Tensor, *context: object) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return `x` after all blocks, and the balancing losses of the blocks with experts."""
    losses: list[torch.Tensor] = []
    for block in blocks:
        x, *more = unpacked(block(x, *context))
        losses.extend(more)
    return x, losses


def unpacked(found: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return the output of a layer as a tuple: its result and, if it has experts, their balancing loss."""
    return found if isinstance(found, tuple) else (found,)


def balanced(
    output: tuple[torch.Tensor, list[torch.Tensor]],
    labels: torch.Tensor,
    *,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    weight: float = 0.01,
) -> torch.Tensor:
    """Return the loss of a model that returns ``(scores, balancing losses)``, with the balancing losses weighted."""
    scores, losses = output
    return loss(scores, labels) + weight * torch.stack(losses).sum()
