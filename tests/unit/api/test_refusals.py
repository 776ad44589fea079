"""Features that a captured step would lose are refused by name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from shardwright.api.training_step import TrainingStep


def planned(model: nn.Module) -> TrainingStep:
    batch = torch.ones(2, 3), torch.zeros(2, dtype=torch.int64)
    return TrainingStep(model, nn.functional.cross_entropy, lambda given: torch.optim.SGD(given, lr=0.1), batch)


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


REFUSED: dict[str, tuple[Callable[[nn.Sequential], Any], str]] = {
    "a parameter's hook": (
        lambda model: model.get_parameter("0.weight").register_hook(lambda grad: grad),
        r"parameter '0\.weight' has a hook \(register_hook\)",
    ),
    "a post-accumulate hook": (
        lambda model: model.get_parameter("1.bias").register_post_accumulate_grad_hook(lambda _: None),
        r"parameter '1\.bias' has a hook \(register_post_accumulate_grad_hook\)",
    ),
    "a module's backward hook": (
        lambda model: model[0].register_full_backward_hook(lambda *_: None),
        "module '0' has a backward hook",
    ),
    "a module's hook before backward": (
        lambda model: model.register_full_backward_pre_hook(lambda *_: None),
        "it has a backward hook",
    ),
}


@pytest.mark.parametrize(("register", "message"), REFUSED.values(), ids=REFUSED)
def test_a_hook_is_refused(register: Callable[[nn.Sequential], Any], message: str):
    model = layers()
    handle = register(model)
    with pytest.raises(ValueError, match=message):
        planned(model)
    handle.remove()
    planned(model)


def test_a_wrapped_module_is_refused():
    with pytest.raises(ValueError, match=r"it is a DataParallel; give its \.module"):
        planned(nn.DataParallel(layers()))
    with pytest.raises(ValueError, match=r"it is a OptimizedModule; give the module before torch\.compile"):
        planned(torch.compile(layers()))  # pyright: ignore[reportArgumentType]
