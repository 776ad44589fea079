"""Graphs of the shipped models: their form, their source locations, and their numbers compared with eager PyTorch."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from captured_runs import compare, doubled, graph_calls, op_name, run_captured, run_eager

from shardwright.api.training_step import TrainingStep
from shardwright.lowering.capture.capture import CapturedStep, capture_step
from shardwright.lowering.fused.table import BY_DEFINITION
from shardwright.models import MODELS, training_step
from shardwright.models.bert import BertConfig, bert_step
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.models.vgg import VGGConfig, vgg_step

TINY = sorted(name for name in MODELS if name.endswith("-tiny"))
GPT2 = GPT2Config(layers=1, width=16, heads=2, vocabulary=23, positions=8, attention="decomposed")
BERT = BertConfig(layers=1, width=16, heads=2, vocabulary=23, positions=8, attention="fused")
FORMS = {
    "gpt2-decomposed": lambda: gpt2_step(GPT2, batch=3, length=8),
    "bert-fused": lambda: bert_step(BERT, batch=3, length=8),
    "vgg-batch-norm": lambda: vgg_step(
        VGGConfig(widths=(2, 2, 2, 2, 2), hidden=8, image=32, classes=3, batch_norm=True), batch=4
    ),
}


@dataclass(frozen=True)
class Shipped:
    """A shipped model's step, and its graph in float64."""

    step: TrainingStep
    captured: CapturedStep


@pytest.fixture(scope="module", params=[*TINY, *FORMS])
def shipped(request: pytest.FixtureRequest) -> Shipped:
    """Return a model's step, captured once for all tests of the model."""
    step = FORMS[request.param]() if request.param in FORMS else training_step(request.param)
    return Shipped(step, capture_step(step.model, step.loss, step.optimizer, step.batch, dtype=torch.float64))


def test_a_graph_has_ops_of_known_form_and_all_results_are_used(shipped: Shipped) -> None:
    step = shipped.captured
    allowed = (operator.getitem, *BY_DEFINITION)
    for node, _ in graph_calls(step):
        assert node.op == "call_function"
        assert isinstance(node.target, torch._ops.OpOverload) or node.target in allowed
        assert "meta" not in str(node.target)
        assert node.users
        assert "val" in node.meta
    banned = {"detach", "alias", "lift_fresh_copy", "_unsafe_view"}
    assert not banned & {op_name(node) for node, _ in graph_calls(step)}
    placeholders = step.graph.find_nodes(op="placeholder")
    assert [tuple(p.meta["val"].shape) for p in placeholders] == [given.shape for given in step.inputs]
    assert len(step.graph.output_node().args[0]) == len(step.outputs)  # type: ignore[arg-type]


def test_every_node_has_a_line_and_backward_the_layer_of_its_forward(shipped: Shipped) -> None:
    model, calls = shipped.step.build_model(), graph_calls(shipped.captured)
    layers = {path for path, _ in model.named_modules()}
    forward = {origin.layer for _, origin in calls if origin.phase == "forward"}
    for node, origin in calls:
        assert origin.layer in layers
        assert origin.line > 0, node
        assert Path(origin.file).is_file()
        if origin.phase == "backward":
            assert origin.layer in forward


def test_shipped_models_equal_eager_pytorch(shipped: Shipped) -> None:
    torch.manual_seed(0)
    model, batch = shipped.step.build_model().double(), doubled(shipped.step.batch)
    found = run_captured(shipped.captured, model, batch)
    compare(found, run_eager(model, shipped.step.loss, batch), tol=1e-10)
