"""`evaluate`, `predict` and batches of other shapes in this process, and their refusals."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Any

import pytest
import torch
from plan_keywords import with_plan
from split_cluster import split_cluster
from torch import nn

import shardwright as sw
from shardwright.api.distributed_step import DistributedStep
from shardwright.ir.mesh import Mesh
from shardwright.runtime.plan import PlanError

SGD = partial(torch.optim.SGD, lr=0.1)
LOSS = nn.functional.mse_loss


class Odd(nn.Module):
    """A model that counts its calls in a buffer, and returns further values with its result."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.unused = nn.Linear(3, 3), nn.Linear(2, 2)
        self.calls = nn.Buffer(torch.zeros(()))

    def forward(self, inputs: torch.Tensor, scale: float = 1.0) -> Any:
        """Return the result, and values that share memory with inputs and weights."""
        self.calls.add_(1)
        result = self.linear(inputs) * scale
        shared = {"given": inputs, "flat": inputs.view(-1), "weight": self.linear.weight, "calls": self.calls}
        return OrderedDict(result=result, **shared, plain=("a", 3))


def planned(model: Any, loss: Any, batch: Any, **options: Any) -> DistributedStep:
    return sw.parallelize(model, loss, SGD, batch, split_cluster(Mesh.of(gpu=1)), **with_plan(options))


def result_loss(output: Any, labels: torch.Tensor) -> torch.Tensor:
    return LOSS(output["result"], labels)


def simple(**options: Any) -> DistributedStep:
    return planned(nn.Linear(3, 2), LOSS, (torch.ones(4, 3), torch.zeros(4, 2)), **options)


def test_outputs_keep_their_structure_and_buffers_their_values():
    model = Odd()
    weight, bias = (each.detach().clone() for each in (model.linear.weight, model.linear.bias))
    step = planned(model, result_loss, (torch.ones(4, 3), torch.ones(4, 3)))
    inputs = torch.randn(5, 3)
    for _ in range(2):
        found = step.predict((inputs,))
        assert isinstance(found, OrderedDict)
        assert list(found) == ["result", "given", "flat", "weight", "calls", "plain"]
        torch.testing.assert_close(found["result"], nn.functional.linear(inputs, weight, bias))
        assert torch.equal(found["flat"], inputs.view(-1))
        assert torch.equal(found["weight"], weight)
        assert found["plain"] == ("a", 3)
        # The write of `forward` is visible in its output, and is not kept.
        assert found["calls"] == 1
    found["given"].zero_()
    assert inputs.any()
    assert step.gather("calls") == 0
    step((torch.ones(4, 3), torch.ones(4, 3)))
    assert step.gather("calls") == 1


def test_a_model_in_either_mode_is_evaluated_in_eval_mode():
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.9))
    plain = nn.Linear(3, 2)
    plain.load_state_dict(model[0].state_dict())
    step = planned(model, LOSS, (torch.ones(4, 3), torch.zeros(4, 2)))
    inputs = torch.randn(3, 3)
    for mode in (True, False):
        model.train(mode)
        torch.testing.assert_close(step.predict((inputs,)), plain(inputs))
        assert model.training is mode
        assert model[1].training is mode


def test_plain_values_of_a_batch_belong_to_its_program():
    batch = {"inputs": torch.ones(4, 3), "scale": 1.0, "labels": torch.ones(4, 3)}
    step = planned(Odd(), result_loss, batch)
    inputs = torch.randn(4, 3)
    one, two = (step.predict({"inputs": inputs, "scale": scale})["result"] for scale in (1.0, 2.0))
    torch.testing.assert_close(two, 2 * one)


def test_declared_shapes_train_and_others_are_refused_with_advice():
    step = simple(shapes=[(torch.ones(3, 3), torch.ones(3, 2))])
    plain = nn.Linear(3, 2)
    plain.load_state_dict(step.state_dict())
    optimizer = SGD(plain.parameters())
    for rows in (4, 3, 4):
        inputs, labels = torch.randn(rows, 3), torch.randn(rows, 2)
        optimizer.zero_grad()
        loss = LOSS(plain(inputs), labels)
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(step((inputs, labels)), loss.detach())
    torch.testing.assert_close(step.state_dict()["weight"], plain.weight.detach())
    told = r"of '0' \[2, 3\].* planned for '0' \[4, 3\].*; '0' \[3, 3\].*drop_last.*shapes="
    with pytest.raises(PlanError, match=told):
        step((torch.ones(2, 3), torch.ones(2, 2)))
    with pytest.raises(PlanError, match=r"a batch of 2 rows, and is planned for"):
        step(step.local((torch.ones(2, 3), torch.ones(2, 2)), rows=2))
    with pytest.raises(PlanError, match="rows of a batch of 3: give it the global batch"):
        step.evaluate(step.local((torch.ones(3, 3), torch.ones(3, 2)), rows=3))


X, Y = torch.ones(4, 3), torch.zeros(4, 2)
REFUSED = [
    ((X.long(), Y), r"item '0' of shape \[4, 3\] and torch.int64, expected 2 dims, torch.float32"),
    ((X[None], Y), r"item '0' of shape \[1, 4, 3\] and torch.float32, expected 2 dims"),
    ((X, Y[:3]), r"different numbers of rows: '0' has 4, '1' has 3"),
    ((X[:0], Y[:0]), "without rows"),
    ((X,), r"no item '1': found '0', expected '0' \[4, 3\], '1' \[4, 2\]"),
    ((X, Y, Y), "an (item|entry) '2', .*example"),
    ((X, "a"), "str as item '1', expected a tensor of 2 dims"),
    (X, r"given a Tensor, expected a tuple; write \(x,\)"),
]


@pytest.mark.parametrize(("batch", "message"), REFUSED)
def test_a_batch_unlike_the_example_is_refused(batch: Any, message: str):
    step = simple()
    for call in (step.evaluate, step):
        with pytest.raises(PlanError, match=message):
            call(batch)


def test_a_batch_that_the_model_cannot_take_is_refused_with_its_shape():
    step = simple()
    with pytest.raises(PlanError, match=r"the forward pass for '0' \[4, 5\].*cannot capture Linear"):
        step.predict((torch.ones(4, 5),))
    with pytest.raises(PlanError, match="part='all', expected 'whole' or 'rows'"):
        step.predict((X,), part="all")  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_the_number_of_programs_is_bounded():
    step = simple()
    step.most_programs = 2
    for rows in (1, 2, 1, 2):
        step.evaluate((X[:rows], Y[:rows]))
    with pytest.raises(PlanError, match=r"more than 2 shapes, the latest '0' \[3, 3\].*step\.most_programs"):
        step.evaluate((X[:3], Y[:3]))


def test_objects_that_may_hide_tensors_are_refused():
    class Hiding(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> Any:
            return {"result": super().forward(inputs), "cache": [object()]}

    step = planned(Hiding(3, 2), result_loss, (X, Y))
    step.evaluate((X, Y))
    with pytest.raises(PlanError, match=r"returns a object at output\['cache'\]\[0\]"):
        step.predict((X,))


def test_a_partial_batch_of_a_loader_has_to_be_declared():
    data = torch.utils.data.TensorDataset(torch.randn(11, 3), torch.randn(11, 2))
    step = simple(shapes=[(X[:3], Y[:3])])
    assert [len(batch.batch["0"]) for batch in step.loader(data, drop_last=False)] == [4, 4, 3]
    assert [len(batch.batch["0"]) for batch in step.loader(data)] == [4, 4]
    losses = [step(batch) for batch in step.loader(data, drop_last=False)]
    assert len(losses) == 3
    with pytest.raises(PlanError, match=r"has 3 rows, but 0 shapes .* drop_last=True"):
        simple().loader(data, drop_last=False)


def test_evaluation_is_in_the_precision_of_training():
    model = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2))
    plain = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2))
    plain.load_state_dict(model.state_dict())
    step = planned(model, LOSS, (X, Y), precision="bf16-mixed")
    inputs = torch.randn(5, 3)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        output = plain(inputs)
        loss = LOSS(output, torch.ones(5, 2))
    found = step.predict((inputs,))
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found, output)
    torch.testing.assert_close(step.evaluate((inputs, torch.ones(5, 2))).loss, loss)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(PlanError, match=r"evaluate\(\) was called under"):
        step.evaluate((X, Y))


def test_a_loss_module_uses_its_tensors_and_ignores_labels():
    weights, model = torch.tensor([1.0, 2.0, 4.0]), nn.Linear(3, 3)
    plain = nn.Linear(3, 3)
    plain.load_state_dict(model.state_dict())
    loss = nn.CrossEntropyLoss(weights, ignore_index=-1)
    step = planned(model, loss, (X, torch.zeros(4).long()), metrics=lambda output, labels: {"most": output.amax()})
    inputs, labels = torch.randn(3, 3), torch.tensor([0, -1, 2])
    found = step.evaluate((inputs, labels))
    torch.testing.assert_close(found.loss, loss(plain(inputs), labels).detach())
    torch.testing.assert_close(found.metrics["most"], plain(inputs).amax().detach())
    assert step.metrics == {}
