"""Updates captured from the code of optimizers: their states, their results, and refusals by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import optimizer_steps
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from xdsl.ir import Operation, SSAValue

from shardwright.dialects import train
from shardwright.dialects.train import updated_parameter
from shardwright.lowering.capture.capture import capture_step
from shardwright.lowering.capture.captured import CaptureError, OptimizerSpec
from shardwright.lowering.capture.numbers import (
    Branches,
    NumberNeededError,
    by_branches,
    number,
    numbers_as_tensors,
)
from shardwright.lowering.capture.optimizer import read_optimizer
from shardwright.lowering.capture.optimizer_run import small_shape
from shardwright.lowering.importer.step import import_step

SHAPES = {"weight": (64, 96), "other": (64, 96), "bias": (64,), "scale": ()}


def read(make: Callable[..., Any], shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> OptimizerSpec:
    mode = FakeTensorMode()
    with mode:
        parameters = {name: nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}
    return read_optimizer(make, parameters, mode)


def states(make: Callable[..., Any]) -> dict[str, tuple[tuple[int, ...], float]]:
    return {state.name: (state.shape, state.initial) for state in read(make).updates["weight"].states}


ZERO = ((64, 96), 0.0)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (partial(torch.optim.RMSprop, momentum=0.9), {"square_avg": ZERO, "momentum_buffer": ZERO}),
        (partial(torch.optim.Adagrad, initial_accumulator_value=0.5), {"sum": ((64, 96), 0.5)}),
        (torch.optim.NAdam, {"mu_product": ((), 1.0), "exp_avg": ZERO, "exp_avg_sq": ZERO}),
        (torch.optim.Adafactor, {"row_var": ((64, 1), 0.0), "col_var": ((1, 96), 0.0)}),
        (torch.optim.Rprop, {"prev": ZERO, "step_size": ZERO}),
        (optimizer_steps.OldAdam, {"decay": ((), 0.0), "mean": ZERO, "square": ZERO, "slow": ZERO}),
    ],
    ids=["rmsprop", "adagrad", "nadam", "adafactor", "rprop", "old adam"],
)
def test_the_states_of_an_optimizer(make: Callable[..., Any], expected: dict[str, Any]) -> None:
    assert states(make) == expected


def test_an_update_is_captured_once_for_equal_parameters() -> None:
    updates = read(torch.optim.RMSprop).updates
    assert updates["weight"] is updates["other"]
    assert len({id(update) for update in updates.values()}) == 3


def test_groups_have_separate_updates() -> None:
    make = partial(optimizer_steps.in_groups, partial(torch.optim.RMSprop, lr=1e-3))
    spec = read(make)
    assert [(group.lr, group.hyper["weight_decay"]) for group in spec.groups] == [(1e-3, 0.1), (3e-3, 0.0)]
    assert spec.members == {"weight": 0, "other": 0, "bias": 1, "scale": 1}


def test_groups_of_adam_with_either_kind_of_weight_decay_are_captured() -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        first, *rest = parameters
        groups = [{"params": [first], "decoupled_weight_decay": True}, {"params": rest}]
        return torch.optim.Adam(groups, weight_decay=0.1)

    assert read(make).updates


class Plain(torch.optim.Optimizer):
    """An optimizer whose update is one function."""

    def __init__(self, params: Any, update: Callable[[Any, Any, Any], None]) -> None:
        super().__init__(params, {"lr": 0.1})
        self.update, self.calls = update, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.update(self, group, p)


def _across(self: Plain, group: Any, p: Any) -> None:
    norms = [each.grad.norm() for each in group["params"] if each.grad is not None]
    p.sub_(p.grad / torch.stack(norms).norm(), alpha=group["lr"])


def _noise(self: Plain, group: Any, p: Any) -> None:
    p.sub_(torch.randn_like(p), alpha=group["lr"])


def _total(self: Plain, group: Any, p: Any) -> None:
    group["total"] = group.get("total", 0.0) + group["lr"]


def _own_number(self: Plain, group: Any, p: Any) -> None:
    self.calls += 1


def _list(self: Plain, group: Any, p: Any) -> None:
    self.state[p].setdefault("seen", []).append(p.grad)


def _float(self: Plain, group: Any, p: Any) -> None:
    p.sub_(p.grad, alpha=group["lr"] * float(p.grad.norm()))


def _one_for_all(self: Plain, group: Any, p: Any) -> None:
    shared: Any = self.state
    shared["all"]["mean"] = p.mean()


def _loop(self: Plain, group: Any, p: Any) -> None:
    while p.grad.norm() > 1e-6:
        p.grad.mul_(0.5)


def _halves_rate(self: Plain, group: Any, p: Any) -> None:
    state = self.state[p]
    state["step"] = state.get("step", 0) + 1
    if state["step"] > 100:
        group["lr"] = group["lr"] / 2


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (_across, r"does not reproduce a step of the optimizer .*Plain: .* of 'weight'.*independent of other"),
        (
            _noise,
            r"Plain cannot be captured.*test_capture_update.*draws random numbers \(aten.randn_like.default\)|"
            r"Plain cannot be captured: it draws random numbers \(aten.randn_like.default\)",
        ),
        (_total, r"Plain changes the setting 'total' of its groups"),
        (_own_number, r"Plain changes its attribute calls"),
        (_list, r"Plain keeps list 'seen' in the state of a parameter"),
        (_float, r"Plain cannot be captured: .*test_capture_update.py:\d+: float\(\) of a tensor"),
        (_one_for_all, r"Plain keeps a state that does not belong to one parameter"),
        (_loop, r"Plain cannot be captured: .*with more than 8 possible outcomes"),
        (_halves_rate, r"Plain cannot be captured: .*changes the setting 'lr'"),
    ],
)
def test_optimizers_that_are_refused_by_name(update: Callable[..., None], message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        read(partial(Plain, update=update))


def test_hooks_around_a_step_are_refused() -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.RMSprop(parameters)
        optimizer.register_step_pre_hook(lambda *_: None)
        return optimizer

    with pytest.raises(CaptureError, match=r"RMSprop has hooks around its step \(step_pre_hooks\)"):
        read(make)


def _lookahead(self: Plain, group: Any, p: Any) -> None:
    state = self.state[p]
    if not state:
        state["k"], state["slow"] = 0, p.clone()
    state["k"] += 1
    p.sub_(p.grad, alpha=group["lr"])
    if state["k"] == 6:
        p.copy_(state["slow"].lerp_(p, 0.5))
        state["k"] = 0


def test_a_branch_that_no_early_step_takes_is_exact() -> None:
    """Lookahead (Zhang et al. 2019): at every sixth step the slow weights follow and the count restarts."""
    made = partial(Plain, update=_lookahead)
    update = read(made, {"weight": (4, 6)}).updates["weight"]
    assert [state.name for state in update.states] == ["k", "slow"]
    module = torch.fx.GraphModule(nn.Module(), update.graph)
    parameter = nn.Parameter(torch.randn(4, 6))
    eager = made([parameter])
    mine = parameter.detach().clone()
    kept = [torch.zeros(state.shape, dtype=state.dtype) for state in update.states]
    for step in range(14):
        gradient = torch.randn(4, 6)
        parameter.grad = gradient.clone()
        eager.step()
        rate = torch.tensor(0.1, dtype=torch.float64)
        mine, *kept = module(mine, gradient, *kept, torch.tensor(float(step)), rate)
        torch.testing.assert_close(mine, parameter.detach())


def test_small_shapes_keep_the_order_of_sizes() -> None:
    assert small_shape((512, 784)) == (4, 6)
    assert small_shape((784, 512, 3, 3)) == (8, 6, 3, 3)
    assert small_shape((7, 7)) == (4, 4)
    assert small_shape(()) == ()


def test_numbers_behave_as_python_numbers() -> None:
    with numbers_as_tensors(Branches((), 1)):
        rate: Any = number(torch.tensor(0.25, dtype=torch.float64))
        same = rate
        same *= 2
        assert torch.equal(rate, torch.tensor(0.25, dtype=torch.float64))
        larger: Any = max(1.0, math.sqrt(rate))
        assert torch.equal(larger, torch.tensor(1.0, dtype=torch.float64))
        assert (torch.tensor(1.0) * rate).dtype is torch.float32
        assert torch.as_tensor(rate).dtype is torch.float32
        assert torch.equal(torch.zeros(2).add_(torch.ones(2), alpha=-rate), torch.tensor([-0.25, -0.25]))
        with pytest.raises(NumberNeededError, match=r"int\(\) of a tensor"):
            int(rate)
    assert math.sqrt(4) == 2
    assert max(1, 2) == 2


def test_every_path_through_conditions_is_captured() -> None:
    def sign(value: torch.Tensor) -> list[torch.Tensor]:
        def way(branches: Branches) -> list[torch.Tensor]:
            with numbers_as_tensors(branches):
                if value > 0:
                    return [torch.tensor(1.0)]
                return [torch.tensor(-1.0) if value < 0 else torch.tensor(0.0)]

        return by_branches(way, 4)

    assert [sign(torch.tensor(value))[0].item() for value in (3.0, -2.0, 0.0)] == [1.0, -1.0, 0.0]


def test_a_captured_update_becomes_ops_that_name_their_parameter() -> None:
    """Powers of betas are computed once; states start with their initial values; new values are assigned."""
    make = partial(torch.optim.NAdam, lr=0.1)
    step = capture_step(_Two(), nn.functional.cross_entropy, make, (torch.randn(4, 6), torch.tensor([0, 1, 2, 3])))
    module = import_step(step)
    module.verify()
    ops = [op for op in module.walk() if train.is_update(op)]
    names = {"a.weight", "a.bias", "b.weight", "b.bias"}
    assert {updated_parameter(op) for op in ops} == {*names, None}
    powers = [op for op in ops if op.name == "aten.pow.Scalar"]
    assert len({str(op.attributes) for op in powers}) < len(powers) <= 6
    assert all(updated_parameter(op) is None for op in powers)
    assigned = [op for op in ops if isinstance(op, train.AssignOp)]
    assert len(assigned) == len(names) * 4
    taken = [(updated_parameter(op), value.name_hint) for op in ops for value in gradients(op)]
    assert {name for name, _ in taken} == names
    assert '{train.state = ["a.weight", "mu_product"], train.initial = 1.000000e+00 : f64}' in str(module)


class _Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


def gradients(op: Operation) -> list[SSAValue]:
    return [op.operands[at] for at in train.gradients_of(op)]
