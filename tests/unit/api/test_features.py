"""
Scripts of one training feature each: a supported feature is exact, and an unsupported one is refused by name.

A page of the manual lists the refused features; each of its rows has a script.
"""

import logging
import re
import warnings
from collections.abc import Iterator
from importlib import import_module

import pytest
import torch
from features import COMPARED, FEATURES, Feature

from shardwright.api.module_guard import StaleModuleError
from shardwright.ir.not_supported import NOT_SUPPORTED, Refusal
from shardwright.runtime.plan import PlanError

for _scripts in ("modules", "layers", "forward", "batches", "loops", "guard"):
    import_module(f"feature_{_scripts}")

ROWS = {row for rows in NOT_SUPPORTED.values() for row in rows}
WORKING = {name: each for name, each in FEATURES.items() if each.message is None}
REFUSED = {name: each for name, each in FEATURES.items() if each.message is not None}


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Isolate the random numbers, log messages and warnings of a script."""
    torch.manual_seed(0)
    logging.getLogger("shardwright").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.getLogger("shardwright").setLevel(logging.NOTSET)


@pytest.mark.parametrize("feature", WORKING.values(), ids=WORKING)
def test_a_script_trains_as_in_plain_pytorch(feature: Feature):
    COMPARED.clear()
    feature.script()
    assert COMPARED, "a script that works compares its weights with those of plain PyTorch"


@pytest.mark.parametrize("feature", REFUSED.values(), ids=REFUSED)
def test_a_script_is_refused_by_name_and_with_advice(feature: Feature):
    with pytest.raises((PlanError, StaleModuleError, TypeError, ValueError), match=feature.message) as raised:
        feature.script()
    assert feature.refusal is None or feature.refusal.instead in str(raised.value)


def test_every_row_of_the_manual_has_a_script():
    met = {each.refusal for each in FEATURES.values() if each.refusal is not None}
    assert met == ROWS, sorted(row.what for row in met ^ ROWS)


def test_every_refusal_is_a_row_of_the_manual():
    from shardwright.ir import not_supported

    assert {each for each in vars(not_supported).values() if isinstance(each, Refusal)} == ROWS


@pytest.mark.parametrize("name", ["half()"])
def test_a_feature_that_trains_badly_causes_a_warning(name: str, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, logger="shardwright"):
        FEATURES[name].script()
    assert re.search(r"parameter '0\.weight' is in float16, in which small gradients underflow to 0", caplog.text)
