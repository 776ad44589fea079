"""`step.state_dict()` has the keys of the module's state dict."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from split_cluster import split_cluster
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import shardwright as sw
from shardwright.ir.mesh import Mesh


class Rotary(nn.Module):
    """A model with a non-persistent buffer, as in rotary embeddings."""

    frequencies: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", torch.arange(8.0) / 8, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.frequencies


class Kept(nn.Module):
    """A model with a buffer saved under its second name, a plain attribute, and a buffer that forward does not use."""

    def __init__(self):
        super().__init__()
        self.first = nn.Buffer(torch.arange(8.0) / 8, persistent=False)
        self.scale = nn.Buffer(self.first)
        self.attribute = torch.ones(8)
        self.alias = self.scale
        self.unused = nn.Buffer(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first * x + self.attribute * self.scale + self.alias


class Written(nn.Module):
    """A model with a buffer that each step writes and that is not saved."""

    def __init__(self):
        super().__init__()
        self.total = nn.Buffer(torch.zeros(8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x.detach().mean(0)
        return x + self.total


MODELS = {
    "rotary": lambda: nn.Sequential(nn.Linear(8, 8), Rotary(), Rotary()),
    "one name of several": lambda: nn.Sequential(nn.Linear(8, 8), Kept()),
    "written": lambda: nn.Sequential(nn.Linear(8, 8), Written()),
    "norms": lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), weight_norm(nn.Linear(8, 8))),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_module_and_the_step_load_the_state_of_each_other(name: str):
    model = MODELS[name]()
    optimizer, batch = partial(torch.optim.SGD, lr=0.1), (torch.randn(4, 8), torch.randn(4, 8))
    step = sw.parallelize(model, nn.functional.mse_loss, optimizer, batch, cluster=split_cluster(Mesh.of(gpu=1)))
    step(batch)
    other = MODELS[name]()
    found = step.state_dict()
    assert found.keys() == other.state_dict().keys() == step.state_dict(sharded=True).keys()
    other.load_state_dict(found)
    step.load_state_dict(other.state_dict())
    assert all(torch.equal(value, found[key]) for key, value in step.state_dict().items())


def test_non_persistent_buffers_in_a_state_dict_are_ignored():
    model = MODELS["rotary"]()
    optimizer, batch = partial(torch.optim.SGD, lr=0.1), (torch.randn(4, 8), torch.randn(4, 8))
    step = sw.parallelize(model, nn.functional.mse_loss, optimizer, batch, cluster=split_cluster(Mesh.of(gpu=1)))
    step.load_state_dict({**step.state_dict(), "1.frequencies": torch.zeros(8)})
    assert torch.equal(step.gather("1.frequencies"), torch.arange(8.0) / 8)
