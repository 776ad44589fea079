"""
Mixture of experts: of many feed-forward layers each token is computed by the few that a router chooses for it.

After Shazeer et al., "Outrageously Large Neural Networks" (2017, `sparsely_gated`), Fedus et al., "Switch
Transformers" (2021, `switch`) and Jiang et al., "Mixtral of Experts" (2024, `mixtral`), in the form of Lepikhin et
al., "GShard" (2020): tokens come in groups, and in each group an expert has room for so many.

The letters of the shapes: g groups of s tokens, e experts with room for c tokens of a group, k experts of a token,
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
How tokens reach their experts and come back. ``einsum`` multiplies by one-hot masks ``[g, s, e, c]``, as GShard does;
``scatter`` writes into the experts' room by index and gathers from it; ``grouped`` sorts all tokens by expert and
multiplies matrices of as many rows as each expert has, so that none is dropped and no room stays empty.
"""


@dataclass(frozen=True)
class MoEConfig:
    """
    A mixture of experts.

    Args:
        experts: how many there are.
        choices: how many compute each token. Of one choice the weight is the router's probability, of several the
            softmax over those that are chosen.
        capacity: an expert has room for ``capacity * choices / experts`` of a group's tokens; of those beyond, the
            first choices of later tokens and the second choices before them, an expert computes nothing. Not for
            ``grouped``, which drops none.
        groups: into how many groups the tokens of a batch are divided. None: each sequence is one. Room and places are
            counted group by group, so groups can be shared among devices and micro-batches, and tokens of one group
            cannot: there should be as many groups as parts of the batch, or more.
        noise: whether the router adds normal noise of a learned size while training.
        gated: whether an expert multiplies its hidden features by gates (SwiGLU, three matrices) or is a GELU between
            two matrices.
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
        """For how many of a group's tokens an expert has room."""
        return max(1, math.ceil(self.capacity * self.choices * tokens / self.experts))


def sparsely_gated(experts: int, **changes: object) -> MoEConfig:
    """Two experts for each token, weighted by the softmax over the two; noise is off unless asked for."""
    return MoEConfig(**{"experts": experts, "choices": 2, **changes})


def switch(experts: int, **changes: object) -> MoEConfig:
    """One expert for each token, weighted by its probability."""
    return MoEConfig(**{"experts": experts, "choices": 1, **changes})


def mixtral(experts: int, **changes: object) -> MoEConfig:
    """Two gated experts for each token, and none is dropped."""
    return MoEConfig(**{"experts": experts, "choices": 2, "dispatch": "grouped", "gated": True, **changes})


class Router(nn.Module):
    """Scores ``[g, s, e]`` of tokens ``[g, s, m]``."""

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
    """The experts' matrices, stacked ``[e, in, out]``, so that they are split and multiplied together."""

    def __init__(self, experts: int, width: int, hidden: int, *, gated: bool) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(experts, width, hidden))
        self.gate = nn.Parameter(torch.empty(experts, width, hidden)) if gated else None
        self.down = nn.Parameter(torch.empty(experts, hidden, width))
        for matrix in self.parameters():
            nn.init.normal_(matrix, std=0.02)

    def forward(self, x: torch.Tensor, product: Product = torch.bmm) -> torch.Tensor:
        """
        Args:
            x: tokens ``[e, n, m]``, or what else `product` multiplies with matrices of all experts.
        """
        hidden = product(x, self.up)
        hidden = F.gelu(hidden) if self.gate is None else F.silu(product(x, self.gate)) * hidden
        return product(hidden, self.down)


class MoE(nn.Module):
    """
    A mixture of experts instead of a feed-forward layer, from ``[batch, length, m]`` to the same and the loss of
    an uneven use of the experts, a scalar to be added to the step's loss with a small weight.
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
    One where all experts are used alike, and more where not: of each group the sum over experts of their share of
    first choices times their mean probability, times their number; on average over the groups (GShard, algorithm 1).

    An average over groups adds up over any division of them, which the product of two averages would not.

    Args:
        probabilities: ``[g, s, e]``.
        chosen: ``[g, s, k]``, the best first.
    """
    experts = probabilities.size(-1)
    first = one_hot(chosen[..., 0], experts).to(probabilities.dtype)
    return experts * (first.mean(1) * probabilities.mean(1)).sum(-1).mean()


def one_hot(indices: torch.Tensor, size: int) -> torch.Tensor:
    """True at the index, ``[..., size]``; nowhere for an index beyond."""
    return indices.unsqueeze(-1) == torch.arange(size, device=indices.device)


def places(chosen: torch.Tensor, experts: int) -> torch.Tensor:
    """
    The place ``[g, k, s]`` of each choice among those of its expert: all first choices in the order of tokens, then
    all second ones.

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
    # One slot more than there are, which nobody reads, for what does not fit.
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
    """`x` after all blocks, and the balancing losses of those that give one."""
    losses: list[torch.Tensor] = []
    for block in blocks:
        x, *more = unpacked(block(x, *context))
        losses.extend(more)
    return x, losses


def unpacked(found: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """What a layer gives: its result and, if it has experts, their balancing loss."""
    return found if isinstance(found, tuple) else (found,)


def balanced(
    output: tuple[torch.Tensor, list[torch.Tensor]],
    labels: torch.Tensor,
    *,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    weight: float = 0.01,
) -> torch.Tensor:
    """The loss of a model that gives ``(scores, balancing losses)``, the latter with a weight."""
    scores, losses = output
    return loss(scores, labels) + weight * torch.stack(losses).sum()
