"""Cases that train on gloo processes: one launch per number of ranks runs all selected cases."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

import pytest

from shardwright.api.checking.cases import CheckCase, CheckResult
from shardwright.api.checking.check import check_on_ranks
from shardwright.api.training_step import TrainingStep
from shardwright.runtime.spawn import RankError


def names_of(cases: Iterable[Any], is_quick: Callable[[Any], bool]) -> list[Any]:
    """
    Return the cases as parameters of a test; slow cases run only with `--thorough`.

    A tuple has the values of several parameters.
    """
    given = ((case, case if isinstance(case, tuple) else (case,)) for case in cases)
    return [pytest.param(*values, marks=[] if is_quick(case) else [pytest.mark.thorough]) for case, values in given]


def covering(*names: Iterable[Any], every: int = 2) -> list[Any]:
    """
    Return the product of some values as parameters of a test; only `--thorough` runs all of them.

    A combination always runs if the sum of the indices of its values is a multiple of `every`, so that each value runs
    with several of the others.
    """
    parameters: list[Any] = []
    for combination in product(*(list(enumerate(values)) for values in names)):
        is_left_out = sum(place for place, _ in combination) % every
        marks = [pytest.mark.thorough] if is_left_out else []
        parameters.append(pytest.param(*(value for _, value in combination), marks=marks))
    return parameters


@cache
def step_of(make: Callable[..., TrainingStep], *given: Hashable) -> Callable[[], TrainingStep]:
    """Return the same function for the same step, so that its cases share one capture."""
    return partial(make, *given)


STEPS = 3
"""Number of steps of a case that asks for no other number: the third uses states that two updates have changed."""

SECONDS = 4.0
"""Most seconds of a case for each of its ranks, which share two cores with other tests."""


def shortened(case: CheckCase) -> CheckCase:
    """Return a case with fewer steps than `shardwright check` trains, unless its number of steps matters."""
    return case if case.schedule or case.steps != CheckCase.steps else replace(case, steps=STEPS)


def results_of(cases: Mapping[str, CheckCase]) -> Any:
    """Return a module fixture for the results of cases by name: `results = results_of(CASES)`."""

    @pytest.fixture(scope="module")
    def results(request: pytest.FixtureRequest) -> Callable[[str], CheckResult]:
        return trained(request, cases)

    return results


def trained(request: pytest.FixtureRequest, cases: Mapping[str, CheckCase]) -> Callable[[str], CheckResult]:
    """
    Return a function from the name of a case to its result.

    Its first call for a number of ranks launches all cases for that number that this session tests: parameters of
    tests with the fixture of `request`. If the launch fails, all these cases fail.
    """
    if not request.config.getoption("--thorough"):
        cases = {name: shortened(case) for name, case in cases.items()}
    asking = (item for item in request.session.items if request.fixturename in getattr(item, "fixturenames", ()))
    wanted = {item.name.partition("[")[2].removesuffix("]") for item in asking}

    @cache
    def launch(world_size: int) -> Mapping[str, CheckResult] | RankError:
        selected = [name for name in cases if name in wanted and cases[name].mesh.device_count == world_size]
        try:
            timeout = max(600.0, SECONDS * world_size * len(selected))
            found = check_on_ranks([cases[name] for name in selected], world_size, timeout=timeout)
            return dict(zip(selected, found, strict=True))
        except RankError as error:
            return error

    def result(name: str) -> CheckResult:
        found = launch(cases[name].mesh.device_count)
        if isinstance(found, RankError):
            pytest.fail(str(found))
        return found[name]

    return result
