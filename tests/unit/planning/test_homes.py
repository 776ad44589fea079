"""Other functions of a model keep what lasts where its plan does: in shares, stages and parts."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from split_cluster import split_cluster
from torch import nn
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import PlanOptions, compile_step, import_training_step
from shardwright.api.training_step import TrainingStep
from shardwright.dialects.placed import argument_attribute, sharding_of
from shardwright.dialects.ratios import PIECES
from shardwright.ir.mesh import Mesh
from shardwright.lowering.capture.capture import capture_forward
from shardwright.lowering.importer.step import import_step
from shardwright.lowering.interpreter.interpreter import interpret
from shardwright.passes.errors import PassError
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.planning.state_placement import StatePlacement
from shardwright.passes.step.step_view import StepView, step_functions


def loss_of_pieces(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """In which the 42 features are six pieces of seven that must stay whole."""
    return (output.view(-1, 6, 7).softmax(-1).log().sum((1, 2)) - labels).square().mean()


def step_of(rows: int = 8) -> TrainingStep:
    batch = torch.ones(rows, 5), torch.ones(rows)
    model = nn.Sequential(nn.Linear(5, 42, bias=False))
    return TrainingStep(model, loss_of_pieces, partial(torch.optim.SGD, lr=0.1), batch)


def planned(pins: str) -> StatePlacement:
    options = PlanOptions("fixed", pins, ratios="0.7,0.3")
    return StatePlacement.of(compile_step(step_of(), split_cluster(Mesh.of(gpu=2)), options).module)


def forward(rows: int) -> ModuleOp:
    step = step_of(rows)
    captured, _ = capture_forward(step.model, step.loss, (torch.ones(rows, 5),), returns="output")
    module = import_step(captured)
    run_pipeline(Context(), module, "canonicalize,cse,dce")
    return module


@pytest.fixture
def pins() -> str:
    return '[[pin]]\nvalue = "0.weight"\nsharding = \'[{"gpu"}, {}]\'\n'


def test_a_parameter_stays_divided_where_fewer_ops_tie_its_dims(pins: str):
    """Without the loss nothing says that features come in sevens: 0.7 of 42 would be 29."""
    homes = planned(pins)
    assert str(homes.shardings["train.param", "0.weight"].dims[0].offsets) == "(0, 28, 42)"
    module = forward(3)
    homes.plan_forward(module)
    (func,) = step_functions(module)
    weight = func.body.block.args[0]
    assert sharding_of(weight) == homes.shardings["train.param", "0.weight"]
    assert argument_attribute(weight, PIECES) is not None
    given, inputs = torch.randn(42, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    (found,) = interpret(module, [given, inputs], precision=torch.float64)
    torch.testing.assert_close(found, inputs @ given.T)


def test_batch_items_of_the_example_stay_where_they_are_and_others_are_free(pins: str):
    homes = planned(pins)
    ((key, home),) = (pair for pair in homes.shardings.items() if pair[0][1] == "batch.0 at 0")
    module = forward(8)
    homes.plan_forward(module)
    (func,) = step_functions(module)
    (batch,) = (each for each in StepView(func, homes.cluster.mesh).inputs if each.role == key[0])
    assert sharding_of(batch.argument) == home


def test_a_step_of_fewer_rows_is_cut_into_fewer_parts():
    cluster, passes = split_cluster(Mesh.of(gpu=2)), "prepare,search-strategy,program{parts=4}"
    homes = StatePlacement.of(compile_step(step_of(), cluster, PlanOptions(pipeline=passes)).module)
    assert homes.parts == 4
    for rows, parts in ((12, 4), (5, 4), (3, 3), (1, 1)):
        module = import_training_step(step_of(rows))
        run_pipeline(Context(), module, "prepare")
        assert StatePlacement.of(homes.plan_step(module)).parts <= parts


def test_a_model_that_changed_is_refused(pins: str):
    homes = planned(pins)
    other = nn.Sequential(nn.Linear(6, 42, bias=False))
    captured, _ = capture_forward(other, None, (torch.ones(3, 6),), returns="output")
    with pytest.raises(PassError, match=r"0\.weight has shape \[42, 6\], but \[42, 5\] in the plan"):
        homes.plan_forward(import_step(captured))
