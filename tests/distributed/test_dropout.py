"""
Models that draw random numbers train as one device with the same numbers does; each rank draws only its part.

GPT-2, BERT and ViT with dropout are among the cases of `test_time.py` and `test_pipelines.py`, and
`benchmarks/random_numbers.py` has more. Splitting pays on the cluster, so that the drawn tensors are split too.
"""

from __future__ import annotations

import re
from dataclasses import replace

import dropout_steps
import pytest
import torch
from split_cluster import split_cluster

from shardwright.api.checking.cases import SEED, CheckCase, compile_case, imported, plan_case
from shardwright.api.checking.check import check_interpreted
from shardwright.api.checking.interpreted import InterpretedRun
from shardwright.api.checking.reference import EagerRun
from shardwright.ir.mesh import parse_mesh

FOUR_PARTS = 'prepare,search-strategy,balance-ratios{ratios="0.4,0.3,0.2,0.1"},program{parts=4},finish'
MESH = parse_mesh("4")
CASE = CheckCase(
    dropout_steps.noisy, MESH, None, torch.float64, "adamw", steps=2, cluster=split_cluster(MESH), pipeline=FOUR_PARTS
)


def test_every_kind_of_number_is_drawn_as_on_one_device():
    result = check_interpreted(CASE)
    assert result.passed, str(result)


def test_independent_draws_agree_on_copies_of_a_part():
    """Ranks with the same part draw the same numbers; the loss is close to one device, which draws other numbers."""
    drawn = replace(CASE, step=dropout_steps.vit, pipeline=f"draw-independently,{FOUR_PARTS}")
    module = imported(drawn)
    plan_case(drawn, module)
    found = InterpretedRun(module, EagerRun(drawn.training_step(), drawn.dtype, SEED).model, SEED)
    expected = EagerRun(drawn.training_step(), drawn.dtype, SEED)
    batch = next(iter(drawn.batches()))
    loss, one = (run.step(batch)["loss", "loss"].item() for run in (found, expected))
    assert loss != one
    assert loss == pytest.approx(one, rel=0.1)


def test_programs_draw_parts():
    """Each rank draws only its part; otherwise the tests above would not cover split random numbers."""
    program = compile_case(CASE, imported(CASE)).program
    assert re.search(r"rt\.random_uniform\([^)]*start=SIZES\[[^\]]*\]\[n\]\[part\]", program)
