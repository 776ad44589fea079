"""Plans of shipped models, to run on simulated GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from split_cluster import hosts_cluster, launching_cluster, split_cluster

from shardwright.api.compile import PlanOptions, compile_step
from shardwright.api.training_step import Precision
from shardwright.ir.cluster import Cluster
from shardwright.ir.mesh import Mesh, parse_mesh
from shardwright.lowering.codegen.load_program import load_text
from shardwright.models.registry import MODELS, training_step
from shardwright.runtime import Stage

_SEARCHED = "prepare,search-strategy{algorithm=eliminate}"
_PHASES = f"{_SEARCHED},insert-resharding,select-collectives{{method=hierarchical}},overlap,finish"
_DUPLEX = f"{_SEARCHED},program{{mode=duplex parts=2}},finish"
_PARTS = f"{_SEARCHED},program{{parts=2}},finish"


def _stages(count: int, schedule: str, parts: int = 2) -> str:
    """Return a pipeline of passes for `count` stages and `parts` micro-batches."""
    program = f"program{{mode=pipeline parts={parts} schedule={schedule}}}"
    return f"prepare,partition-stages{{stages={count}}},search-strategy,{program},finish"


@dataclass(frozen=True)
class SimulatedPlan:
    """A shipped model, with the mesh, cluster and options of its plan."""

    model: str
    mesh: str
    options: PlanOptions
    cluster: Callable[[Mesh], Cluster] = split_cluster
    precision: Precision | None = None


PLANS = {
    "dp": SimulatedPlan("gpt2-tiny", "dp=2", PlanOptions("fixed", "dp")),
    "zero3": SimulatedPlan("gpt2-tiny", "dp=2", PlanOptions("fixed", "zero3"), launching_cluster),
    "bf16": SimulatedPlan("llama-tiny", "dp=2", PlanOptions("fixed", "zero3"), precision="bf16-mixed"),
    "tp": SimulatedPlan("bert-tiny", "tp=2", PlanOptions("fixed", "tp")),
    "hierarchical": SimulatedPlan("gpt2-tiny", "node=2,gpu=2", PlanOptions("fixed", "dp"), hosts_cluster),
    "searched": SimulatedPlan("gpt2-tiny", "node=2,gpu=2", PlanOptions("eliminate")),
    "in phases": SimulatedPlan("bert-switch-tiny", "node=2,gpu=2", PlanOptions(pipeline=_PHASES)),
    "uneven": SimulatedPlan("vit-tiny", "dp=2", PlanOptions("eliminate", ratios="0.75,0.25")),
    "experts": SimulatedPlan("mixtral-tiny", "dp=2", PlanOptions("eliminate"), precision="bf16-mixed"),
    "switch": SimulatedPlan("bert-switch-tiny", "dp=2", PlanOptions("eliminate")),
    "convolutions": SimulatedPlan("resnet50-tiny", "dp=2", PlanOptions("eliminate")),
    "unet": SimulatedPlan("utransformer-tiny", "dp=2", PlanOptions("eliminate")),
    "vgg": SimulatedPlan("vgg13-tiny", "dp=2", PlanOptions("eliminate")),
    "micro-batches": SimulatedPlan("gpt2-tiny", "dp=2", PlanOptions(pipeline=_PARTS)),
    "duplex": SimulatedPlan("gpt2-tiny", "tp=2", PlanOptions(pipeline=_DUPLEX)),
    "two stages, 1f1b": SimulatedPlan("gpt2-tiny", "dp=4", PlanOptions(pipeline=_stages(2, "1f1b"))),
    "two stages, gpipe": SimulatedPlan("gpt2-tiny", "dp=2", PlanOptions(pipeline=_stages(2, "gpipe"))),
    "four stages, 1f1b": SimulatedPlan("vgg13-tiny", "dp=4", PlanOptions(pipeline=_stages(4, "1f1b", 8))),
    "stages with skips": SimulatedPlan("utransformer-tiny", "dp=3", PlanOptions(pipeline=_stages(3, "1f1b"))),
}
"""A few plans of every kind."""

_HOW = {
    "dp": ("dp=2", PlanOptions("fixed", "dp")),
    "zero3": ("dp=2", PlanOptions("fixed", "zero3")),
    "tp": ("tp=2", PlanOptions("fixed", "tp")),
    "searched": ("node=2,gpu=2", PlanOptions("eliminate")),
}

MORE_PLANS = {
    f"{model}, {how}": SimulatedPlan(model, *_HOW[how]) for model in MODELS if model.endswith("-tiny") for how in _HOW
}
"""Every model under every preset, and with a searched plan."""


def stages_of(plan: SimulatedPlan) -> tuple[Stage, ...]:
    """Compile a plan and return the stages of its program."""
    step = replace(training_step(plan.model), precision=plan.precision)
    compiled = compile_step(step, plan.cluster(parse_mesh(plan.mesh)), plan.options)
    return tuple(Stage(*each) for each in load_text(compiled.program, "<program>"))


@cache
def program(name: str) -> Sequence[Stage]:
    """Return the stages of one of `PLANS`."""
    return stages_of(PLANS[name])
