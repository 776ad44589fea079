"""The shipped models build reproducibly, train, and allocate nothing under fake tensors."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional as F

from shardwright.models import MODELS, training_step
from shardwright.models.bert import BertConfig, bert_step
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.models.moe import Dispatch, MoE, sparsely_gated, switch
from shardwright.models.transformer import FeedForward
from shardwright.models.transgan import grown
from shardwright.models.vgg import VGGConfig, vgg_step

TINY = sorted(name for name in MODELS if name.endswith("-tiny"))
LARGE_PARAMETERS = {
    "gpt2-small": 124_439_808,
    "gpt2-48": 379_603_200,
    "bert-base": 109_514_298,
    "vit-base": 86_567_656,
    "vgg19": 143_667_240,
    "unet": 32_424_258,
    "gpt2-xl": 1_557_611_200,
    "vgg13": 133_047_848,
    "resnet50": 25_557_032,
    "llama-1b": 1_235_814_400,
    "llama-8b": 8_030_261_248,
    "mixtral-8x7b": 46_702_792_704,
}


@pytest.mark.parametrize("name", TINY)
def test_a_seed_decides_the_weights(name: str) -> None:
    step = training_step(name)
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(step.build_model().state_dict())
    for key, value in states[0].items():
        torch.testing.assert_close(states[1][key], value, rtol=0, atol=0)


@pytest.mark.parametrize("name", TINY)
def test_the_batch_does_not_depend_on_the_global_seed(name: str) -> None:
    torch.manual_seed(1)
    first = training_step(name).batch
    torch.manual_seed(2)
    second = training_step(name).batch
    pairs = zip(
        first.values() if isinstance(first, dict) else first,
        second.values() if isinstance(second, dict) else second,
        strict=True,
    )
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", TINY)
def test_a_model_learns_its_batch(name: str) -> None:
    step = training_step(name)
    torch.manual_seed(0)
    model = step.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        loss = step.compute_loss(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_gpt2_starts_with_narrow_weights_and_zero_biases():
    torch.manual_seed(0)
    parameters = dict(training_step("gpt2-tiny").build_model().named_parameters())
    assert {float(value.detach().abs().max()) for name, value in parameters.items() if name.endswith("bias")} == {0.0}
    for name in ("wte.weight", "h.0.mlp.up.weight"):
        assert 0.015 < float(parameters[name].detach().std()) < 0.025


@pytest.mark.parametrize("name", ["bert-sgmoe-tiny", "vit-switch-tiny"])
def test_an_expert_is_as_wide_as_the_feed_forward_of_a_dense_block(name: str):
    modules = list(training_step(name).build_model().modules())
    dense = next(each for each in modules if isinstance(each, FeedForward))
    sparse = next(each for each in modules if isinstance(each, MoE))
    assert sparse.experts.up.shape[1:] == dense.up.weight.T.shape


@pytest.mark.parametrize("name", sorted(LARGE_PARAMETERS))
def test_large_models_have_the_published_size_and_allocate_nothing(name: str) -> None:
    with FakeTensorMode():
        step = training_step(name)
        model = step.build_model()
    assert all(isinstance(p, FakeTensor) for p in model.parameters())
    assert sum(p.numel() for p in model.parameters()) == LARGE_PARAMETERS[name]


def test_the_manual_lists_every_model() -> None:
    manual = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    assert set(re.findall(r"`([a-z0-9.-]+)`", manual)) >= set(MODELS)


def test_dispatch_methods_agree_if_no_token_is_dropped() -> None:
    x = torch.randn(2, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = []
    for dispatch in ("einsum", "scatter", "grouped"):
        torch.manual_seed(0)
        layer = MoE(8, 12, sparsely_gated(4, capacity=2.0, dispatch=dispatch)).double()
        y, balance = layer(x)
        found.append((y, balance, *torch.autograd.grad(y.square().sum() + balance, list(layer.parameters()))))
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


@pytest.mark.parametrize("dispatch", ["einsum", "scatter"])
def test_an_expert_computes_the_first_tokens_that_choose_it(dispatch: Dispatch) -> None:
    layer = MoE(4, 6, switch(2, capacity=1.0, dispatch=dispatch))
    with torch.no_grad():
        layer.router.scores.weight.copy_(torch.tensor([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]]))
    x = torch.tensor([[1.0, 2, 3, 4]]).repeat(1, 6, 1)  # all choose the first expert, which has room for three
    y, balance = layer(x)
    assert y[0, :3].abs().sum(-1).gt(0).all()
    assert not y[0, 3:].any()
    assert 1.0 < balance.item() <= 2.0


def test_gpt2_attention_forms_agree() -> None:
    config = GPT2Config(layers=2, width=32, heads=4, vocabulary=101, positions=16)
    losses = []
    for form in ("fused", "decomposed"):
        step = gpt2_step(dataclasses.replace(config, attention=form), batch=2, length=16)
        torch.manual_seed(0)
        losses.append(step.compute_loss(step.build_model()))
    torch.testing.assert_close(losses[0], losses[1])


def test_bert_attention_forms_agree_and_padding_is_not_seen() -> None:
    config = BertConfig(layers=2, width=32, heads=4, vocabulary=101, positions=16)
    losses = []
    for form in ("fused", "decomposed"):
        step = bert_step(dataclasses.replace(config, attention=form), batch=4, length=16)
        torch.manual_seed(0)
        model = step.build_model()
        losses.append(step.compute_loss(model))
        assert isinstance(step.batch, dict)
        padded = torch.where(step.batch["mask"], step.batch["tokens"], 0)
        torch.testing.assert_close(step.compute_loss(model, step.batch | {"tokens": padded}), losses[-1])
    torch.testing.assert_close(losses[0], losses[1])


def test_vgg_takes_batch_norm() -> None:
    step = vgg_step(VGGConfig(widths=(2, 2, 2, 2, 2), hidden=8, image=32, classes=3, batch_norm=True), batch=2)
    model = step.build_model()
    assert sum(isinstance(m, torch.nn.BatchNorm2d) for m in model.modules()) == 16
    step.compute_loss(model).backward()


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"did you mean \"gpt2-small\"\?.*vgg19-tiny"):
        training_step("gpt2_small")


def test_a_grid_grows_by_repeating_pixels():
    x = torch.randn(2, 3, 3, 4)
    expected = F.interpolate(x.permute(0, 3, 1, 2), scale_factor=2, mode="nearest").permute(0, 2, 3, 1)
    assert torch.equal(grown(x, "nearest"), expected)
