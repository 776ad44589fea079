"""
Evaluation and prediction between training steps, and training on batches of other shapes, are as on one device.

Plans are presets, pipelines, uneven or searched; one launch per number of ranks runs all its cases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

import evaluation_steps
import pytest
from evaluation_steps import CASES
from launches import names_of

from shardwright.ir.mesh import parse_mesh
from shardwright.runtime.spawn import RankError, run_ranks

THOROUGH = {
    "classifier on 2, dp",
    "classifier on 2, tp",
    "classifier on 2, zero3",
    "classifier on 2, searched",
    "classifier on 2, uneven",
    "classifier on 2x2, hybrid",
    "classifier on 2 of 3",
    "language on 2 of 3, accumulated",
    "language on 2 of 3, in stages",
    "language on 2, in stages",
    "language on 2, tp",
    "language on 4, in stages",
    "language on 2, uneven zero3",
    "language on 2x2, searched",
}
"""Cases that run only with `--thorough`: another model covers the plan, or this model on more ranks or by search."""


@cache
def launched(world: int, wanted: frozenset[str]) -> list[Mapping[str, list[str]]] | RankError:
    cases = {name: case for name, case in CASES.items() if name in wanted}
    try:
        return run_ranks(evaluation_steps.all_checked, world, cases, timeout=500)
    except RankError as error:
        return error


@pytest.mark.distributed
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", names_of(CASES, lambda name: name not in THOROUGH))
def test_a_plan_evaluates_and_continues_training_as_one_device(name: str, request: pytest.FixtureRequest):
    world = parse_mesh(CASES[name].mesh).device_count
    asked = {item.name.partition("[")[2].removesuffix("]") for item in request.session.items}
    mine = (each for each in asked & set(CASES) if parse_mesh(CASES[each].mesh).device_count == world)
    found = launched(world, frozenset(mine))
    if isinstance(found, RankError):
        pytest.fail(str(found))
    assert [rank[name] for rank in found] == [[]] * world


@pytest.mark.distributed
def test_ranks_load_their_rows_of_partial_batches_and_different_batches_are_refused():
    first, second = run_ranks(evaluation_steps.rows_and_refusals, 2)
    assert first["rows"] == second["rows"] == ""
    for told in (first, second):
        assert re.search(r"evaluation 1: the ranks were given different global batches: items '0'", told["other batch"])
        assert re.search(r"the ranks were given different shapes of batches for evaluate\(\)", told["other shape"])
        assert re.search(r"the forward pass for '0' \[4, 3\].*cannot capture .*reduction dim", told["no program"])
