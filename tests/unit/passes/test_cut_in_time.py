"""Models with ops that are not row by row, micro-batched, have the results of one device in the interpreter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from time_cuts import FORMS, SCHEDULED

from shardwright.api.checking.check import check_interpreted
from shardwright.passes.errors import PassError

MIXTURES = ("bert-sgmoe-tiny", "bert-switch-tiny", "vit-sgmoe-tiny", "vit-switch-tiny", "mixtral-tiny")
MODELS = (*MIXTURES, "transgan-tiny", "vit-tiny", "unet-tiny")
HUGGING_FACE = ("hf:swin-tiny", "hf:whisper-tiny")
"""Models that read by strides, and that add positions into zeros in every micro-batch."""
BATCH_NORMS = ("resnet50-tiny", "vgg19-bn-tiny")
SYNCHRONISED = "decompose-batch-norm,"
WAYS = {**FORMS, **SCHEDULED}
QUICK = {("mixtral-tiny", "duplex"), ("vit-sgmoe-tiny", "accumulate"), ("hf:whisper-tiny", "accumulate")}
"""Cases that run without `--thorough`; on ranks, other files run experts gathered by each part, and a GAN in stages."""


def cases() -> Iterator[object]:
    for model in MODELS:
        for way in WAYS:
            is_quick = (model, way) in QUICK
            yield pytest.param(model, way, id=f"{model} {way}", marks=[] if is_quick else pytest.mark.thorough)


@pytest.mark.parametrize(("model", "way"), list(cases()))
def test_a_micro_batched_model_equals_one_device(model: str, way: str):
    result = check_interpreted(WAYS[way].case(model, steps=2 if (model, way) in QUICK else 5))
    assert result.passed, str(result)


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MODELS)
def test_a_micro_batched_model_equals_one_device_in_float32(model: str, way: str):
    result = check_interpreted(WAYS[way].case(model, torch.float32))
    assert result.passed, str(result)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "dtype", "steps"),
    # Batch norms of eight numbers amplify a rounding error to 0.06 in five steps of VGG, on one device too.
    [
        *((model, torch.float64, 5) for model in BATCH_NORMS),
        ("resnet50-tiny", torch.float32, 5),
        ("vgg19-bn-tiny", torch.float32, 1),
    ],
)
def test_synchronised_batch_norms_run_as_duplex(model: str, dtype: torch.dtype, steps: int):
    result = check_interpreted(FORMS["duplex"].case(model, dtype, steps, SYNCHRONISED))
    assert result.passed, str(result)


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["accumulate", "2 stages", "3 stages"])
@pytest.mark.parametrize(("model", "layer"), [("resnet50-tiny", "enter.1"), ("vgg19-bn-tiny", "features.0.1")])
def test_batch_norms_are_refused_in_sequential_micro_batches(model: str, layer: str, way: str):
    told = rf'_native_batch_norm_legit_functional.* from "{layer}".*decompose-batch-norm.*nn.GroupNorm'
    with pytest.raises(PassError, match=told):
        check_interpreted(FORMS[way].case(model, steps=1))
    # If it is decomposed into sums, the first sum is refused.
    with pytest.raises(PassError, match=rf'from "{layer}".*complete only after all'):
        check_interpreted(FORMS[way].case(model, steps=1, first=SYNCHRONISED))


@pytest.mark.parametrize(
    ("model", "way"),
    [
        pytest.param(model, way, marks=[] if (model, way) in QUICK else pytest.mark.thorough)
        for model in HUGGING_FACE
        for way in FORMS
    ],
)
def test_a_micro_batched_model_of_hugging_face_equals_one_device(model: str, way: str):
    result = check_interpreted(FORMS[way].case(model, steps=2))
    assert result.passed, str(result)


@pytest.mark.thorough
def test_a_balancing_loss_waits_for_the_sums_of_both_parts_or_is_refused():
    result = check_interpreted(FORMS["duplex"].case("hf:mixtral-tiny", torch.float32, steps=2))
    assert result.passed, str(result)
    told = r"needs %\S+, which is complete only after all 2 parts .* \(the sum over them is 'aten\.\S+' op .*mixtral"
    with pytest.raises(PassError, match=told):
        check_interpreted(FORMS["accumulate"].case("hf:mixtral-tiny", torch.float32, steps=1))


@pytest.mark.thorough
@pytest.mark.parametrize("way", FORMS)
def test_a_loss_that_compares_rows_is_refused(way: str):
    told = r"'aten.mm' op %\S+ from the model itself \(.*modeling_clip.*combines rows with one another"
    with pytest.raises(PassError, match=told):
        check_interpreted(FORMS[way].case("hf:clip-tiny", steps=1))
