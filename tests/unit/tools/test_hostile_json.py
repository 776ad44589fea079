"""Files of the project that were changed afterwards are used, or refused with one message."""

import pytest
from hostile_files import load_what_is_used, outcome
from hostile_json import JSON_KINDS, json_mutants

MUTANTS = 6


ALWAYS = ("journal", "checkpoint")
"""Kinds that always run; the others need a searched plan."""

KINDS = [kind if kind in ALWAYS else pytest.param(kind, marks=pytest.mark.thorough) for kind in JSON_KINDS]


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_file_is_used_or_refused(kind: str):
    load_what_is_used()
    use = JSON_KINDS[kind][2]
    for text in json_mutants(kind, 31, MUTANTS):
        found = outcome(use, text)
        assert found.is_clean, (found, text)
