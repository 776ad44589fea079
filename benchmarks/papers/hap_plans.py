"""
HAP's models and clusters (`hap.py`), and the ways of planning their steps.

The models are the models of HAP's released code at the sizes of its table 1, which counts parameters in units of 2^20:

- VGG19 has images of 32x32; its features of one pixel are repeated to 7x7 before the dense layers.
- ViT and both BERTs have 8 layers, sequences of 128 tokens or 64 patches, and a vocabulary of 33,280 words.
- BERT-MoE has two experts per GPU, two choices per token, and a room of 1.25 times the even share.

The batch is 64 samples per GPU, or 32 for BERT-MoE (7.1). A cluster of fewer than 64 GPUs has as many GPUs of every
machine, as the paper's artifact runs it.

The baselines are pipelines of passes. Each is judged on the mesh of machines and GPUs and on one axis of all GPUs, and
the faster one counts:

- DP-EV: data parallelism with equal shares of the batch, gradients in buckets and overlapped, as PyTorch's DDP.
- DP-CP: the same with shares in proportion to the FLOP/s of the GPUs.
- DeepSpeed: ZeRO 1 (which is the same program as ZeRO 2) or ZeRO 3. In a mixture of experts, the experts are split
  over all GPUs, with data parallelism or ZeRO 1 for all other parameters.
- HAP: A* and the linear program of shares in turn, on one axis of all GPUs. Its program overlaps communication as ours
  does, which HAP's does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from math import inf
from time import perf_counter
from typing import Any

import torch
from _plain_plans import Judged, pins_of, step_seconds, tightest
from _report import ROOT, progress
from _steps import planned, prepared
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from shardwright.api.training_step import TrainingStep
from shardwright.ir.cluster import Cluster
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import Axis, Mesh
from shardwright.ir.submesh import on_mesh, subcluster
from shardwright.models.bert import BertConfig, bert_step
from shardwright.models.moe import sparsely_gated
from shardwright.models.vgg import VGG, VGGConfig, vgg_step
from shardwright.models.vit import ViTConfig, vit_step
from shardwright.passes.errors import PassError
from shardwright.passes.planning.summary import read_plan
from shardwright.passes.search_plan import SearchPlanPass
from shardwright.passes.search_strategy import SearchStrategyPass
from shardwright.passes.step.step_view import step_functions

TURNS = 'fixed-point{pipeline="search-strategy{algorithm=astar},balance-ratios"}'
"""HAP's alternation between strategy and shares (3.1)."""

HOSTS = 8
EXPERTS = "[[pin]]\nvalue = \"layers.*.mlp.experts.*\"\nsharding = '[{%s}, {}, {}]'\n"
BERT = BertConfig(layers=8, vocabulary=33280, positions=128, tied=False)
VIT = ViTConfig(layers=8, image=32, patch=4, classes=10)


class SmallImageVGG(VGG):
    """VGG19 on images of 32x32, whose only pixel of features is repeated to 7x7 (adaptive average pooling)."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images).expand(-1, -1, 7, 7).flatten(1))


def vgg(gpus: int) -> TrainingStep:
    """Return VGG19 with 64 images of CIFAR-10 per GPU."""
    small = vgg_step(VGGConfig(image=32, classes=10), batch=64 * gpus)
    return replace(small, model=partial(SmallImageVGG, VGGConfig(classes=10)))


def moe(experts: int, batch: int, layers: int = 8, capacity: float = 1.25) -> TrainingStep:
    config = replace(BERT, layers=layers, experts=sparsely_gated(experts, capacity=capacity))
    return bert_step(config, batch=batch, length=128)


MODELS: Mapping[str, Callable[[int], TrainingStep]] = {
    "VGG19": vgg,
    "ViT": lambda gpus: vit_step(VIT, batch=64 * gpus),
    "BERT-Base": lambda gpus: bert_step(BERT, batch=64 * gpus, length=128),
    "BERT-MoE": lambda gpus: moe(2 * gpus, 32 * gpus),
}
"""The makers of the steps of table 1, by number of GPUs."""


@lru_cache(maxsize=2)
def imported(model: str, gpus: int) -> ModuleOp:
    """Return a prepared step of table 1."""
    return prepared(MODELS[model](gpus))


def machines(gpus: int, hosts: Sequence[int] = range(HOSTS)) -> Cluster:
    """Return as many GPUs of each of the hosts; hosts 0 and 1 have V100, and hosts 2 to 7 have P100."""
    each, rest = divmod(gpus, len(hosts))
    assert not rest
    mesh = Mesh.of(node=len(hosts), gpu=each) if each > 1 else Mesh.of(gpu=gpus)
    return subcluster(find_cluster("hap-8x8"), mesh, [host * HOSTS + gpu for host in hosts for gpu in range(each)])


def two_kinds(mesh: Mesh | None = None) -> Cluster:
    """Return the cluster of sections 2.4 and 7.6: a machine of two A100, and a machine of two P100."""
    cluster = find_cluster(ROOT / "benchmarks" / "clusters" / "hap-a100-p100.toml")
    return cluster if mesh is None else on_mesh(cluster, mesh)


def four_a100() -> Cluster:
    """Return two machines of two A100 on one axis, as in section 2.5.1, with the links of AutoDDL's servers."""
    return subcluster(find_cluster("autoddl-a100-2x16"), Mesh.of(gpu=4), (0, 1, 16, 17))


def flat(cluster: Cluster) -> Mesh:
    return Mesh((Axis("gpu", cluster.mesh.device_count),), cluster.mesh.name)


def in_a_row(cluster: Cluster) -> Cluster:
    """Return the cluster on one axis of all devices."""
    return on_mesh(cluster, flat(cluster))


def judge(step: ModuleOp, cluster: Cluster, name: str, *passes: str | ModulePass) -> Judged:
    """Return the simulated step of a plan, or the reason why it failed."""
    began = perf_counter()
    try:
        module = planned(step, cluster, *passes)
    except PassError as error:
        return Judged(name, name, refusal=str(error))
    plan = read_plan(step_functions(module)[0])
    judged = Judged(name, plan.chosen if plan is not None else name, step_seconds(module), *tightest(module))
    planning = perf_counter() - began
    progress({"devices": cluster.mesh.device_count, "way": name, "plan": judged.name, "planning s": round(planning, 1)})
    return judged


def by_speed(cluster: Cluster) -> str:
    """Return the pass that gives the parts of the first axis shares in proportion to the FLOP/s of their devices."""
    first, each = cluster.mesh.axes[0], cluster.mesh.device_count // cluster.mesh.axes[0].size
    rates = [dict(cluster.devices[kind].flops)["float32"] for kind in cluster.placement[::each]]
    shares = ",".join(repr(rate / sum(rates)) for rate in rates)
    return f'balance-ratios{{axis={first.name} ratios="{shares}"}}'


def fixed(preset: str, pins: str = "", axes: tuple[str, ...] = ("gpu",)) -> SearchStrategyPass:
    """Return the pass that completes a preset over the axes, and pins."""
    return SearchStrategyPass("fixed", pins_of((preset, axes)) + pins)


def baselines(step: ModuleOp, cluster: Cluster, *, has_experts: bool) -> dict[str, Judged]:
    """Return the fastest plan of each baseline that fits in memory, or a plan that does not fit."""
    best: dict[str, Judged] = {}
    for mesh in dict.fromkeys((cluster.mesh, flat(cluster))):
        placed, axes = on_mesh(cluster, mesh), mesh.names
        data_parallel = fixed("dp", axes=axes)
        ways: list[tuple[str, tuple[str | ModulePass, ...]]] = [("DP-EV", (data_parallel,))]
        if len(cluster.kinds_used) > 1:
            ways.append(("DP-CP", (data_parallel, by_speed(placed))))
        if has_experts:
            pins = EXPERTS % ", ".join(f'"{axis}"' for axis in axes)
            ways += (("DeepSpeed", (fixed(preset, axes=axes, pins=pins),)) for preset in ("dp", "zero1"))
        else:
            ways += (("DeepSpeed", (fixed(preset, axes=axes),)) for preset in ("zero1", "zero3"))
        for name, passes in ways:
            judged = judge(step, placed, name, *passes, "program")
            best[name] = min(best.get(name, judged), judged, key=_key)
    return best


def _key(judged: Judged) -> tuple[bool, float]:
    return not judged.counts, judged.step if judged.step is not None else inf


def haps(step: ModuleOp, cluster: Cluster) -> Judged:
    return judge(step, in_a_row(cluster), "HAP", TURNS, "program")


def auto(step: ModuleOp, cluster: Cluster, **options: Any) -> Judged:
    """Return the plan of `search-plan`, which leaves its lower bound out because it has no effect on the plan."""
    return judge(step, cluster, "auto", SearchPlanPass(bound_rounds=0, **options))


@cache
def all_ways(model: str, gpus: int, hosts: tuple[int, ...] = tuple(range(HOSTS))) -> Mapping[str, Judged]:
    """Return the plans of all baselines, of HAP's algorithm and of `search-plan`, by name."""
    step, cluster = imported(model, gpus), machines(gpus, hosts)
    found = baselines(step, cluster, has_experts=model == "BERT-MoE")
    return {**found, "HAP": haps(step, cluster), "auto": auto(step, cluster)}
