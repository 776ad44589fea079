"""The fastest of the best plans of several kinds, as measured on the ranks."""

from __future__ import annotations

import tempfile
from typing import Any

import pytest
from split_cluster import split_cluster
from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument

from shardwright.api.compile import CompiledStep, PlanOptions
from shardwright.api.finalists import compile_finalists, fastest, measured_here
from shardwright.dialects import train
from shardwright.dialects.step import argument_attribute, sharding_of
from shardwright.ir.mesh import Mesh
from shardwright.models.registry import training_step


@pytest.fixture(scope="module")
def finalists() -> list[CompiledStep]:
    return compile_finalists(training_step("mlp-tiny"), split_cluster(Mesh.of(gpu=2)), PlanOptions(), 3)


def kind(report: Any) -> tuple[str, str]:
    chosen = report["chosen_candidate"]
    return chosen["mode"], "+".join(pin["preset"] for pin in chosen["choice"]["pins"]) or "search"


def test_the_plan_comes_first_and_the_others_are_of_other_kinds(finalists: list[CompiledStep]):
    kinds = [kind(each.report) for each in finalists]
    assert len(finalists) == len(set(kinds)) == 3
    steps = [each.report["predicted_step_s"] for each in finalists]
    assert steps[0] == min(steps)


def test_data_parallelism_is_always_one_of_them(finalists: list[CompiledStep]):
    assert ("whole", "dp") in [kind(each.report) for each in finalists]


def test_a_recompiled_runner_up_has_the_step_time_of_the_search(finalists: list[CompiledStep]):
    said = {each["name"]: each.get("step") for each in finalists[0].report["candidates"]}
    for each in finalists[1:]:
        assert each.report["predicted_step_s"] == pytest.approx(said[str(each.report["chosen"])])


def test_one_finalist_is_returned_if_one_is_requested():
    cluster = split_cluster(Mesh.of(gpu=2))
    assert len(compile_finalists(training_step("mlp-tiny"), cluster, PlanOptions(pins=None, stages=1), 1)) == 1


def test_the_fastest_is_chosen_and_all_are_reported(finalists: list[CompiledStep]):
    reports = [each.report for each in finalists]
    best, report = fastest(reports, [3.0, 1.0, 2.0])
    assert best == 1
    assert report["chosen"] == reports[1]["chosen"]
    # A rebuilt plan is explained by the candidates of the search.
    assert report["candidates"] == reports[0]["candidates"]
    assert len(report["candidates"]) > len(reports[1]["candidates"])
    measured = report.get("measured", [])
    assert [each["measured_step_s"] for each in measured] == [3.0, 1.0, 2.0]
    assert [each["plan"] for each in measured] == [each["chosen"] for each in reports]


def test_finalists_are_compiled_without_temporary_files(monkeypatch: pytest.MonkeyPatch, finalists: list[CompiledStep]):
    """Pins and candidates are passed in memory, however a plan is compiled again."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a temporary file")

    for name in ("mkdtemp", "mkstemp", "TemporaryDirectory", "NamedTemporaryFile", "TemporaryFile"):
        monkeypatch.setattr(tempfile, name, refuse)
    pins = '[[pin]]\nvalue = "*.weight"\nsharding = \'[{}, {"gpu"}]\'\n'
    options = PlanOptions(pins=pins, stages=1, micro_batches=1, duplex="no")
    made = compile_finalists(training_step("mlp-tiny"), split_cluster(Mesh.of(gpu=2)), options, 2)
    assert len(made) == 2
    for each in made:
        func = next(op for op in each.module.walk() if isinstance(op, FuncOp))
        homes = [sharding_of(arg) for arg in func.body.block.args if is_weight(arg)]
        assert len(homes) > 1
        assert {str(home) for home in homes} == {'[{}, {"gpu"}]'}


def is_weight(argument: BlockArgument) -> bool:
    name = argument_attribute(argument, train.PARAM)
    return isinstance(name, StringAttr) and name.data.endswith(".weight")


@pytest.mark.distributed
def test_finalists_are_measured_on_processes_of_this_machine(finalists: list[CompiledStep]):
    found = measured_here(finalists, "mlp-tiny")
    measured = found.report.get("measured", [])
    assert len(measured) == 3
    least = min(measured, key=lambda each: each["measured_step_s"])
    assert found.report["chosen"] == least["plan"]
    assert found.program == next(each.program for each in finalists if each.report["chosen"] == least["plan"])
