"""Updates in place equal the single-tensor updates of `torch.optim`."""

from typing import Any

import pytest
import torch
from torch import nn

from shardwright.runtime.optimizers import adam_, adamw_, assign_, increment, sgd_

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
NARROW = {torch.bfloat16: 1e-2, torch.float16: 1e-3}


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = (TOLERANCE | NARROW)[found.dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * 1e-3)


def gradients(shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, dtype=dtype, generator=generator) for _ in range(6)]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(), (5,), (33, 7), (0, 4)])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.3},
        {"weight_decay": 0.3, "maximize": True},
        {"weight_decay": 0.3, "amsgrad": True},
    ],
)
@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
@pytest.mark.parametrize("as_tensor", [True, False])
def test_adam(dtype: torch.dtype, shape: tuple[int, ...], settings: dict[str, Any], kind: str, as_tensor: bool):
    given = gradients(shape, dtype)
    reference = nn.Parameter(given[0].clone())
    optimizer = getattr(torch.optim, kind)([reference], lr=0.02, foreach=False, fused=False, **settings)
    param, exp_avg, exp_avg_sq = given[0].clone(), torch.zeros_like(given[0]), torch.zeros_like(given[0])
    largest = torch.zeros_like(param) if settings.get("amsgrad") else None
    kept = [param, exp_avg, exp_avg_sq] if largest is None else [param, exp_avg, exp_avg_sq, largest]
    update = {"Adam": adam_, "AdamW": adamw_}[kind]
    for number, grad in enumerate(given, 1):
        reference.grad = grad.clone()
        optimizer.step()
        step = torch.tensor(float(number)) if as_tensor else number
        lr = torch.tensor(0.02, dtype=torch.float64) if as_tensor else 0.02
        results = update(param, grad, exp_avg, exp_avg_sq, step, lr, max_exp_avg_sq=largest, **settings)
        assert all(a is b for a, b in zip(results, kept, strict=True))
    assert_close(param, reference.detach())
    assert_close(exp_avg_sq, optimizer.state[reference]["exp_avg_sq"])
    if largest is not None:
        assert_close(largest, optimizer.state[reference]["max_exp_avg_sq"])


@pytest.mark.parametrize("dtype", TOLERANCE | NARROW)
@pytest.mark.parametrize("shape", [(), (33, 7), (0, 4)])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weight_decay": 0.1},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"momentum": 0.9, "dampening": 0.4},
        {"momentum": 0.9, "dampening": 0.4, "maximize": True, "weight_decay": 0.1},
    ],
)
def test_sgd(dtype: torch.dtype, shape: tuple[int, ...], settings: dict[str, Any]):
    given = gradients(shape, dtype)
    reference = nn.Parameter(given[0].clone())
    optimizer = torch.optim.SGD([reference], lr=0.1, foreach=False, fused=False, **settings)
    param = given[0].clone()
    buffer = torch.zeros_like(param) if "momentum" in settings else None
    for number, grad in enumerate(given, 1):
        reference.grad = grad.clone()
        optimizer.step()
        results = sgd_(param, grad, buffer, number, 0.1, **settings)
        assert results is param if buffer is None else results[1] is buffer
    assert_close(param, reference.detach())


@pytest.mark.parametrize("update", ["adamw", "sgd"])
def test_a_transposed_gradient_is_read_by_its_strides(update: str):
    torch.manual_seed(0)
    grad = torch.randn(3, 5).t()

    def updated(gradient: torch.Tensor) -> torch.Tensor:
        param, first, second = torch.ones(5, 3), torch.zeros(5, 3), torch.zeros(5, 3)
        if update == "adamw":
            adamw_(param, gradient, first, second, 1.0, 0.1)
            return second
        sgd_(param, gradient, first, 1.0, 0.1, momentum=0.9)
        return first

    assert torch.equal(updated(grad), updated(grad.contiguous()))


def test_a_gradient_is_not_changed():
    grad = torch.ones(3)
    sgd_(torch.ones(3), grad, torch.zeros(3), 1, 0.1, momentum=0.9, weight_decay=0.5)
    assert torch.equal(grad, torch.ones(3))


def test_missing_arguments_are_named():
    with pytest.raises(ValueError, match=r"momentum 0.9 needs a momentum buffer"):
        sgd_(torch.ones(3), torch.ones(3), None, 1, 0.1, momentum=0.9)
    with pytest.raises(ValueError, match=r"dampening 0.5 needs the step"):
        sgd_(torch.ones(3), torch.ones(3), torch.zeros(3), None, 0.1, momentum=0.9, dampening=0.5)


def test_increment_makes_a_new_count():
    count = torch.zeros(())
    assert increment(count).item() == 1
    assert count.item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_nothing_changes_if_a_gradient_is_not_finite(dtype: torch.dtype):
    infinite = torch.full((5,), float("inf"), dtype=dtype)
    for found_inf, changes in ((torch.tensor(1.0), False), (torch.tensor(0.0), True)):
        grad = torch.ones(5, dtype=dtype) if changes else infinite
        values = [torch.ones(5, dtype=dtype) for _ in range(5)]
        adamw_(values[0], grad, values[1], values[2], 1.0, 0.1, found_inf=found_inf)
        sgd_(values[3], grad, values[4], 1.0, 0.1, momentum=0.5, found_inf=found_inf)
        assert [torch.equal(value, torch.ones(5, dtype=dtype)) for value in values] == [
            not changes, True, True, not changes, not changes
        ]  # fmt: skip
        assert increment(torch.zeros(()), found_inf=found_inf).item() == changes
        assigned = assign_(torch.zeros(5, dtype=dtype), grad, found_inf=found_inf)
        assert torch.equal(assigned, grad if changes else torch.zeros(5, dtype=dtype))
