"""
Programs with shards of different sizes train as one device does: losses, all gradients, parameters and states.

Shares are given, some of them zero, or found; strategies are pinned or searched. One launch per number of ranks runs
its cases on gloo, all of them with `pytest --thorough`; more cases run in the interpreter, all ranks in one process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from launches import covering, names_of, results_of
from split_cluster import mixed_cluster, split_cluster

from shardwright.api.checking.cases import CheckCase, CheckResult, compile_case, imported
from shardwright.api.checking.check import check_interpreted
from shardwright.ir.mesh import Mesh, parse_mesh
from shardwright.ir.ratios import rounded
from shardwright.passes.errors import PassError

MODELS = ("mlp-tiny", "gpt2-tiny", "vgg19-tiny", "vit-tiny")
FIXED = {4: ("0.4,0.3,0.2,0.1", "0.7,0.1,0.1,0.1", "0.5,0.0,0.3,0.2"), 3: ("0.5,0.3,0.2", "0.8,0.1,0.1", "0.6,0.0,0.4")}
RANDOM = 10


def random_ratios(parts: int, seed: int) -> str:
    """Return random shares in hundredths."""
    weights = [random.Random(seed * 7 + part).uniform(0.05, 1.0) for part in range(parts)]
    return ",".join(str(share / 100) for share in rounded(100, weights))


def uneven(model: str, ratios: str, pins: str | None, dtype: torch.dtype = torch.float64) -> CheckCase:
    mesh = Mesh.of(gpu=ratios.count(",") + 1)
    return CheckCase(model, mesh, pins, dtype, "sgd", cluster=split_cluster(mesh), ratios=ratios)


def found(model: str, segments: str = "1") -> CheckCase:
    """Return a case with the shares that `balance-ratios` finds for a cluster with devices of two kinds."""
    mesh, ratios = Mesh.of(gpu=4), f"balance-ratios{{segments={segments}}}"
    passes = f"prepare,search-strategy,{ratios},search-strategy,program,finish"
    pipeline = None if segments == "1" else passes
    return CheckCase(model, mesh, None, torch.float64, "sgd", cluster=mixed_cluster(mesh), pipeline=pipeline)


def on_ranks() -> Iterator[CheckCase]:
    """Yield every model with every kind of ratios; random ratios are distributed over models and strategies."""
    for world, listed in FIXED.items():
        for at, ratios in enumerate(listed):
            for model in MODELS:
                yield uneven(model, ratios, (None, "dp", "tp")[at], torch.float32 if at == 0 else torch.float64)
        for seed in range(RANDOM)[world % 2 :: 2]:
            model, pins = MODELS[seed % len(MODELS)], ("tp", None, "dp", "zero3")[(seed + seed // 4) % 4]
            yield uneven(model, random_ratios(world, seed), pins)
    yield found("gpt2-tiny")
    yield found("mlp-tiny", "layers")


def interpreted() -> Iterator[CheckCase]:
    """Yield every strategy with ratios that give a rank nothing, and random ratios other than those on ranks."""
    for world, listed in FIXED.items():
        for model in ("mlp-tiny", "gpt2-tiny"):
            for pins in (None, "dp", "tp", "zero3"):
                yield uneven(model, listed[2], pins)
        for seed in range(RANDOM, RANDOM + 4):
            yield uneven(MODELS[seed % len(MODELS)], random_ratios(world, seed), None)


CASES = {str(each): each for each in on_ranks()}
ALWAYS = {4: ("gpt2-tiny", "vgg19-tiny"), 3: ("mlp-tiny", "vit-tiny")}
"""The models that always run with fixed shares, in turn, by the number of ranks."""


def is_quick(name: str) -> bool:
    """Return whether a case runs without `--thorough`."""
    each, fixed = CASES[name], FIXED[CASES[name].mesh.device_count]
    if each.ratios in fixed:
        return each.step == ALWAYS[each.mesh.device_count][fixed.index(each.ratios) % 2]
    # No fixed shares run under ZeRO-3, and random shares under another preset differ from fixed ones in numbers only.
    return each.pins == "zero3" or each.ratios == CheckCase.ratios


INTERPRETED = {str(each): each for each in interpreted()}


results = results_of(CASES)


@pytest.mark.distributed
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", names_of(CASES, is_quick))
def test_uneven_shards_train_as_one_device_does(name: str, results: Callable[[str], CheckResult]):
    result = results(name)
    assert result.passed, str(result)


@pytest.mark.parametrize("name", covering(INTERPRETED, every=5))
def test_uneven_shards_are_right_before_lowering(name: str):
    result = check_interpreted(replace(INTERPRETED[name], steps=2))
    assert result.passed, str(result)


# Those of these models always run on ranks.
@pytest.mark.parametrize("model", names_of(MODELS, lambda model: model in ("mlp-tiny", "gpt2-tiny")))
def test_searched_plans_are_uneven(model: str):
    """A searched plan has uneven shards; otherwise the cases above would compare even shards."""
    program = compile_case(case := uneven(model, "0.4,0.3,0.2,0.1", None), imported(case)).program
    assert "offsets={" in program
    assert "SIZES[" in program


def test_segments_with_different_shares_move_boundaries():
    program = compile_case(case := found("mlp-tiny", "layers"), imported(case)).program
    assert "split_dim=0, concat_dim=0" in program or "split_dim=1, concat_dim=1" in program


@pytest.mark.parametrize(
    ("ratios", "message"),
    [
        ("0.5,0.6", "sum to 1.1, expected 1"),
        ("1.5,-0.5", "share of -0.5, expected a number of at least 0"),
        ("0.5,0.3,0.2", 'axis "gpu" has 2 parts, but 3 ratios'),
    ],
)
def test_invalid_ratios_are_refused(ratios: str, message: str):
    mesh = Mesh.of(gpu=2)
    case = CheckCase("mlp-tiny", mesh, ratios=ratios, cluster=split_cluster(mesh))
    with pytest.raises(PassError, match=message):
        compile_case(case, imported(case))


def test_given_ratios_on_two_axes_need_an_axis():
    mesh = parse_mesh("2x2")
    case = CheckCase("mlp-tiny", mesh, ratios="0.5,0.5", cluster=split_cluster(mesh))
    with pytest.raises(PassError, match="axes a0, a1: choose the axis of the ratios with axis="):
        compile_case(case, imported(case))
