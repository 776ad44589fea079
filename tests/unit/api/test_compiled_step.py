"""`PlanOptions(compile=True)` does not change training, evaluation and batches of other shapes in this process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from split_cluster import split_cluster
from torch import nn
from torch._inductor import config, cpp_builder

import shardwright as sw
from shardwright.api.distributed_step import DistributedStep
from shardwright.ir.mesh import Mesh
from shardwright.runtime.faults import ACTIVITY
from shardwright.runtime.plan import PlanError

BATCH, LAST = ((torch.randn(rows, 6), torch.randint(4, (rows,))) for rows in (8, 3))


@pytest.fixture(autouse=True)
def in_this_process() -> Iterator[None]:
    with config.patch({"compile_threads": 1}):
        yield


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 4))


def planned(*, compiles: bool) -> DistributedStep:
    cluster, sgd = split_cluster(Mesh.of(gpu=1)), partial(torch.optim.SGD, lr=0.5)
    # The plan is pinned: ops are cheaper when compiled, so that a search might find another plan.
    plan = sw.PlanOptions(pins="dp", compile=compiles)
    return sw.parallelize(model, nn.functional.cross_entropy, sgd, BATCH, cluster, plan=plan, shapes=[LAST])


def test_a_compiled_step_is_the_same_step():
    plain, compiled = planned(compiles=False), planned(compiles=True)
    assert compiled.program == plain.program
    for batch in (BATCH, LAST, BATCH):
        torch.testing.assert_close(compiled(batch), plain(batch))
        assert not ACTIVITY.compiles
    torch.testing.assert_close(compiled.evaluate(BATCH).loss, plain.evaluate(BATCH).loss)
    torch.testing.assert_close(compiled.state_dict(), plain.state_dict())
    with torch.profiler.profile() as profiler:
        compiled(BATCH)
    assert any("CompiledFxGraph" in event.key for event in profiler.key_averages())


def test_a_plan_without_a_compiler_is_refused():
    cpp_builder.cpp_compiler_search.cache_clear()
    with config.patch({"cpp.cxx": ("no-such-compiler",)}), pytest.raises(PlanError, match="needs a C"):
        planned(compiles=True)
    cpp_builder.cpp_compiler_search.cache_clear()
