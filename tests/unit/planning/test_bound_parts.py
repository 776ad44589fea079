"""The bound of steps in parts: no program that the passes make of any layout, strategy or schedule is faster."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from ir_files import context
from launches import covering
from odd_steps import one_layer_gpt2
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import import_training_step
from shardwright.dialects.ratios import ratios_of
from shardwright.ir.cluster import Cluster, Device, Interference, Link
from shardwright.ir.mesh import Mesh
from shardwright.ir.topology import Host, Level, Topology
from shardwright.models.registry import training_step
from shardwright.models.unet import UNetConfig, unet_step
from shardwright.models.vgg import VGGConfig, vgg_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.planning.bound import compute_bound, parts_bound, plan_bound
from shardwright.passes.planning.bound_wires import wires_of
from shardwright.passes.planning.candidate_compiler import CandidateCompiler
from shardwright.passes.planning.candidates import Candidate, Layout, presets, searched
from shardwright.passes.planning.layouts import MOST_PARTS, accumulations, duplexes, meshes, pipelines
from shardwright.passes.planning.notes import Refused
from shardwright.passes.planning.solutions import Finished
from shardwright.passes.step.step_view import step_views

PROGRAMS = 10
"""How many programs are made for each seed."""

ULP = 1.0 + 1e-9


@cache
def step(name: str) -> ModuleOp:
    if name == "unet":
        given = unet_step(UNetConfig(widths=(8, 16, 32), image=16, attention=1), batch=16)
    elif name == "gpt2":
        given = one_layer_gpt2()
    elif name == "batch-norm":
        given = vgg_step(VGGConfig((1, 1), (8, 16), hidden=32, image=8, classes=10, batch_norm=True), batch=16)
    else:
        given = training_step(name)
    module = import_training_step(given)
    run_pipeline(context(), module, "prepare")
    return module


def hosts(inside: float, outside: float, kinds: tuple[int, ...] = (0, 0, 0, 0)) -> Cluster:
    """Two hosts of two devices, of two kinds, with a NIC each."""
    levels = (Level("wire", 1e-6, inside), Level("nic", 1e-5, outside))
    topology = Topology(levels, (Host(2, "wire", "nic", count=2),))
    return Cluster("hosts", Mesh.of(node=2, gpu=2), devices(), kinds, (), topology=topology)


def devices() -> tuple[Device, Device]:
    first = Device("a", (("float32", 1e10),), 1e11, 1e12, 1e-6, overhead=1e-5)
    return first, replace(first, kind="b", flops=(("float32", 3e9),), memory_bandwidth=5e10)


def some_cluster(chance: random.Random) -> Cluster:
    """A cluster with hosts or without, fast or slow, whose devices may differ."""
    kinds = tuple(chance.choice([(0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 0, 0)]))
    around = Interference(chance.choice([1.0, 1.3, 0.8]), chance.choice([1.0, 1.5, 0.7]))
    if chance.random() < 0.7:
        return replace(hosts(10 ** chance.uniform(9, 11), 10 ** chance.uniform(7, 10), kinds), interference=around)
    ranks = chance.choice([2, 4])
    link = Link("gpu", 10 ** chance.uniform(-7, -4), 10 ** chance.uniform(-11, -8))
    return Cluster("line", Mesh.of(gpu=ranks), devices(), kinds[:ranks], (link,), around)


def layouts(bench: CandidateCompiler) -> list[Layout]:
    """All ways to cut the batch, on all meshes, and whole batches with batch-norms as single ops."""
    found: list[Layout] = []
    for mesh in meshes(bench.cluster):
        found += [Layout(mesh), *([Layout(mesh, fused=True)] if bench.has_batch_norm else [])]
        if bench.cut_refusal() is not None:
            continue
        found += [*accumulations(mesh, bench.rows), *duplexes(mesh, bench.rows)]
        for each in pipelines(mesh, bench.rows, bench.layers):
            found += [replace(each, schedule=name) for name in ("auto", "gpipe", "1f1b", "zero-bubble")]
            found.append(replace(each, schedule="auto", chunks=2))
    return [each for each in found if each.parts <= MOST_PARTS]


def programs(bench: CandidateCompiler, chance: random.Random) -> Iterator[Finished]:
    """Programs of some layouts and strategies."""
    every, made = layouts(bench), 0
    mixed = len(bench.cluster.kinds_used) > 1
    for _ in range(4 * PROGRAMS):
        layout = chance.choice(every)
        choice = chance.choice([*presets(layout.mesh), searched(1.0, 1.0), searched(0.25, 1.0)])
        keep = chance.choice([1.0, 1.0, 0.5])
        given = replace(choice, balanced=mixed and chance.random() < 0.3)
        try:
            one = bench.keeping(keep)
            yield one.finish(one.solve(Candidate(replace(layout, keep=keep), given)))
        except Refused:
            continue
        made += 1
        if made == PROGRAMS:
            return


def bound_of(bench: CandidateCompiler, made: Finished) -> float:
    """The bound of the family that a program is of."""
    layout = made.candidate.layout
    if any(any(ratios_of(view.func, view.mesh).values()) for view, _ in step_views(made.module)):
        return compute_bound(bench)
    if layout.mode == "whole":
        return plan_bound(bench, [Layout(layout.mesh, fused=layout.fused)], rounds=4).seconds
    return parts_bound(bench, layout, rounds=3)


CONVOLUTIONS = [pytest.param("unet", seed, marks=pytest.mark.thorough) for seed in range(3)]
SMALL = covering(["gpt2", "mlp-tiny", "batch-norm"], range(3), every=3)


@pytest.mark.parametrize(("name", "seed"), [*SMALL, *CONVOLUTIONS])
def test_no_program_in_parts_is_faster(name: str, seed: int) -> None:
    """The bound of each plan and the bound of all plans are at most its step, for every layout and strategy."""
    chance = random.Random(f"{name} {seed}")
    module, cluster = step(name).clone(), some_cluster(chance)
    add_cluster(module, cluster)
    bench = CandidateCompiler(module, cluster)
    count = 0
    for made in programs(bench, chance):
        count += 1
        assert compute_bound(bench) <= made.seconds * ULP, made.candidate.name
        assert bound_of(bench, made) <= made.seconds * ULP, made.candidate.name
    assert count


def test_a_pipeline_is_close_to_its_bound() -> None:
    """With nothing to send, what a plan takes beyond the bound is what its stages wait for gradients."""
    module = step("gpt2-tiny").clone()
    cluster = hosts(1e13, 1e13)
    add_cluster(module, cluster)
    bench = CandidateCompiler(module, cluster)
    layout = Layout(bench.own_mesh, "pipeline", 8, 2)
    best = bench.finish(bench.solve(Candidate(layout, searched(1.0, 1.0))))
    bound = parts_bound(bench, layout)
    assert compute_bound(bench) < 0.75 * best.seconds < bound <= best.seconds


def test_a_port_carries_what_goes_over_either_group() -> None:
    """Both collectives over hosts alone, and those over all devices, pass the NIC; no wire is implied by another."""
    names = [wire.name for wire in wires_of(hosts(1e10, 1e9))]
    assert "node + node gpu" in names
    assert "node" not in names


def test_streams_count_alone_where_times_were_measured() -> None:
    """The latency within a measured time is not known, so that ports are not counted."""
    points = (("all_reduce", 1e6, 1e-3),)
    cluster = replace(hosts(1e10, 1e9), links=(Link("node", 1e-5, 1e-9, points=points),))
    each = (("node",), ("gpu",), ("node", "gpu"))
    assert [wire.loads for wire in wires_of(cluster)] == [((axes, 1.0),) for axes in each]
    (alone,) = wires_of(Cluster("line", Mesh.of(gpu=2), devices(), (0, 0), (Link("gpu", 1e-6, 1e-9),)))
    assert alone.name == "gpu"
