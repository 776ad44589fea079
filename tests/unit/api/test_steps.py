"""Finding training steps by name."""

import pytest
import torch

from shardwright.api.steps import StepError, find_step
from shardwright.api.training_step import TrainingStep


def test_a_name_without_a_colon_is_a_shipped_step():
    assert isinstance(find_step("mlp-tiny"), TrainingStep)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mlp-tin", r"did you mean \"mlp-tiny\"\?.* or name your own as package.module:callable"),
        ("no_such_package.steps:make", "there is no module 'no_such_package', here or installed"),
        ("odd_steps:missing", "odd_steps has no callable 'missing'; it has .*no_step"),
        ("odd_steps:no_step", "returned a int, expected a shardwright.TrainingStep"),
        ("odd_steps:broken", r"odd_steps:broken failed: ZeroDivisionError: one over nothing \(.*odd_steps.py:\d+\)"),
        (":make", "cannot be imported: ValueError: Empty module name"),
    ],
)
def test_an_unknown_name_is_refused_with_its_first_wrong_part(spec: str, message: str):
    with pytest.raises(StepError, match=message):
        find_step(spec)


def test_a_step_is_found_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "my_step_here.py").write_text(
        "from shardwright.models.registry import training_step\ndef make(): return training_step('mlp-tiny')\n"
    )
    monkeypatch.chdir(tmp_path)
    assert isinstance(find_step("my_step_here:make"), TrainingStep)


def test_a_step_draws_the_same_numbers_at_every_call(tmp_path, monkeypatch):
    (tmp_path / "my_random_step.py").write_text(
        "import torch, shardwright as sw\n"
        "def step():\n"
        "    model, batch = torch.nn.Linear(3, 1), (torch.randn(4, 3), torch.randn(4, 1))\n"
        "    loss, optimizer = torch.nn.functional.mse_loss, lambda p: torch.optim.SGD(p, lr=0.1)\n"
        "    return sw.TrainingStep(model, loss, optimizer, batch)\n"
    )
    monkeypatch.chdir(tmp_path)
    before = torch.get_rng_state()
    first, second = find_step("my_random_step:step"), find_step("my_random_step:step")
    assert torch.equal(torch.get_rng_state(), before)
    one, other = (step.build_model().state_dict() for step in (first, second))
    torch.testing.assert_close((first.batch, one), (second.batch, other), rtol=0, atol=0)
