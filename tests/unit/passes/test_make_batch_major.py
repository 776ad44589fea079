"""Forms of attention whose batch dim is not the first, or is merged with other dims, are split along the batch."""

from __future__ import annotations

import math
import random

import pytest
import torch
from attention_steps import STEPS
from batch_splits import DATA_PARALLEL, outcome_of
from launches import covering
from split_cluster import split_cluster
from xdsl.context import Context

from shardwright.api.checking.cases import CheckCase
from shardwright.api.checking.check import check_interpreted
from shardwright.api.compile import import_training_step
from shardwright.dialects.aten import AtenOp
from shardwright.dialects.compute import ComputeOp, shape_of
from shardwright.dialects.spmd import CollectiveOp
from shardwright.dialects.step import BACKWARD
from shardwright.dialects.train import is_update
from shardwright.ir.mesh import Mesh
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.step.batch_places import BatchPlace, place_in, regrouping

MESH = Mesh.of(gpu=2)
FORMS = {
    "dp": f"{DATA_PARALLEL},program,finish",
    "duplex": f"{DATA_PARALLEL},program{{mode=duplex parts=2}},finish",
    "accumulation": f"{DATA_PARALLEL},program{{parts=4}},finish",
    "stages": (f"partition-stages{{stages=2}},{DATA_PARALLEL},program{{mode=pipeline parts=4 schedule=1f1b}},finish"),
}


@pytest.mark.parametrize("name", STEPS)
def test_data_parallelism_communicates_only_gradients_and_computes_nothing_twice(name: str):
    step = STEPS[name]()
    parameters = {tuple(value.shape) for value in step.model.parameters()}  # type: ignore[union-attr]
    module = import_training_step(step)
    add_cluster(module, split_cluster(MESH))
    run_pipeline(Context(), module, f"prepare,{DATA_PARALLEL},communicate")
    sent = [op.operand for op in module.walk() if isinstance(op, CollectiveOp) and not op.KIND.is_local]
    tensors = [value for value in sent if shape_of(value)]
    assert len(tensors) == len(list(step.model.parameters()))  # type: ignore[union-attr]
    for value in tensors:
        assert isinstance(value.owner, ComputeOp)
        assert BACKWARD in value.owner.attributes, f"%{value.name_hint} is of forward"
        assert shape_of(value) in parameters, f"%{value.name_hint} {shape_of(value)} is no gradient of a parameter"
    for op in module.walk():
        if isinstance(op, AtenOp) and not is_update(op) and not op.spec.view and any(map(shape_of, op.outs)):
            assert op.signature is not None
            shardings = (*op.signature.operands, *op.signature.results)
            assert any(each.split_axes or each.partial for each in shardings), f"{op} is the same on every device"


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.thorough), torch.float64], ids=str)
@pytest.mark.parametrize(("name", "form"), covering(["multihead", "vision"], FORMS))
def test_the_program_is_equal_to_one_device(name: str, form: str, dtype: torch.dtype):
    pipeline = f"prepare,{FORMS[form]}"
    case = CheckCase(STEPS[name], MESH, dtype=dtype, steps=2, cluster=split_cluster(MESH), pipeline=pipeline)
    result = check_interpreted(case)
    assert result.passed, str(result)


@pytest.mark.parametrize("number", covering([4, 14]))
def test_a_random_model_can_be_accumulated(number: int):
    found = outcome_of(number, check=True)
    assert found.refusal == ""
    assert found.differs == ""
    assert found.gathers == 0
    assert found.refused, "without the pass it is not split, or it would show nothing"


def test_a_batch_norm_is_refused_by_its_name():
    found = outcome_of(5)
    assert found.needs_whole
    assert not found.is_ours
    assert '"blocks.0.parts.norm"' in found.refusal
    assert "its statistics are computed over dim 0 of" in found.refusal


def test_views_give_every_requested_order():
    generator = random.Random(0)
    merged = 0
    for _ in range(300):
        factors = [generator.choice((1, 2, 3, 4)) for _ in range(generator.randint(1, 5))]
        at, rows = generator.randrange(len(factors) + 1), generator.choice((2, 4, 6))
        sizes, stride = [*factors[:at], rows, *factors[at:]], math.prod(factors[at:])
        source, target = _dims(generator, sizes), _dims(generator, sizes)
        before, after = place_in(source, rows, stride), place_in(target, rows, stride)
        assert before is not None
        assert after is not None
        merged += before.is_merged or after.is_merged
        values = torch.arange(math.prod(sizes)).view(source)
        steps = regrouping(source, target, stride, before, after, rows)
        assert steps is not None
        found = _batch_major(values, before).reshape(steps.first)
        found = found.permute(steps.order).reshape(target) if steps.order else found.reshape(target)
        assert torch.equal(found, _batch_major(values.view(target), after)), (source, target, rows, stride)
    assert merged > 100


def _dims(generator: random.Random, sizes: list[int]) -> tuple[int, ...]:
    """Merge factors into dims at random, in order, and return the sizes."""
    dims = [1]
    for size in sizes:
        if generator.random() < 0.5:
            dims[-1] *= size
        else:
            dims.append(size)
    return tuple(dims)


def _batch_major(value: torch.Tensor, place: BatchPlace) -> torch.Tensor:
    """Move the batch to the front of its dim, by the definition."""
    shape = tuple(value.shape)
    inside = (place.major, place.rows, place.minor)
    opened = value.reshape(*shape[: place.dim], *inside, *shape[place.dim + 1 :])
    return opened.transpose(place.dim, place.dim + 1).reshape(shape)
