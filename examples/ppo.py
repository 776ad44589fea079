"""
Train an actor and a critic as PPO does, on rollouts of a synthetic task.

    torchrun --nproc-per-node 2 examples/ppo.py [--steps N] [--cluster FILE]
    python examples/ppo.py --single    # on one device, in plain PyTorch

Every step rolls the policy out, with `step.predict` and the weights where training keeps them, and updates it on that
batch. All processes have the same rollouts, because `predict` returns all rows and the noise has a seed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

import shardwright as sw

ACTIONS, ROWS = 4, 64
ADAM = partial(torch.optim.Adam, lr=1e-2)
Output = tuple[torch.Tensor, torch.Tensor]


class ActorCritic(nn.Module):
    """A model from observations to the logits of actions and a value."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.actor, self.critic = nn.Linear(8, 64), nn.Linear(64, ACTIONS), nn.Linear(64, 1)

    def forward(self, observations: torch.Tensor) -> Output:
        x = self.body(observations).tanh()
        return self.actor(x), self.critic(x).squeeze(1)


def loss_of(output: Output, labels: torch.Tensor) -> torch.Tensor:
    """Return the clipped loss of the policy, the error of the values and a bonus for entropy."""
    (logits, values), (actions, before, advantages, returns) = output, labels.unbind(1)
    policy = logits.log_softmax(-1)
    ratio = (policy.gather(1, actions.long()[:, None]).squeeze(1) - before).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    entropy = -(policy.exp() * policy).sum(-1)
    return (0.5 * F.mse_loss(values, returns, reduction="none") - gain - 0.01 * entropy).mean()


def rollout(policy: Callable[[torch.Tensor], Output], number: int) -> Output:
    """Return observations, and for each the action, its logarithmic probability, its advantage and its return."""
    generator = torch.Generator().manual_seed(number)
    observations = torch.randn(ROWS, 8, generator=generator)
    logits, values = (each.cpu() for each in policy(observations))
    # The largest of the logits with Gumbel noise is a sample of their distribution.
    actions = (logits - torch.rand(ROWS, ACTIONS, generator=generator).log().neg().log()).argmax(-1)
    before = logits.log_softmax(-1).gather(1, actions[:, None]).squeeze(1)
    rewards = (actions == observations[:, :ACTIONS].argmax(-1)).float()
    return observations, torch.stack([actions.float(), before, rewards - values, rewards], 1)


def train(steps: int, cluster: str = "auto") -> Iterator[float]:
    """Train, and yield the loss of every step."""
    example = torch.zeros(ROWS, 8), torch.zeros(ROWS, 4)
    step = sw.parallelize(ActorCritic(), loss_of, ADAM, example, cluster)
    for number in range(steps):
        yield step(rollout(lambda observations: step.predict((observations,)), number)).item()


def train_single(steps: int) -> Iterator[float]:
    """Do the same in plain PyTorch."""
    model = ActorCritic()
    optimizer = ADAM(model.parameters())
    for number in range(steps):
        with torch.no_grad():
            observations, labels = rollout(model, number)
        loss = loss_of(model(observations), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cluster", default="auto")
    parser.add_argument("--single", action="store_true", help="train in plain PyTorch on one CPU")
    options = parser.parse_args()
    losses = train_single(options.steps) if options.single else train(options.steps, options.cluster)
    for number, loss in enumerate(losses):
        if os.environ.get("RANK", "0") == "0":
            print(f"step {number}  loss {loss:.6f}", flush=True)
