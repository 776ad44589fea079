"""
Plan GPT-2 small for four devices with and without `decompose-cross-entropy`, to see the gain of a split vocabulary.

    python benchmarks/vocabulary.py

Without the pass, each row of scores must be on one device. The scores are therefore gathered, or the head runs on parts
of the batch with the whole table. All figures are predictions of the plans: step time, bytes in collectives, and peak
memory of a rank.
"""

from __future__ import annotations

import re
from typing import Any

from _report import Rows, arguments, parsed, publish

from shardwright.api.compile import CompiledStep, PlanOptions, import_training_step, lower
from shardwright.ir.cluster import Cluster, Device, Link
from shardwright.ir.mesh import Mesh
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.passes.decompose_cross_entropy import DecomposeCrossEntropyPass
from shardwright.passes.pipeline import Pipeline

_DEVICE = Device("gpu", (("float32", 2e13),), 1e12, 4e10, 5e-6)
_LINKS = {"1 GB/s": 1e-9, "50 GB/s": 2e-11}
_STEPS = {"1 x 512": (1, 512), "4 x 1024": (4, 1024)}


def cluster(beta: float) -> Cluster:
    """Return four devices on a link with `beta` seconds per byte."""
    mesh = Mesh.of(gpu=4)
    return Cluster("four", mesh, (_DEVICE,), (0,) * 4, (Link("gpu", 1e-5, beta),))


def figures(plan: CompiledStep) -> dict[str, Any]:
    """Return the predicted figures of a plan, and the ops that are split along the vocabulary."""
    parts = sorted(set(re.findall(r"rt\.(\w+)_part\(", plan.program)))
    return {
        "step ms": 1e3 * plan.report["predicted_step_s"],
        "sent MB": sum(plan.report["collective_bytes"].values()) / 1e6,
        "peak GB": max(plan.report["peak_bytes"]) / 1e9,
        "search s": plan.report["pass_seconds"]["search-strategy"],
        "on parts of the vocabulary": ", ".join(parts),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tokens", nargs="+", choices=_STEPS, default=list(_STEPS), help="batches, as rows x length")
    rows = Rows()
    for tokens in parsed(parser, tokens=list(_STEPS)[:1]).tokens:
        batch, length = _STEPS[tokens]
        imported = import_training_step(gpt2_step(GPT2Config(), batch=batch, length=length))
        for link, beta in _LINKS.items():
            passes = PlanOptions("eliminate").passes(cluster(beta))
            fused = Pipeline(tuple(each for each in passes if not isinstance(each, DecomposeCrossEntropyPass)))
            for name, pipeline in (("fused", fused), ("pieces", passes)):
                options = PlanOptions(pipeline=pipeline)
                plan = lower(imported.clone(), cluster(beta), options, name="gpt2", step_spec=None, seconds={})
                rows.append({"tokens": tokens, "link": link, "cross-entropy": name, **figures(plan)})
    publish("vocabulary", rows)


if __name__ == "__main__":
    main()
