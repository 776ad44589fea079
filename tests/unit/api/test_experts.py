"""Experts train as on one device for all shardings of their matrices and tokens."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from itertools import product

import pytest
import torch
from launches import names_of, step_of
from split_cluster import split_cluster
from torch import nn

from shardwright.api.checking.cases import CheckCase, imported, plan_case
from shardwright.api.checking.check import check_interpreted
from shardwright.api.training_step import TrainingStep
from shardwright.dialects.compute import ComputeOp
from shardwright.ir.mesh import parse_mesh
from shardwright.models.moe import MoE, MoEConfig, balanced, mixtral, sparsely_gated, switch
from shardwright.models.transformer import token_cross_entropy

WIDTH, HIDDEN, CLASSES = 12, 16, 7
BATCH, LENGTH = 8, 6


class OneLayer(nn.Module):
    """A mixture of experts, and a classifier of its tokens."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.moe = MoE(WIDTH, HIDDEN, config)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        y, balance = self.moe(x)
        return self.head(x + y), [balance]


def one_layer(config: MoEConfig) -> TrainingStep:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, LENGTH, WIDTH, generator=generator)
    labels = torch.randint(CLASSES, (BATCH, LENGTH), generator=generator)
    loss = partial(balanced, loss=token_cross_entropy)
    return TrainingStep(partial(OneLayer, config), loss, partial(torch.optim.AdamW, lr=1e-2), (x, labels))


def pin(value: str, *axes: str) -> str:
    """Return a pin of a value, with the axes that split each dim."""
    dims = (", ".join(f'"{axis}"' for axis in each.split()) for each in axes)
    return f"[[pin]]\nvalue = \"{value}\"\nsharding = '[{', '.join(f'{{{dim}}}' for dim in dims)}]'\n"


def on(batch: str, experts: str = "", hidden: str = "") -> str:
    """Return pins that split the batch, the experts, and the hidden features of each expert."""
    pins = pin("batch.0", batch, "", "") + pin("batch.1", batch, "")
    for end in ("", ".grad"):
        pins += pin(f"moe.experts.up{end}", experts, "", hidden) + pin(f"moe.experts.down{end}", experts, hidden, "")
    return pins


CONFIGS = {
    "einsum": sparsely_gated(4),
    "scatter": switch(4, dispatch="scatter"),
    "grouped": mixtral(4),
    "two groups": sparsely_gated(4, groups=2),
    **{f"einsum of {count}": sparsely_gated(count) for count in (5, 6, 7)},
}
PLACES = {
    "experts on 2": ("2", on("a0", "a0")),
    "experts on 4": ("4", on("a0", "a0")),
    "experts on all of 2x2": ("2x2", on("a0 a1", "a0 a1")),
    "experts on an axis of 2x2": ("2x2", on("a0 a1", "a1")),
    "experts and within": ("2x2", on("a0", "a0", "a1")),
    "within experts": ("2", on("", "", "a0")),
    "data": ("4", "dp"),
    "all": ("4", "zero3"),
}
CASES = [
    *product(["einsum"], [place for place in PLACES if place != "data"]),
    ("scatter", "data"),
    *product(["grouped"], ["experts on an axis of 2x2", "within experts", "data"]),
    ("two groups", "experts on 2"),
    # Numbers of experts that no number of devices divides (HAP, figure 17).
    *product(["einsum of 5", "einsum of 6", "einsum of 7"], ["experts on 4"]),
]


ALWAYS = {
    ("einsum", "experts on all of 2x2"),
    ("einsum", "experts and within"),
    ("einsum", "all"),
    ("scatter", "data"),
    ("grouped", "experts on an axis of 2x2"),
    ("grouped", "within experts"),
    ("two groups", "experts on 2"),
    ("einsum of 5", "experts on 4"),
}
"""Cases that run without `--thorough`: every place, every way to dispatch tokens, and one odd number of experts."""


def case(config: str, place: str) -> CheckCase:
    mesh, pins = PLACES[place]
    cluster = split_cluster(parse_mesh(mesh))
    return CheckCase(
        step_of(one_layer, CONFIGS[config]), parse_mesh(mesh), pins, torch.float64, steps=1, cluster=cluster
    )


@pytest.mark.parametrize(("config", "place"), names_of(CASES, ALWAYS.__contains__))
def test_experts_train_as_one_device_does(config: str, place: str):
    result = check_interpreted(case(config, place))
    assert result.passed, str(result)


@pytest.mark.parametrize("place", ["experts on 4", "experts on an axis of 2x2"])
def test_tokens_go_to_the_experts_and_come_back(place: str):
    module = imported(case("einsum", place))
    plan_case(case("einsum", place), module)
    ops = [op for op in module.walk() if isinstance(op, ComputeOp)]
    products = [op for op in ops if op.overload == "bmm" and "moe.experts" in str(op.location)]
    assert len(products) == 5  # the batch has no gradient
    for op in products:
        assert op.signature is not None
        assert all(sharding.dims[0].axes for sharding in op.signature.operands)
    assert any(op.name == "spmd.start" and "all_to_all" in str(op) for op in module.walk())


class SortedRows(nn.Module):
    """A model that multiplies groups of rows by the op of Hugging Face's mixtures of experts."""

    ends: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.empty(4, WIDTH, CLASSES))
        self.register_buffer("ends", torch.tensor([1, 1, 5, BATCH]))
        nn.init.normal_(self.experts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import_module("transformers.integrations.moe")  # The import registers the op.

        return torch.ops.transformers.grouped_mm_fallback(x, self.experts, self.ends)


def sorted_rows() -> TrainingStep:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, WIDTH, generator=generator)
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    return TrainingStep(SortedRows, nn.functional.cross_entropy, partial(torch.optim.AdamW, lr=1e-2), (x, labels))


def test_the_grouped_mm_of_transformers_is_imported_and_can_be_split():
    pytest.importorskip("transformers")
    pins = pin("batch.0", "a0", "") + pin("experts", "a1", "", "") + pin("experts.grad", "a1", "", "")
    mesh = parse_mesh("2x2")
    split = CheckCase(sorted_rows, mesh, pins, torch.float64, steps=2, cluster=split_cluster(mesh))
    assert check_interpreted(split).passed
    overloads = [op.overload for op in imported(split).walk() if isinstance(op, ComputeOp)]
    assert overloads.count("grouped_mm") == overloads.count("grouped_mm_backward") == 1
