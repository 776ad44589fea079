"""A module that a step trains refuses uses that would need the trained weights."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from shardwright.api.module_guard import StaleModuleError, guard


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


USES: dict[str, Callable[[nn.Module], Any]] = {
    "a call": lambda model: model(torch.ones(2, 3)),
    "a call of a part": lambda model: model[0](torch.ones(2, 3)),  # pyright: ignore[reportIndexIssue]
    "state_dict": lambda model: model.state_dict(),
    "load_state_dict": lambda model: model.load_state_dict({}),
    "parameters": lambda model: list(model.parameters()),
    "clipping": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    "buffers": lambda model: list(model.buffers()),
    "a parameter by name": lambda model: model[0].weight,  # pyright: ignore[reportIndexIssue]
    "a buffer by name": lambda model: model[1].running_mean,  # pyright: ignore[reportIndexIssue]
    "conversion": lambda model: model.double(),
    "gradients to zero": lambda model: model.zero_grad(),
    "an average": lambda model: torch.optim.swa_utils.AveragedModel(model),
    "a copy": copy.deepcopy,
    "pickling": pickle.dumps,
    "an optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "a hook": lambda model: model.register_forward_hook(lambda *_: None),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_use_is_refused_with_advice(use: Callable[[nn.Module], Any]):
    guarded = model()
    guard(guarded)
    with pytest.raises(StaleModuleError, match=r"of Sequential was requested after parallelize.*step\.module\(\)"):
        use(guarded)


@pytest.mark.parametrize("name", [name for name in USES if name != "load_state_dict"])
def test_a_refused_use_works_while_the_guard_is_open(name: str):
    guarded = model()
    made = guard(guarded)
    with made.open():
        USES[name](guarded)
        assert made.is_open
    assert not made.is_open


def test_a_guarded_module_keeps_its_class():
    guarded = model()
    guard(guarded)
    assert isinstance(guarded, nn.Sequential)
    assert [type(each).__name__ for each in guarded.children()] == ["Linear", "BatchNorm1d", "Linear"]
    assert guarded.eval().training is False


def test_a_copy_is_not_guarded():
    guarded = model()
    with guard(guarded).open():
        free = copy.deepcopy(guarded)
        read = pickle.loads(pickle.dumps(guarded))
    for each in (free, read):
        assert type(each) is nn.Sequential
        assert each(torch.ones(2, 3)).shape == (2, 2)


def test_the_guard_is_closed_after_an_error():
    guarded = model()
    made = guard(guarded)
    with pytest.raises(ZeroDivisionError), made.open():
        raise ZeroDivisionError
    with pytest.raises(StaleModuleError):
        guarded.state_dict()
