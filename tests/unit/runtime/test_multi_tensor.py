"""One call on several tensors equals an op on each, for every op with a multi-tensor form."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shardwright.ir.ops.foreach import FOREACH, ForeachForm
from shardwright.lowering.fused import update_ops
from shardwright.runtime.optimizers import foreach, foreach_, joined_adam_, joined_adamw_, joined_sgd_, sum_of_squares

SHAPES = ((3, 4), (5,), (), (0, 2))


def tensors(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(shape, dtype=torch.float64, generator=generator) * 0.8 + 0.1 for shape in SHAPES]


def ways(form: ForeachForm) -> list[tuple[list[Any], dict[str, Any]]]:
    """Return the arguments after the first, in all ways that the form accepts."""
    names = form.arguments[1:]
    lists: list[Any] = [tensors(number) for number, _ in enumerate(names, 1)]
    number = [0.3 if name in form.numbers else given for name, given in zip(names, lists, strict=True)]
    found: list[tuple[list[Any], dict[str, Any]]] = [] if form.numbers - {"other"} else [(lists, {})]
    found += [(number, {})] if form.numbers else []
    found += [([torch.tensor(0.3, dtype=torch.float64)], {})] if form.tensors else []
    return found + [(lists, {"alpha": -0.7}) for _ in form.options]


CASES = [(name, given) for name, form in FOREACH.items() for given in ways(form)]


@pytest.mark.parametrize(("name", "given"), CASES, ids=[name for name, _ in CASES])
def test_a_multi_tensor_function_equals_the_op_on_each(name: str, given: tuple[list[Any], dict[str, Any]]) -> None:
    form, (others, options) = FOREACH[name], given
    space, _, overload = name.removeprefix("aten.").partition(".")
    op = getattr(getattr(torch.ops.aten, space), overload or "default")
    first = tensors(0)
    expected = [
        op(each, *(other[i] if isinstance(other, list) else other for other in others), **options)
        for i, each in enumerate(first)
    ]
    for found in (
        foreach(form.function, first, *others, **options),
        update_ops.foreach(form.function, first, *others, **options),
        foreach_(form.function, (written := [each.clone() for each in first]), *others, **options),
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert all(one is other for one, other in zip(found, written, strict=True))


def test_values_are_copied_into_the_memory_of_the_old_values() -> None:
    old, new = tensors(0), tensors(1)
    pointers = [each.data_ptr() for each in old]
    found = foreach_("copy", old, new)
    assert [each.data_ptr() for each in found] == pointers
    torch.testing.assert_close(found, new, rtol=0, atol=0)
    torch.testing.assert_close(update_ops.foreach("copy", tensors(0), new), new, rtol=0, atol=0)


ADAM = {"betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.3}


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize(("update", "plain"), [(joined_adam_, update_ops.adam), (joined_adamw_, update_ops.adamw)])
def test_adam_of_several_parameters_equals_adam_of_each(update: Any, plain: Any, amsgrad: bool, maximize: bool) -> None:
    given = [tensors(seed) for seed in range(4)]
    settings = {**ADAM, "maximize": maximize, **({"amsgrad": True, "max_exp_avg_sq": tensors(4)} if amsgrad else {})}
    step, lr = torch.tensor(3.0), torch.tensor(0.1, dtype=torch.float64)
    expected = update_ops.joined(plain)(*given, step, lr, **settings)
    found = update(*given, step, lr, **settings)
    assert found[0] is given[0][0]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"momentum": 0.9, "dampening": 0.4, "maximize": True},
    ],
)
@pytest.mark.parametrize("step", [1.0, 4.0])
def test_sgd_of_several_parameters_equals_sgd_of_each(settings: dict[str, Any], step: float) -> None:
    params, grads = tensors(0), tensors(1)
    buffers = [torch.zeros_like(each) if step == 1 else each for each in tensors(2)] if settings else None
    count, lr = torch.tensor(step), torch.tensor(0.1, dtype=torch.float64)
    expected = update_ops.joined(update_ops.sgd)(params, grads, buffers, count, lr, **settings)
    found = joined_sgd_(params, grads, buffers, count, lr, **settings)
    assert len(found) == len(SHAPES) * (2 if settings else 1)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_squares_are_summed_in_at_least_float32(dtype: torch.dtype) -> None:
    given = [each.to(dtype) for each in tensors(0)]
    expected = sum((each.double().square().sum() for each in given), torch.tensor(0.0, dtype=torch.float64))
    for found in (sum_of_squares(given), update_ops.sum_of_squares(given)):
        assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert found.shape == ()
        torch.testing.assert_close(found.double(), expected, rtol=1e-14 if dtype == torch.float64 else 1e-6, atol=0)
