"""`join-updates` on steps with real optimizers: results, launches, work and memory."""

from __future__ import annotations

from functools import cache

import optimizer_steps
import pytest
import torch
from emitted import emit
from launches import names_of, step_of
from split_cluster import launching_cluster
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.checking.cases import CheckCase, imported
from shardwright.api.checking.check import check_interpreted
from shardwright.dialects import train
from shardwright.dialects.compute import ComputeOp
from shardwright.ir.mesh import parse_mesh
from shardwright.ir.op_cost import op_seconds
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.compute import op_work, seconds_by_signature
from shardwright.passes.analysis.memory import peak_memory
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.step.step_view import StepView, step_views

MESH = parse_mesh("2")
CLUSTER = launching_cluster(MESH)


def case(optimizer: str, pins: str = "zero3", clip_norm: float | None = None) -> CheckCase:
    return CheckCase(step_of(optimizer_steps.step, optimizer, clip_norm), MESH, pins, torch.float64, cluster=CLUSTER)


ON_RANKS = ("amsgrad", "nadam")
"""Optimizers that always run with joined updates in `distributed/test_optimizers.py`, and here with `--thorough`."""


@pytest.mark.parametrize(
    "optimizer", names_of(("rmsprop", "adafactor", "muon", *ON_RANKS), lambda name: name not in ON_RANKS)
)
def test_joined_updates_train_as_on_one_device(optimizer: str) -> None:
    result = check_interpreted(case(optimizer))
    assert result.passed, str(result)


@pytest.mark.parametrize("pins", ["dp", "zero3", "tp"])
def test_joined_norms_train_as_on_one_device(pins: str) -> None:
    result = check_interpreted(case("amsgrad", pins, 0.05))
    assert result.passed, str(result)


@cache
def planned(optimizer: str, clip_norm: float | None = None) -> ModuleOp:
    """Return a step after the passes up to `overlap`; it is shared and must not be changed."""
    module = imported(case(optimizer, clip_norm=clip_norm))
    add_cluster(module, CLUSTER)
    run_pipeline(Context(), module, "prepare,add-pins{pins=zero3},search-strategy{algorithm=fixed},communicate,overlap")
    return module


def joined(module: ModuleOp, group_mb: float) -> ModuleOp:
    """Return a copy with joined updates."""
    module = module.clone()
    run_pipeline(Context(), module, f"join-updates{{group-mb={group_mb}}}")
    return module


def view_of(module: ModuleOp) -> StepView:
    ((view, _),) = step_views(module)
    return view


def updates(module: ModuleOp) -> list[ComputeOp]:
    return [op for op in view_of(module).ops if train.is_update(op)]


def is_assignment(op: ComputeOp) -> bool:
    return "train.assign" in (op.name, op.overload)


def total_work(module: ModuleOp) -> tuple[float, float]:
    """Return the operations and bytes of all updates on a rank, except the final assignments."""
    signed = ((op, op.signature) for op in updates(module) if not is_assignment(op))
    works = [op_work(op, signature, MESH) for op, signature in signed if signature is not None]
    return sum(work.flops for work in works), sum(work.bytes for work in works)


@pytest.mark.parametrize("optimizer", ["rmsprop", "maximized sgd", "amsgrad"])
def test_joined_updates_have_the_same_work_in_fewer_launches(optimizer: str) -> None:
    before = planned(optimizer)
    after = joined(before, 1)
    names = {op.target.data for op in updates(after) if isinstance(op, train.ForeachOp)}
    assert names == {op.name for op in updates(before) if train.may_join(op) and not is_assignment(op)}
    assert 2 * len(updates(after)) < len(updates(before))
    assert total_work(after) == pytest.approx(total_work(before))
    seconds = [sum(each.seconds for each in simulate_module(module)) for module in (before, after)]
    launches = len(updates(before)) - len(updates(after))
    assert seconds[0] - seconds[1] > 0.9 * launches * CLUSTER.devices[0].launch


def test_the_price_of_an_update_is_its_share_of_the_joined_update() -> None:
    before = planned("rmsprop")
    after = joined(before, 1)

    def seconds(module: ModuleOp, *, joining: bool) -> float:
        signed = ((op, op.signature) for op in updates(module))
        return sum(seconds_by_signature(op, (s,), CLUSTER, joining=joining)[0] for op, s in signed if s is not None)

    (device,) = CLUSTER.devices
    assert not any(map(train.may_join, updates(after)))
    launches = sum(isinstance(op, train.ForeachOp) for op in updates(after))
    expected = seconds(before, joining=True) + launches * device.launch
    assert expected == pytest.approx(seconds(after, joining=False))


@pytest.mark.parametrize("optimizer", ["amsgrad", "rmsprop"])
def test_clipping_costs_few_launches(optimizer: str) -> None:
    plain, clipped = (joined(planned(optimizer, norm), 1) for norm in (None, 0.05))
    assert any(isinstance(op, train.SumOfSquaresOp) for op in view_of(clipped).ops)
    parameters = sum(given.role == train.PARAM for given in view_of(clipped).inputs)
    # Separate squares, sums, additions and scalings would be four ops per parameter.
    assert len(view_of(clipped).ops) - len(view_of(plain).ops) < 3 * parameters


def test_the_size_of_groups_bounds_memory() -> None:
    """Intermediate values of an update are held for all members of one group only."""
    before = planned("rmsprop")
    peaks = [peak_memory(view_of(module).func, MESH).bytes for module in (before, joined(before, 0.0005))]
    assert peaks[1] <= peaks[0] + 8 * 0.0005 * 2**20


def test_a_program_writes_over_states_without_copies() -> None:
    module = joined(planned("rmsprop"), 1)
    run_pipeline(Context(), module, "reuse-buffers,insert-frees")
    text = emit(module)
    assert 'rt.foreach_(\n        "add",' in text
    assert '"copy"' not in text
    assert ".clone()" not in text


def test_a_launch_is_counted_once() -> None:
    (device,) = CLUSTER.devices
    for op in updates(joined(planned("rmsprop"), 1)):
        if isinstance(op, train.ForeachOp) and op.signature is not None:
            work = op_work(op, op.signature, MESH)
            alone = op_seconds(device, work, joins=True)
            assert op_seconds(device, work) == pytest.approx(alone + device.launch)
