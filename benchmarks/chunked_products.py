"""
Simulate a step whose products and collectives are split into parts, by bandwidth and number of parts.

    python benchmarks/chunked_products.py [--rates 100 200 400 800 1600]

A GPT-2 of 4 layers is split between two devices by tensor parallelism (step and cluster of `emulated.py`, which
measures them). Each cell is the step in milliseconds, and its ratio to the first column.
"""

from __future__ import annotations

import argparse
from typing import Any

from _report import parsed, publish
from emulated import COMPARISONS, STEPS, emulated_cluster
from xdsl.context import Context

from shardwright.api.compile import import_training_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.pipeline import run_pipeline


def rows(rates: list[int]) -> list[dict[str, Any]]:
    """Return a row for each bandwidth."""
    comparison = COMPARISONS["parts"]
    imported = import_training_step(STEPS[comparison.step]())
    table: list[dict[str, Any]] = []
    for rate in rates:
        seconds: dict[str, float] = {}
        for name, passes in comparison.pipelines.items():
            module = imported.clone()
            add_cluster(module, emulated_cluster(comparison, f"{rate}mbit"))
            run_pipeline(Context(), module, passes)
            seconds[name] = sum(stage.seconds for stage in simulate_module(module))
        whole = next(iter(seconds.values()))
        table.append({"Mbit/s": rate} | {name: f"{1e3 * s:.1f} ({s / whole:.3f})" for name, s in seconds.items()})
    return table


def main() -> None:
    """Print the table, and write a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=int, nargs="+", default=[100, 200, 400, 800, 1600], help="bandwidths in Mbit/s")
    options = parsed(parser, rates=[100])
    listed = " ".join(map(str, options.rates))
    publish("chunked_products", rows(options.rates), command=f"python benchmarks/chunked_products.py --rates {listed}")


if __name__ == "__main__":
    main()
