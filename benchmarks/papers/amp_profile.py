"""Fit the constants of a V100 to AMP's profile of single layers."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from _fit_constants import Constant, fit_constants
from amp_plans import GPT2_RUN, TRANSGAN_RUN, Workload, device, halved, imported

from shardwright.dialects.step import BACKWARD
from shardwright.dialects.train import is_update
from shardwright.ir.cluster import Cluster, Device, Link
from shardwright.ir.mesh import Mesh
from shardwright.ir.op_cost import OpWork, op_seconds
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.compute import op_work
from shardwright.passes.stages.stage_costs import whole_signature
from shardwright.passes.step.layers import find_layers
from shardwright.passes.step.step_view import step_views

Works = tuple[tuple[OpWork, int], ...]

PROFILED = (
    (GPT2_RUN, "gpt2_P3", slice(2, 26), 10),
    (TRANSGAN_RUN, "transgan_P3", slice(3, 15), 8),
    (TRANSGAN_RUN, "transgan_P3", slice(41, 53), 25),
)
"""Measured layers: a model, the name of its profile, AMP's slots of equal layers, and our number of one of them."""

BY_DATA_SHEET = {"flops": 125 / 65, "bandwidth": 900 / 320, "attention": 900 / 320, "half size": 125 / 65, "launch": 1}
"""Ratios of a V100 to a T4. Memory bounds attention that writes out scores; the host bounds launches."""

UNSURE = {"flops": 1.5, "bandwidth": 1.2, "attention": 1.5, "half size": 1.5, "launch": 10.0}
"""Factors of uncertainty of the constants. A profiled layer runs alone, so Python's launch times are exposed."""


@cache
def forward_works(workload: Workload, layer: int) -> Works:
    """Return the counts of the works in a layer's forward for one sample, in half precision."""
    module = imported(workload, written_out=workload.written_out).clone()
    alone = Cluster("alone", Mesh.of(gpu=1), (Device("any", (("float32", 1e12),), 1e12, 1e15),), (0,), (_LINK,))
    add_cluster(module, alone)
    ((view, _),) = step_views(module)
    layers = find_layers(view)
    ops = [op for op in view.ops if layers.of.get(op) == layer and BACKWARD not in op.attributes and not is_update(op)]
    counts = Counter(op_work(op, whole_signature(op), Mesh(()), keyed=False) for op in ops)
    part = 1 / workload.batch
    return tuple(
        (halved(replace(work, flops=work.flops * part, bytes=work.bytes * part)), count)
        for work, count in counts.items()
    )


_LINK = Link("gpu", 0.0, 1e-10)


def profiled_seconds(data: Path) -> list[float]:
    """Return AMP's measured seconds of one sample's forward in each layer of `PROFILED`."""
    costs = json.loads((data / "amp_layer_costs.json").read_text())
    return [statistics.median(costs[name]["fwd_s"]["1"][slots]) for _, name, slots, _ in PROFILED]


def predicted_seconds(constants: Mapping[str, float]) -> list[float]:
    """Return the predicted seconds of one sample's forward in each layer of `PROFILED`."""
    gpu = device(constants, 0.0)
    return [
        sum(count * op_seconds(gpu, work) for work, count in forward_works(workload, layer))
        for workload, _, _, layer in PROFILED
    ]


def v100(t4: Mapping[str, float], data: Path) -> dict[str, float]:
    """Return the constants of a V100: a T4's, scaled by the ratios of data sheets and fitted to the profile."""
    expected = [Constant(name, t4[name] * ratio, UNSURE[name]) for name, ratio in BY_DATA_SHEET.items()]
    return dict(fit_constants(predicted_seconds, profiled_seconds(data), expected).constants)
