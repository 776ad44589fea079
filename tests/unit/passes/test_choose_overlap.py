"""`choose-overlap`: the simulated step is no longer than by default, and shorter where it can be."""

import itertools
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import import_training_step
from shardwright.dialects.mesh_ops import ClusterOp
from shardwright.ir.cluster import Cluster, Link
from shardwright.ir.cluster_file import find_cluster
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.passes import choose_overlap
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.choose_overlap import ChooseOverlapPass
from shardwright.passes.overlap import OverlapPass
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.search.within_memory import HEADROOM

GPT2 = GPT2Config(layers=8, width=768, heads=12, vocabulary=1024, positions=256)
H100, HAP = find_cluster("h100-8x8"), find_cluster("hap-8x8")


@cache
def _sent(pins: str, where: str) -> ModuleOp:
    module = import_training_step(gpt2_step(GPT2, batch=256, length=256))
    add_cluster(module, find_cluster(where))
    passes = f"prepare,search-strategy{{algorithm=fixed pins={pins}}},communicate"
    run_pipeline(Context(), module, passes, verify_each=False)
    return module


def sent(pins: str, where: str) -> ModuleOp:
    """GPT-2 with its collectives."""
    return _sent(pins, where).clone()


def seconds(module: ModuleOp, overlap: OverlapPass | ChooseOverlapPass) -> float:
    """Of the simulated step."""
    made = module.clone()
    overlap.apply(Context(), made)
    run_pipeline(Context(), made, "join-updates", verify_each=False)
    return simulate_module(made)[0].seconds


def with_memory(module: ModuleOp, cluster: Cluster, memory: float) -> None:
    """Let devices have so many bytes."""
    devices = tuple(replace(each, memory=memory) for each in cluster.devices)
    add_cluster(module, replace(cluster, devices=devices))


@pytest.mark.parametrize(("pins", "where"), [("zero3", "h100-8x8"), ("dp", "hap-8x8")])
def test_no_way_that_is_tried_is_much_shorter(pins: str, where: str):
    module = sent(pins, where)
    found = seconds(module, ChooseOverlapPass())
    for ways in (OverlapPass(), OverlapPass(prefetch=2), OverlapPass(scale=2), OverlapPass(scale=0.5)):
        assert found <= seconds(module, ways) * 1.006


def test_the_step_is_shorter_where_buckets_of_other_sizes_hide_more():
    module = sent("zero3", "h100-8x8")
    assert seconds(module, ChooseOverlapPass()) < 0.97 * seconds(module, OverlapPass())


@pytest.mark.parametrize("room", [True, False])
def test_no_rank_holds_more_than_it_may_use(monkeypatch: pytest.MonkeyPatch, room: bool):
    """But for what it holds by default."""
    module, held = sent("zero3", "h100-8x8"), itertools.chain([1000], itertools.repeat(2000))
    monkeypatch.setattr(choose_overlap, "tightest_ranks", lambda _: [SimpleNamespace(bytes=next(held))])
    with_memory(module, H100, (2001 if room else 1999) / (1 - HEADROOM))
    chosen = choose_overlap._OverlapTrials(Context(), module).shortest()
    assert (chosen != OverlapPass()) == room


def test_without_a_cluster_it_is_overlap():
    module = sent("dp", "h100-8x8")
    for op in [each for each in module.ops if isinstance(each, ClusterOp)]:
        op.detach()
    plain = module.clone()
    ChooseOverlapPass().apply(Context(), module)
    OverlapPass().apply(Context(), plain)
    assert str(module) == str(plain)


def test_where_all_is_hidden_nothing_else_is_tried(monkeypatch: pytest.MonkeyPatch):
    links = tuple(Link(axis.name, 0.0, 1e-18) for axis in HAP.mesh.axes)
    module = sent("dp", "hap-8x8")
    add_cluster(module, replace(HAP, links=links, topology=None))
    tried: list[OverlapPass] = []
    apply = OverlapPass.apply
    monkeypatch.setattr(OverlapPass, "apply", lambda self, *given: (tried.append(self), apply(self, *given))[1])
    ChooseOverlapPass().apply(Context(), module)
    assert set(tried) == {OverlapPass()}
