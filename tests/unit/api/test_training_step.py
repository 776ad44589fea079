"""`TrainingStep`: the ways to call a model, and its refusals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from shardwright.api.training_step import TrainingStep

SGD = torch.optim.SGD
X, Y = torch.ones(2, 3), torch.zeros(2, 1)


class Returns(nn.Module):
    """A model whose result is wrapped by `wrap`."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 1)
        self.wrap = wrap

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> Any:
        return self.wrap(self.fc(x).sum() * scale)


@pytest.mark.parametrize(
    "wrap",
    [lambda v: v, lambda v: (v, v + 1), lambda v: {"loss": v}, lambda v: SimpleNamespace(loss=v)],
    ids=["tensor", "tuple", "key", "attribute"],
)
@pytest.mark.parametrize("batch", [(X, 2.0), {"x": X, "scale": 2.0}], ids=["tuple", "dict"])
def test_the_model_may_return_its_loss(wrap: Any, batch: Any) -> None:
    model = Returns(wrap)
    loss = TrainingStep(model, None, SGD, batch).compute_loss(model)
    torch.testing.assert_close(loss, model.fc(X).sum() * 2)


@pytest.mark.parametrize("batch", [(X, Y), {"input": X, "labels": Y}], ids=["tuple", "dict"])
def test_a_loss_function_takes_the_labels(batch: Any) -> None:
    model = nn.Linear(3, 1)
    loss = TrainingStep(model, nn.functional.mse_loss, SGD, batch).compute_loss(model)
    torch.testing.assert_close(loss, model(X).square().mean())


def test_a_factory_is_called_for_a_model() -> None:
    step = TrainingStep(lambda: nn.Linear(3, 1), nn.functional.mse_loss, SGD, (X, Y))
    assert isinstance(step.build_model(), nn.Linear)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"model": 3}, TypeError, r"model is a int; expected a torch.nn.Module or a function"),
        ({"loss": "mse"}, TypeError, r"loss is a str; expected a function"),
        (
            {"optimizer": SGD([X], lr=1)},
            TypeError,
            r"an instance of SGD; .*functools.partial\(torch.optim.SGD",
        ),
        ({"optimizer": None}, TypeError, r"optimizer is a NoneType"),
        ({"batch": X}, TypeError, r"batch is a Tensor; expected a tuple, list or dict"),
        ({"batch": (X,)}, ValueError, r"has one item and a loss function is given"),
        ({"batch": {"x": X}}, ValueError, r"keys \['x'\].*key 'labels'"),
        ({"batch": (1, 2)}, ValueError, r"holds no tensor"),
        ({"batch": ((X, X), Y)}, TypeError, r"batch\['0'\] is a tuple that holds tensors"),
        ({"batch": {0: X, "labels": Y}}, TypeError, r"the key 0; expected argument names"),
    ],
)
def test_an_invalid_field_is_refused(fields: dict[str, Any], error: type, message: str) -> None:
    good = {"model": nn.Linear(3, 1), "loss": nn.functional.mse_loss, "optimizer": SGD, "batch": (X, Y)}
    with pytest.raises(error, match=message):
        TrainingStep(**(good | fields))


def test_a_factory_that_returns_no_module_is_refused() -> None:
    step = TrainingStep(lambda: 3, nn.functional.mse_loss, SGD, (X, Y))  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match=r"returned a int"):
        step.build_model()


def test_a_loss_that_is_not_a_number_is_refused() -> None:
    model = nn.Linear(3, 1)
    with pytest.raises(ValueError, match=r"Linear returned a tensor of shape \(2, 1\)"):
        TrainingStep(model, None, SGD, (X,)).compute_loss(model)
    with pytest.raises(ValueError, match=r"the loss function <lambda> returned a NoneType"):
        TrainingStep(model, lambda out, labels: None, SGD, (X, Y)).compute_loss(model)  # type: ignore[arg-type]
