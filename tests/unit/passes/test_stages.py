"""Pipelines in the interpreter: every prefix of the pipeline of passes trains as one device does."""

import pytest
import torch
from launches import covering

from shardwright.api.checking.cases import CheckCase, imported, plan_case
from shardwright.api.checking.check import check_interpreted
from shardwright.dialects.text import module_text
from shardwright.ir.cluster import Cluster, Device, Link
from shardwright.ir.mesh import Mesh
from shardwright.passes.pipeline import Pipeline

BACK = str(Pipeline.parse("program,finish"))


def agrees(ranks: int, pipeline: str, step: str = "gpt2-tiny") -> None:
    """Compare a pipeline of passes on some ranks with eager PyTorch."""
    result = check_interpreted(
        CheckCase(step, Mesh.of(gpu=ranks), dtype=torch.float64, steps=2, pipeline=f"prepare,{pipeline}")
    )
    assert result.passed, str(result)


@pytest.mark.parametrize("ranks", ["1,1", "1,2", "2,1,2", "1,1,1"])
def test_stages_train_as_one_device(ranks: str):
    counts = ranks.split(",")
    stages = f'partition-stages{{stages={len(counts)} ranks="{ranks}"}}'
    agrees(sum(map(int, counts)), f"{stages},search-strategy,{BACK}")


@pytest.mark.parametrize("count", covering(range(len(BACK.split(",")) + 2)))
def test_every_prefix_trains(count: int):
    passes = ['partition-stages{stages=2 ranks="2,1"}', "search-strategy", *BACK.split(",")]
    agrees(3, ",".join(passes[: count + 1]))


@pytest.mark.parametrize("preset", ["dp", "tp", "zero3"])
def test_pinned_stages_train(preset: str):
    stages = 'partition-stages{stages=2 ranks="3,1"}'
    agrees(4, f"add-pins{{pins={preset}}},{stages},search-strategy{{algorithm=fixed}},{BACK}")


@pytest.mark.parametrize("step", ["bert-tiny", "vit-tiny", "vgg19-tiny", "mlp-tiny"])
def test_other_models_have_stages(step: str):
    agrees(2, f"partition-stages{{stages=2}},search-strategy,{BACK}", step)


PROGRAM = "program{mode=pipeline parts=4 schedule=eager-1f1b}"


@pytest.mark.parametrize(("schedule", "ranks"), covering(["gpipe", "1f1b", "eager-1f1b"], ["2,2", "1,2,1"]))
def test_scheduled_stages_train(schedule: str, ranks: str):
    stages = len(ranks.split(","))
    agrees(
        4,
        f'partition-stages{{stages={stages} ranks="{ranks}"}},search-strategy{{algorithm=fixed pins=dp}},'
        f"program{{mode=pipeline parts=4 schedule={schedule}}},finish",
    )


def test_stages_have_separate_ratios():
    kinds = [Device(f"{rate}", (("float64", rate),), 5 * rate, 1e10, 1e-7) for rate in (1e9, 3e9)]
    mesh = Mesh.of(gpu=3)
    cluster = Cluster("mixed", mesh, tuple(kinds), (0, 1, 0), (Link("gpu", 1e-7, 1e-12),))
    passes = f"search-strategy,balance-ratios,{PROGRAM},check-memory"
    case = CheckCase(
        "gpt2-tiny",
        mesh,
        dtype=torch.float64,
        steps=2,
        cluster=cluster,
        pipeline=f'prepare,partition-stages{{stages=2 ranks="1,2"}},{passes}',
    )
    module = imported(case)
    plan_case(case, module)
    assert '#spmd.ratios<@stage1, {"gpu" = [0.75, 0.25]}>' in module_text(module)
    assert check_interpreted(case).passed


@pytest.mark.parametrize("stages", [2, 3])
def test_skips_cross_stages(stages: int):
    agrees(stages + 1, f"partition-stages{{stages={stages}}},search-strategy,{PROGRAM},finish", "unet-tiny")
