"""Models that have more than rows of their own, cut in time, compute in the interpreter what one device does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from time_cuts import FORMS, SCHEDULED

from shardwright.api.checking.check import check_interpreted
from shardwright.passes.errors import PassError

MIXTURES = ("bert-sgmoe-tiny", "bert-switch-tiny", "vit-sgmoe-tiny", "vit-switch-tiny", "mixtral-tiny")
MODELS = (*MIXTURES, "transgan-tiny", "vit-tiny", "unet-tiny")
BATCH_NORMS = ("resnet50-tiny", "vgg19-bn-tiny")
SYNCHRONISED = "decompose-batch-norm,"
WAYS = {**FORMS, **SCHEDULED}
QUICK = {("mixtral-tiny", "duplex"), ("vit-sgmoe-tiny", "accumulate"), ("transgan-tiny", "3 stages, eager-1f1b")}


def cases() -> Iterator[object]:
    for model in MODELS:
        for way in WAYS:
            is_quick = (model, way) in QUICK
            yield pytest.param(model, way, id=f"{model} {way}", marks=[] if is_quick else pytest.mark.thorough)


@pytest.mark.parametrize(("model", "way"), list(cases()))
def test_a_model_cut_in_time_computes_the_same(model: str, way: str):
    result = check_interpreted(WAYS[way].case(model, steps=2 if (model, way) in QUICK else 5))
    assert result.passed, str(result)


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MODELS)
def test_a_model_cut_in_time_computes_the_same_in_float32(model: str, way: str):
    result = check_interpreted(WAYS[way].case(model, torch.float32))
    assert result.passed, str(result)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "dtype", "steps"),
    # Norms of eight numbers make 0.06 of a rounding error within five steps of the VGG, on one device too.
    [
        *((model, torch.float64, 5) for model in BATCH_NORMS),
        ("resnet50-tiny", torch.float32, 5),
        ("vgg19-bn-tiny", torch.float32, 1),
    ],
)
def test_batch_norms_that_are_synchronised_run_as_duplex(model: str, dtype: torch.dtype, steps: int):
    result = check_interpreted(FORMS["duplex"].case(model, dtype, steps, SYNCHRONISED))
    assert result.passed, str(result)


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["accumulate", "2 stages", "3 stages"])
@pytest.mark.parametrize(("model", "layer"), [("resnet50-tiny", "enter.1"), ("vgg19-bn-tiny", "features.0.1")])
def test_batch_norms_are_refused_where_parts_come_one_after_the_other(model: str, layer: str, way: str):
    told = rf'_native_batch_norm_legit_functional.* from "{layer}".*decompose-batch-norm.*nn.GroupNorm'
    with pytest.raises(PassError, match=told):
        check_interpreted(FORMS[way].case(model, steps=1))
    # Written as sums, it is the first of those that is refused.
    with pytest.raises(PassError, match=rf'from "{layer}".*complete only after all'):
        check_interpreted(FORMS[way].case(model, steps=1, first=SYNCHRONISED))
