"""
Measure how exact search scales with depth: time of `solve` on synthetic training graphs of 2 to 48 equal layers.

    python benchmarks/solver_scaling.py [layers ...]
"""

from __future__ import annotations

from time import perf_counter

from _report import arguments, parsed
from synthetic_problems import layered_problem

from shardwright.passes.search.eliminate import solve


def main() -> None:
    """Print a line for each depth."""
    parser = arguments(__doc__)
    parser.add_argument("layers", nargs="*", type=int, default=[2, 4, 6, 12, 24, 48])
    depths = parsed(parser, layers=[2]).layers
    titles = ("layers", "nodes", "edges", "states", "left", "computed", "seconds")
    print(*(f"{title:>8}" for title in titles), " by step")
    for layers in depths:
        problem = layered_problem(layers)
        start = perf_counter()
        solution = solve(problem)
        seconds = perf_counter() - start
        statistics = solution.statistics
        steps = ", ".join(
            f"{name.removeprefix('seconds_')} {value:.2f}"
            for name, value in statistics.items()
            if name.startswith("seconds_")
        )
        counts = (layers, len(problem.unary), len(problem.edges), statistics["states_given"])
        print(
            *(f"{count:8}" for count in (*counts, statistics["nodes_reduced"], statistics["computed"])),
            end=" ",
        )
        print(f"{seconds:8.3f}  {steps}")


if __name__ == "__main__":
    main()
