"""
Measure how long the simulation of one planned step takes: GPTs on 8 and on 1,024 devices.

    python benchmarks/simulation.py [--repeat N] [--plans FOLDER] [CASE ...]

The times exclude capture, planning and parsing; plans are kept in FOLDER and reused. Parameters are spread over all
devices (ZeRO-3), so that there is much communication. `again` simulates the same module once
more, as at the points of a sweep.
"""

from __future__ import annotations

import gc
import statistics
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from _report import RESULTS, arguments, parsed, plot_bars, publish
from _steps import planned
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import PlanOptions, import_training_step
from shardwright.api.files import write_atomically
from shardwright.dialects.text import module_text
from shardwright.ir.cluster import Cluster, Device, Link
from shardwright.ir.mesh import Mesh
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.tools.ir_input import load_module

_STAGES = (
    "prepare,partition-stages{stages=8},search-strategy{algorithm=fixed pins=zero3},"
    "program{mode=pipeline parts=16 schedule=1f1b},finish"
)
_H100 = Device("h100", (("float32", 494e12),), 3.35e12, 80e9, 4e-6)


@dataclass(frozen=True)
class Case:
    """A GPT on a mesh, with the passes of its plan; the default is the passes of `plan`."""

    layers: int
    mesh: Mesh
    batch: int
    passes: str = ""


CASES = {
    "12 layers, 8 devices": Case(12, Mesh.of(gpu=8), 64),
    "96 layers, 1,024 devices": Case(96, Mesh.of(node=128, gpu=8), 1024),
    "96 layers, 1,024 devices, 8 stages, 16 parts": Case(96, Mesh.of(node=128, gpu=8), 2048, _STAGES),
}


def plan_of(name: str, folder: Path) -> ModuleOp:
    """Return the plan of a case from its file, which is made if missing."""
    path = folder / f"{name.replace(', ', '-').replace(',', '').replace(' ', '_')}.mlir"
    if not path.exists():
        case = CASES[name]
        step = gpt2_step(GPT2Config(layers=case.layers, width=1024, heads=16), batch=case.batch, length=256)
        links = (Link(axis.name, 25e-6 if axis.name == "node" else 12e-6, 1 / 45e9) for axis in case.mesh.axes)
        cluster = Cluster("h100", case.mesh, (_H100,), (0,) * case.mesh.device_count, tuple(links))
        passes = [case.passes] if case.passes else PlanOptions("fixed", "zero3").passes(cluster)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, module_text(planned(import_training_step(step), cluster, *passes)))
    return load_module(str(path))


def measure(name: str, repeat: int, plans: Path) -> dict[str, Any]:
    """Simulate a case several times; the first simulation has empty caches."""
    module = plan_of(name, plans)
    seconds, result = list[float](), None
    for _ in range(1 + repeat):
        gc.collect()
        start = perf_counter()
        (result,) = simulate_module(module)
        seconds.append(perf_counter() - start)
    first, *again = seconds
    assert result is not None
    events = sum(map(len, result.execution.entries)) + len(result.execution.traffic)
    row = {"case": name, "ops": sum(1 for _ in result.func.walk()), "classes": len(result.classes), "events": events}
    row |= {"step s": result.seconds, "simulation s (first)": first}
    return row | {"again s (median)": statistics.median(again)}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--plans", type=Path, default=RESULTS / "plans")
    parser.add_argument("cases", nargs="*", default=list(CASES))
    options = parsed(parser, repeat=1, cases=list(CASES)[:1])
    rows = [measure(name, options.repeat, options.plans) for name in options.cases]
    publish("simulation", rows)
    heights = {"first time": [row["simulation s (first)"] for row in rows]}
    labels = [row["case"].replace(", ", "\n") for row in rows]
    plot_bars("simulation", labels, heights, title="Run time of the simulator", ylabel="time to simulate a step, s")


if __name__ == "__main__":
    main()
