"""The verifier and the definitions of updates have the same settings."""

import inspect

import pytest

from shardwright.dialects.train import FOUND_INF, FUSED
from shardwright.dialects.update_settings import SETTINGS
from shardwright.ir.ops.schema import parse_arguments
from shardwright.lowering.fused import update_ops


@pytest.mark.parametrize("kind", FUSED)
def test_settings_are_the_arguments_of_the_definition(kind: str):
    update = FUSED[kind]
    parameters = inspect.signature(getattr(update_ops, kind)).parameters.values()
    named = {p.name: str(p.annotation) for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    expected = {name: words for name, words in named.items() if name not in (*update.OPTIONAL, FOUND_INF)}
    if expected.pop("betas", None):
        expected |= {"beta1": "float", "beta2": "float"}
    assert {each.name: each.kind for each in parse_arguments(SETTINGS[update.name])} == expected
    assert not any(each.required for each in parse_arguments(SETTINGS[update.name]))


def test_only_fused_updates_have_settings():
    assert set(SETTINGS) == {update.name for update in FUSED.values()}
