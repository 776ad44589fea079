"""Hugging Face models as training steps: their class, their batch, and plans that train as one device does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from split_cluster import split_cluster
from xdsl.context import Context

import shardwright as sw
from shardwright.api.checking.cases import CheckCase, imported
from shardwright.api.checking.check import check_interpreted
from shardwright.api.compile import import_training_step
from shardwright.api.steps import StepError, find_step
from shardwright.dialects.aten import OpaqueOp
from shardwright.dialects.compute import ComputeOp
from shardwright.dialects.step import CHECKPOINT, RECOMPUTED
from shardwright.ir.mesh import parse_mesh
from shardwright.models.hf.tasks import HFError, class_for
from shardwright.models.hf.tiny import TINY
from shardwright.passes.recompute import RecomputePass

transformers: Any = pytest.importorskip("transformers")

CLASSES = {
    "bert": ("masked-lm", "BertForMaskedLM"),
    "gpt2": ("causal-lm", "GPT2LMHeadModel"),
    "bart": ("seq2seq-lm", "BartForConditionalGeneration"),
    "clip": ("contrastive", "CLIPModel"),
    "whisper": ("speech-seq2seq", "WhisperForConditionalGeneration"),
    "resnet": ("image-classification", "ResNetForImageClassification"),
    "wav2vec2": ("audio-classification", "Wav2Vec2ForSequenceClassification"),
}
CHECKED = ("llama-tiny", "bert-tiny", "resnet-tiny")
COUNTED = ("gpt2-tiny", "vit-tiny")


@pytest.mark.parametrize("model_type", CLASSES)
def test_the_class_is_the_first_that_has_a_loss(model_type: str):
    assert class_for(transformers.AutoConfig.for_model(model_type), None) == CLASSES[model_type]


def test_the_config_or_the_caller_may_choose_the_task():
    config = transformers.BertConfig(architectures=["BertForSequenceClassification"])
    assert class_for(config, None) == ("sequence-classification", "BertForSequenceClassification")
    assert class_for(config, "question-answering")[1] == "BertForQuestionAnswering"
    assert class_for(transformers.BertConfig(is_decoder=True), None)[1] == "BertLMHeadModel"


def test_a_name_takes_settings_of_its_config():
    step = find_step("hf:llama-tiny?hidden_size=48&num_attention_heads=6&num_key_value_heads=3&rows=4&length=5")
    model = step.build_model()
    assert model.get_parameter("model.layers.0.self_attn.k_proj.weight").shape == (24, 48)
    assert isinstance(step.batch, dict)
    assert step.batch["input_ids"].shape == step.batch["labels"].shape == (4, 5)


def test_settings_reach_configs_within_a_config():
    model = find_step("hf:clip-tiny?vision_config.hidden_size=48&text_config.vocab_size=77").build_model()
    assert model.get_parameter("visual_projection.weight").shape == (16, 48)
    assert model.get_parameter("text_model.embeddings.token_embedding.weight").shape == (77, 32)


def test_dropout_is_set_everywhere():
    config = sw.from_hf("wav2vec2", dropout=0).build_model().config
    dropped = {name: p for name, p in vars(config).items() if "drop" in name}
    assert dropped["layerdrop"] == dropped["hidden_dropout"] == 0.0
    assert not any(dropped.values())


def test_settings_that_training_needs_are_set():
    config: Any = sw.from_hf("t5-tiny").build_model().config
    assert (config.decoder_start_token_id, config.use_cache) == (0, False)


def test_a_given_model_is_trained_unchanged():
    model = find_step("hf:gpt2-tiny").build_model()
    step = sw.from_hf(model, rows=2)
    assert step.build_model() is model
    assert torch.isfinite(step.compute_loss(model))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("hf:lama", "no model type 'lama'; did you mean .*llama"),
        ("hf:llama?hidden=64", "the config of 'llama' has no 'hidden'; it has .*hidden_size"),
        ("hf:llama?hidden_size", "not of the form name=value"),
        ("hf:llama?task=ctc", "no class of 'llama' for 'ctc'; it has one for: causal-lm, sequence-classification"),
        ("hf:llama?task=sing", "no task 'sing'; choose one of speech-seq2seq"),
        ("hf:timesfm", "no task is known for the model type 'timesfm'; build the model yourself"),
        ("hf:resnet?batch=3", "batch cannot be given in a name"),
    ],
)
def test_an_invalid_spec_is_refused_with_advice(spec: str, message: str):
    with pytest.raises(StepError, match=message):
        find_step(spec)


def test_a_model_without_a_loss_needs_a_batch():
    with pytest.raises(HFError, match="is unknown; give from_hf"):
        sw.from_hf(transformers.BertModel(transformers.BertConfig(**TINY["bert-tiny"].overrides)))


@pytest.mark.parametrize("name", CHECKED)
def test_a_plan_trains_as_one_device_does(name: str):
    mesh = parse_mesh("2x2")
    case = CheckCase(f"hf:{name}", mesh, optimizer="sgd", steps=1, cluster=split_cluster(mesh))
    result = check_interpreted(case)
    assert result.passed, str(result)


@pytest.mark.parametrize("name", COUNTED)
def test_few_ops_lack_a_rule(name: str):
    ops = [op for op in imported(CheckCase(f"hf:{name}", parse_mesh("2"))).walk() if isinstance(op, ComputeOp)]
    assert sum(isinstance(op, OpaqueOp) for op in ops) < 0.02 * len(ops)


def test_checkpointing_of_the_model_is_captured():
    """Each layer is recomputed as one region, and nothing else changes."""
    step = find_step("hf:llama-tiny")
    model: Any = step.build_model()
    (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()
    module = import_training_step(replace(step, model=model.train()))
    regions = {op.attributes[CHECKPOINT] for op in module.walk() if CHECKPOINT in op.attributes}
    assert len(regions) == model.config.num_hidden_layers
    again = module.clone()
    RecomputePass().apply(Context(), again)
    assert any(RECOMPUTED in op.attributes for op in again.walk())
