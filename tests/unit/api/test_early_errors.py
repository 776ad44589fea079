"""Wrong names are found before a step is imported, and errors are shown without tracebacks of torch."""

from __future__ import annotations

import traceback
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from plan_keywords import with_plan
from torch import nn

import shardwright as sw
from shardwright.api import compile
from shardwright.api.trained_loss import trained_loss, warn_on_one_rank
from shardwright.runtime.plan import PlanError

SGD = partial(torch.optim.SGD, lr=0.1)
BATCH = torch.randn(8, 4), torch.randn(8, 4)


def planned(model: Any = None, **options: Any) -> object:
    return sw.parallelize(model or nn.Linear(4, 4), nn.functional.mse_loss, SGD, BATCH, **with_plan(options))


@pytest.fixture
def unimported(monkeypatch: pytest.MonkeyPatch) -> None:
    def imported(*given: object, **named: object) -> None:
        raise AssertionError("imported before names were looked at")

    monkeypatch.setattr(compile, "import_training_step", imported)


def pin(value: str) -> str:
    return f'[[pin]]\nvalue = "{value}"\nsharding = "[{{}}, {{}}]"\n'


@pytest.mark.usefixtures("unimported")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"pins": "zro3"}, 'expected a file or a preset .*; did you mean "zero3"'),
        ({"pins": '[[pin]]\npreset = "zero33"\n'}, 'not one of dp, .*; did you mean "zero3"'),
        ({"pins": pin("wieght")}, r"""pins:1: pin 'wieght' matches no .*; did you mean "weight"\?"""),
        ({"pins": pin("bacth.0")}, 'did you mean "batch.0"'),
        ({"pins": pin("wieght"), "model": partial(nn.Linear, 4, 4)}, 'did you mean "weight"'),
        ({"cluster": "locl-4"}, 'is not a cluster file.*; did you mean "local-4"'),
    ],
)
def test_a_mistaken_name_is_found_before_import(options: dict[str, Any], told: str):
    options.setdefault("cluster", "local-4" if "model" in options else "auto")
    with pytest.raises(PlanError, match=told):
        planned(**options)


def test_pins_of_imported_values_are_checked_after_import():
    with pytest.raises(PlanError, match=r"pin 'weight\.grd' matches no .*did you mean \"weight.grad"):
        planned(pins=pin("weight.grd"), cluster="local-4")
    planned(pins=pin("w*t"), cluster="local-4")


def test_an_error_shows_no_traceback_of_torch(caplog: pytest.LogCaptureFixture):
    with pytest.raises(PlanError, match=r"RuntimeError: a and b must have same reduction dim") as raised:
        planned(nn.Linear(5, 4), cluster="local-4")
    shown = "".join(traceback.format_exception(raised.value))
    assert "torch/_functorch" not in shown
    assert shown.count("Traceback") == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_only_rank_0_warns_of_a_loss_that_becomes_a_number():
    loss = trained_loss(torch.ones(()))
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        for rank in (1, 0):
            with warnings.catch_warnings():
                warn_on_one_rank(rank)
                torch.set_warn_always(True)
                float(loss)
                torch.set_warn_always(False)
            assert len(shown) == (rank == 0)
