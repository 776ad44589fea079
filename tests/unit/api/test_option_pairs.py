"""No option of a plan is ignored: both options of every pair have their effect, or the pair is refused by name."""

from collections.abc import Callable
from dataclasses import fields
from functools import cache, partial
from itertools import combinations
from typing import Any, get_args

import pytest
import torch
from launches import names_of
from split_cluster import unequal_cluster
from torch import nn
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import DiagnosticException

import shardwright as sw
from shardwright.api.compile import CompiledStep, PlanAlgorithm, PlanOptions, import_training_step, lower
from shardwright.api.training_step import TrainingStep
from shardwright.dialects.text import module_text
from shardwright.ir.mesh import Mesh
from shardwright.ir.plan_options import OPTIONS, WAYS, refusal, taken_by, ways_of
from shardwright.passes.search_plan import SearchPlanPass
from shardwright.runtime.plan import PlanError
from shardwright.tools.cli_arguments import parse_arguments, plan_arguments
from shardwright.tools.diagnostics import DiagnosticError

CLUSTER = unequal_cluster(Mesh.of(gpu=2))
PASSES = "prepare,add-pins{pins=dp},search-strategy,program,insert-frees"


def training_step() -> TrainingStep:
    linear = partial(nn.Linear, bias=False)
    layers = [nn.Sequential(linear(16, 32), nn.ReLU(), nn.Dropout(0.1), linear(32, 16)) for _ in range(2)]
    batch = torch.ones(4, 16), torch.ones(4, 16)
    return TrainingStep(nn.Sequential(*layers), nn.functional.mse_loss, partial(torch.optim.SGD, lr=0.1), batch)


def compiled(options: PlanOptions) -> CompiledStep:
    module = imported(options.dtype, options.gradients, options.probe).clone()
    return lower(module, CLUSTER, options, name="step", step_spec=None, seconds={})


@cache
def imported(dtype: torch.dtype | None, gradients: bool, probe: bool) -> ModuleOp:
    return import_training_step(training_step(), dtype=dtype, gradients=gradients, probe=probe)


def layout(plan: CompiledStep) -> dict[str, Any]:
    return dict(plan.report["chosen_candidate"] or {})


def ir(plan: CompiledStep) -> str:
    return module_text(plan.module)


EFFECTS: dict[str, tuple[object, Callable[[CompiledStep], bool]]] = {
    "algorithm": ("eliminate", lambda plan: plan.report["chosen_candidate"] is None and "search" in plan.report),
    "pins": ("zero3", lambda plan: 'spmd.pins = [#spmd.pin_entry<preset "zero3">]' in ir(plan)),
    "dtype": (torch.float64, lambda plan: "xf64>" in ir(plan) and "xf32>" not in ir(plan)),
    "gradients": (True, lambda plan: "train.grad" in ir(plan)),
    "pipeline": (PASSES, lambda plan: "add-pins" in plan.report.get("pipeline", "")),
    "ratios": ("0.75,0.25", lambda plan: [each["shares"] for each in plan.report["ratios"]] == [[0.75, 0.25]]),
    "random": ("independent", lambda plan: "draw-independently" in plan.report.get("pipeline", "")),
    "mesh": ("a=2,b=1", lambda plan: layout(plan)["mesh"] == {"a": 2, "b": 1}),
    "stages": (2, lambda plan: len(plan.report["stages"]) == 2),
    "micro_batches": (4, lambda plan: layout(plan)["parts"] == 4 and layout(plan)["mode"] != "duplex"),
    "duplex": ("yes", lambda plan: layout(plan)["mode"] == "duplex"),
    "keep_activations": (0.0, lambda plan: "train.recomputed" in ir(plan)),
    "budget": (0.0, lambda plan: len(plan.report["candidates"]) < 12),
    "compile": (True, lambda plan: "mark-compiled" in plan.report.get("pipeline", "")),
}
"""A value of each option that changes a plan, and a function that tests whether a plan shows it."""

NOT_IN_THE_PROGRAM = {"probe", "processes", "candidate", "adapt", "idle"}
"""Options about unknown ops, speed of planning, earlier plans and unequal devices; separate tests cover them."""


def test_every_option_is_in_the_table():
    names = {each.name for each in fields(PlanOptions)}
    assert names == EFFECTS.keys() | NOT_IN_THE_PROGRAM
    assert names | {"measure", "replan_from", "seed", "compared"} == OPTIONS.keys()
    of_pass = {each.name: each.default for each in fields(SearchPlanPass)}
    assert {name: of_pass[name] for name in taken_by("search-plan")} == {
        name: option.default for name, option in taken_by("search-plan").items()
    }
    values = OPTIONS["algorithm"].values
    algorithms = [name for each in get_args(PlanAlgorithm) for name in get_args(each)]
    assert all(map(values.takes, algorithms))
    assert values.text.count(" or ") == len(algorithms) - 1


@pytest.mark.parametrize("name", EFFECTS)
def test_each_option_has_its_effect(name: str):
    value, shows = EFFECTS[name]
    assert shows(compiled(PlanOptions(**{name: value})))  # pyright: ignore[reportArgumentType]
    assert not shows(plain())


@cache
def plain() -> CompiledStep:
    return compiled(PlanOptions())


ANYWHERE = {"dtype", "gradients", "random", "compile"}
"""Options that take effect before any decision; `--thorough` runs their pairs."""

DECIDING = [name for name in EFFECTS if name not in ANYWHERE]


def is_quick(pair: tuple[str, str]) -> bool:
    """Return whether a pair runs without `--thorough`: each option with every second one, so with its neighbours."""
    return not ANYWHERE.intersection(pair) and sum(map(DECIDING.index, pair)) % 2 == 1


@pytest.mark.parametrize(("one", "other"), names_of(combinations(EFFECTS, 2), is_quick))
def test_both_options_of_a_pair_have_their_effect_or_the_pair_is_refused(one: str, other: str):
    asked = {name: EFFECTS[name][0] for name in (one, other)}
    try:
        plan = compiled(PlanOptions(**asked))  # pyright: ignore[reportArgumentType]
    except (PlanError, DiagnosticException) as error:
        assert [name for name in asked if name not in str(error)] == []  # noqa: PT017
        return
    assert [name for name in asked if not EFFECTS[name][1](plan)] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mesh", "nonsense"),
        ("stages", -3),
        ("stages", 1.5),
        ("micro_batches", 0),
        ("duplex", "x"),
        ("random", "x"),
        ("algorithm", "fastest"),
        ("ratios", "most"),
        ("keep_activations", 2.0),
        ("budget", -1.0),
        ("compile", "yes"),
        ("processes", 0),
    ],
)
def test_an_invalid_value_is_refused_with_a_preset_too(name: str, value: object):
    with pytest.raises(PlanError, match=f"^{name}={value}, expected "):
        PlanOptions(**{"pins": "dp", name: value})  # pyright: ignore[reportArgumentType]


def test_seed_and_compared_are_verified():
    assert refusal({"seed": 1.5}) == "seed=1.5, expected a whole number, or None"
    assert refusal({"compared": -1}) == "compared=-1, expected a number of steps, 0 for none"
    assert refusal({"seed": 0, "compared": 0}) is None


def test_former_keywords_of_parallelize_and_former_flags_work_and_warn(capsys: pytest.CaptureFixture[str]):
    step = training_step()
    planned: Callable[..., Any] = partial(sw.parallelize, step.model, step.loss, step.optimizer, step.batch, "local-4")
    with pytest.warns(DeprecationWarning, match=r"write parallelize\(plan=PlanOptions\(pins=\.\.\., dtype=\.\.\.\)\)"):
        trained = planned(pins="dp", dtype=torch.float64)
    assert "float64" in trained.program
    with pytest.raises(TypeError, match="unexpected keyword argument 'pin'"):
        planned(pin="dp")
    line = ["plan", "mlp-tiny", "--cluster", "c", "--out", "o"]
    assert plan_arguments(parse_arguments([*line, "--pin", "dp"])) == {"pins": "dp"}
    assert plan_arguments(parse_arguments([*line, "--pass-pipeline=cse"])) == {"pipeline": "cse"}
    warnings = capsys.readouterr().err.splitlines()
    assert [text.split(",")[0] for text in warnings] == [
        "warning: --pin is called --pins",
        "warning: --pass-pipeline is called --pipeline",
    ]


FLAGS = {
    "--pins": "dp",
    "--algorithm": "eliminate",
    "--ratios": "0.7,0.3",
    "--random": "independent",
    "--mesh": "1x2",
    "--stages": "2",
    "--micro-batches": "4",
    "--duplex": "yes",
    "--idle": "no",
    "--keep-activations": "0.5",
    "--budget": "1",
    "--candidate": "plan.json",
    "--measure": "2",
    "--pipeline": "canonicalize",
}


@pytest.mark.parametrize(("one", "other"), list(combinations(FLAGS, 2)))
def test_the_command_line_refuses_the_same_pairs_by_their_flags(one: str, other: str):
    names = [flag[2:].replace("-", "_") for flag in (one, other)]
    ways = [ways_of(name, FLAGS[flag]) for name, flag in zip(names, (one, other), strict=True)]
    line = ["plan", "mlp-tiny", "--cluster", "c", "--out", "o", one, FLAGS[one], other, FLAGS[other]]
    if ways[0] & ways[1]:
        assert parse_arguments(line)
        return
    with pytest.raises(DiagnosticError) as refused:
        parse_arguments(line)
    message = refused.value.diagnostic.message
    assert f"{one}={FLAGS[one]}" in message
    assert f"{other}={FLAGS[other]}" in message
    assert any(words in message for words in WAYS.values())


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (["run", "{folder}", "--mesh", "1x2"], "--mesh"),
        (["run", "{folder}", "--profile"], "--profile"),
        (["run", "mlp-tiny", "--profile", "--cluster", "local-4"], "--profile and --cluster"),
        (["simulate", "{folder}", "--pins", "dp"], "--pins"),
        (["simulate", "{folder}", "--compile"], "--compile"),
        (["simulate", "{folder}", "--sweep", "link.gpu.latency=1us..2us:2", "--trace", "x"], "--trace"),
    ],
)
def test_options_about_planning_are_refused_for_a_saved_plan(line: list[str], named: str, tmp_path: Any, capsys: Any):
    from shardwright.tools.cli import main

    compiled(PlanOptions(algorithm="eliminate")).save(tmp_path)
    assert main([word.format(folder=tmp_path) for word in line]) == 1
    assert named in capsys.readouterr().err
