"""An executor of one rank: its values and its errors."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from shardwright import runtime as rt
from shardwright.ir.counter import step_seed
from shardwright.runtime.executor import Executor
from shardwright.runtime.launch import load_step
from shardwright.runtime.plan import PlanError, plan_hash

ALONE = rt.Mesh.of(dp=1)


def plan(**changes: Any) -> rt.Plan:
    given: dict[str, Any] = {
        "name": "scale",
        "mesh": ALONE,
        "inputs": (
            rt.Value(role="param", name="weight", shape=(3,), sharding='[{"dp"}]', tied=("head",)),
            rt.Value(role="buffer", name="offset", shape=(3,)),
            rt.Value(role="buffer", name="scratch", shape=(1,), persistent=False),
            rt.Value(role="step_count"),
            rt.Value(role="batch", name="x", shape=(4, 3)),
            rt.Value(role="learning_rate", dtype="float64"),
        ),
        "outputs": (rt.Result(role="loss"), rt.Result(role="param", updates=0)),
        "optimizer": {"lr": 0.5},
    }
    return rt.Plan(**{**given, **changes})


def step(comm: rt.Communicator, weight: Any, offset: Any, scratch: Any, count: Any, x: Any, lr: Any) -> Any:
    return (x * weight).sum() + count, weight - lr * x.sum(0)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.head = self.weight
        self.register_buffer("offset", torch.arange(3.0))
        self.scratch = torch.zeros(1)


def executor(given: rt.Plan | None = None) -> Executor:
    given = given or plan()
    return Executor([rt.Stage(given, step)], rt.Communicator(ALONE, given.process_groups()))


def ready() -> Executor:
    made = executor()
    made.initialize(Scale)
    return made


def test_a_step_updates_and_counts():
    made = ready()
    batch = {"x": torch.ones(4, 3), "mode": "train"}
    assert made.step(batch).item() == 12 + 1
    assert made.step(batch, lr=1.0).item() == 12 * (1 - 0.5 * 4) + 2
    assert torch.equal(made.local(made.plan.inputs[0]), torch.full((3,), 1 - 2.0 - 4.0))


def test_a_learning_rate_may_be_a_tensor_and_is_copied():
    rate = torch.tensor(1.0)
    rates: tuple[Any, ...] = (1.0, 1, rate, rate.double(), np.float32(1), [1.0], (rate,))
    for lr in rates:
        made = ready()
        made.step({"x": torch.ones(4, 3)}, lr)
        assert torch.equal(made.local(made.plan.inputs[0]), torch.full((3,), 1 - 4.0)), lr


WRONG_RATES = (
    math.nan,
    torch.tensor(math.nan),
    -1.0,
    math.inf,
    "0.1",
    torch.ones(1),
    torch.ones(2),
    [0.1, 0.1],
    [],
    [None],
)


@pytest.mark.parametrize("lr", WRONG_RATES, ids=repr)
def test_an_invalid_learning_rate_is_refused_and_nothing_changes(lr: Any):
    made = ready()
    with pytest.raises(
        PlanError, match=r"^the learning rate is .*, expected a finite number from 0, or a tensor without"
    ):
        made.step({"x": torch.ones(4, 3)}, lr)
    assert torch.equal(made.local(made.plan.inputs[0]), torch.ones(3))
    assert made.steps == 0


def test_every_step_has_its_own_seed():
    inputs = (rt.Value(role="seed", dtype="int64"), rt.Value(role="batch", name="x", shape=(4, 3)))
    seeds: list[int] = []

    def drawing(comm: rt.Communicator, seed: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        seeds.append(int(seed))
        return x.sum()

    for seed in (7, 7, 8):
        stage = rt.Stage(plan(inputs=inputs, outputs=(rt.Result(role="loss"),)), drawing)
        made = Executor([stage], ready().comm)
        made.initialize(Scale, seed)
        for _ in range(2):
            made.step({"x": torch.ones(4, 3)})
    assert seeds[:4] == [step_seed(7, 0), step_seed(7, 1)] * 2
    assert len(set(seeds)) == 4


def test_the_state_dict_has_single_device_names():
    state = ready().state_dict()
    assert list(state) == ["weight", "head", "offset"]
    assert torch.equal(state["offset"], torch.arange(3.0))


def test_a_program_may_return_only_its_loss():
    stage = rt.Stage(plan(outputs=(rt.Result(role="loss"),)), lambda *_: torch.ones(()))
    made = Executor([stage], ready().comm)
    made.initialize(Scale)
    assert made.step({"x": torch.ones(4, 3)}).item() == 1


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            {"y": torch.ones(4, 3)},
            r"no entry 'x'; the plan expects batch 'x' \(4x3xfloat32\).* entries are 'y'",
        ),
        ({"x": 3.0}, "float entry 'x'"),
        ({"x": torch.ones(2, 3)}, r"'x' has shape \[2, 3\] and dtype torch.float32, .* \[4, 3\] and"),
        (
            {"x": torch.ones(4, 3).long()},
            "dtype torch.int64, the plan expects the global batch, .* torch.float32",
        ),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(batch: Mapping[str, Any], message: str):
    with pytest.raises(PlanError, match=message):
        ready().step(batch)


def test_a_step_before_initialize_is_refused():
    with pytest.raises(PlanError, match=r"param 'weight' .* has no value yet: call initialize\(\)"):
        executor().step({"x": torch.ones(4, 3)})


def test_another_model_than_the_planned_one_is_refused():
    with pytest.raises(PlanError, match=r"buffer 'offset' \(3xfloat32\), which the model lacks"):
        executor().initialize(lambda: nn.LayerNorm(3, bias=False))
    with pytest.raises(PlanError, match=r"the model's has shape \(4,\): plan the step again"):
        executor().initialize(lambda: nn.LayerNorm(4))


def test_a_plan_without_an_optimizer_is_refused():
    made = executor(plan(optimizer=None))
    made.initialize(Scale)
    with pytest.raises(PlanError, match="names no optimizer"):
        made.step({"x": torch.ones(4, 3)})


def test_plans_are_checked_when_made():
    with pytest.raises(ValueError, match='no axis "tp"'):
        plan(inputs=(rt.Value(role="param", name="w", shape=(4,), sharding='[{"tp"}]'),))
    with pytest.raises(ValueError, match="updates input 9 of 6"):
        plan(outputs=(rt.Result(role="param", updates=9),))


def test_the_hash_depends_on_text_and_plan():
    hashes = {plan_hash("a", [plan()]), plan_hash("b", [plan()]), plan_hash("a", [plan(name="other")])}
    assert len(hashes) == 3
    assert plan_hash("a", [plan()]) in hashes


def test_process_groups_include_those_for_gathering():
    mesh = rt.Mesh.of(a=2, b=2)
    value = rt.Value(role="param", shape=(8, 8), sharding='[{"a"}, {}], unreduced={"b" max}')
    assert plan(mesh=mesh, inputs=(value,), outputs=(), groups=(("a", "b"),)).process_groups() == (
        ("a", "b"),
        ("a",),
        ("b",),
    )


def test_values_have_local_shapes_and_slices():
    value = rt.Value(role="param", shape=(7, 2), sharding='[{"a"}, {}]')
    mesh = rt.Mesh.of(a=2)
    assert [value.local_shape(mesh, rank) for rank in (0, 1)] == [(3, 2), (4, 2)]
    assert value.slices(mesh, 1) == (slice(3, 7), slice(0, 2))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (None, "does not name the function"),
        ("no.such:thing", "'no.such:thing': No module"),
        ("math:nothing", "nothing"),
    ],
)
def test_a_step_that_cannot_be_found_is_refused(spec: str | None, message: str):
    with pytest.raises(PlanError, match=message):
        load_step(spec)


def test_shipped_models_are_loaded_by_name():
    assert load_step("mlp-tiny").batch[0].shape == (8, 12)


def test_the_step_of_a_plan_may_be_of_hugging_face():
    pytest.importorskip("transformers")
    assert load_step("hf:llama-tiny?rows=4").batch["input_ids"].shape == (4, 12)
