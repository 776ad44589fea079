"""Candidates that a pass crashes on, or whose program does not verify, are dropped: shipped models have none."""

import logging

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import PassFailedException

from shardwright.api.compile import import_training_step
from shardwright.dialects.step import PLAN
from shardwright.ir.cluster_file import find_cluster
from shardwright.models.registry import MODELS, training_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.planning.candidate_compiler import CandidateCompiler, Finished, Solved
from shardwright.passes.planning.candidates import Candidate
from shardwright.passes.planning.notes import FAULT
from shardwright.passes.planning.summary import read_plan
from shardwright.passes.search_plan import SearchPlanPass
from shardwright.passes.step.step_view import step_functions


def searched(module: ModuleOp, **options: int) -> tuple[str, list[str]]:
    """The name of the chosen candidate, and the faults of all candidates."""
    found = module.clone()
    SearchPlanPass(bound_rounds=0, **options).apply(Context(), found)  # pyright: ignore[reportArgumentType]
    (func,) = step_functions(found)
    assert PLAN in func.attributes
    plan = read_plan(func)
    assert plan is not None
    return plan.chosen, [each.why for each in plan.candidates if each.why.startswith(FAULT)]


@pytest.fixture(scope="module")
def small() -> ModuleOp:
    return prepared("mlp-tiny")


def prepared(name: str) -> ModuleOp:
    module = import_training_step(training_step(name))
    add_cluster(module, find_cluster("local-4"))
    run_pipeline(Context(), module, "prepare")
    return module


def test_a_winner_that_does_not_verify_is_dropped(
    small: ModuleOp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    best, none = searched(small, stages=1, micro_batches=1)
    assert none == []
    finish = CandidateCompiler.finish

    def spoilt(bench: CandidateCompiler, solved: Solved) -> Finished:
        found = finish(bench, solved)
        if solved.candidate.name == best:
            (func,) = step_functions(found.module)
            assert func.body.block.last_op is not None
            func.body.block.last_op.detach()
        return found

    monkeypatch.setattr(CandidateCompiler, "finish", spoilt)
    with caplog.at_level(logging.WARNING, "shardwright.plan"):
        chosen, faults = searched(small, stages=1, micro_batches=1)
    assert chosen != best
    assert len(faults) == 1
    assert f"candidate {best} is dropped, please report it" in caplog.text


def test_a_candidate_on_which_a_pass_crashes_is_dropped(small: ModuleOp, monkeypatch: pytest.MonkeyPatch):
    best, _ = searched(small, stages=1, micro_batches=1)
    solve = CandidateCompiler.solve

    def crashing(bench: CandidateCompiler, candidate: Candidate, **more: float) -> object:
        if candidate.name == best:
            raise KeyError(16)
        return solve(bench, candidate, worth=more["worth"])

    monkeypatch.setattr(CandidateCompiler, "solve", crashing)
    chosen, faults = searched(small, stages=1, micro_batches=1)
    assert chosen != best
    assert faults == [f"{FAULT}KeyError: 16"]


TINY = [name for name in MODELS if name.endswith("-tiny")]
QUICK = ("mlp-tiny", "vgg-tiny")


@pytest.mark.parametrize("options", [{}, {"stages": 2}], ids=["all open", "stages"])
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough) for name in TINY]
)
def test_shipped_models_have_no_faulty_candidate(name: str, options: dict[str, int]):
    try:
        _, faults = searched(prepared(name), **options)
    except PassFailedException as error:
        assert FAULT not in str(error)  # noqa: PT017
        return
    assert faults == []
