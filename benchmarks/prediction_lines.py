"""
Measure every statement of a plan's program and compare it with the cost model, to see where a prediction is wrong.

    python benchmarks/prediction_lines.py "mlp-small x2" zero3 [--seconds 6]

The plan must exist: `benchmarks/prediction.py` keeps its cluster and its IR. Measured times are means over ranks; the
time of a collective includes waiting for other ranks. The model counts the full time of an asynchronous collective at
its `start`, although most of it may overlap computation.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from _prediction_cases import GROUPS
from _prediction_ranks import Local, statements, time_lines
from _prediction_steps import STEPS
from _prediction_study import Study
from _report import RESULTS, Rows, arguments, parsed, publish, skip

from shardwright.ir.cluster_fields import ClusterFileError
from shardwright.lowering.codegen.names import identifier
from shardwright.passes.analysis.simulation.timeline import Timeline
from shardwright.runtime import run_ranks

_CALL = re.compile(r"""(?:.* = )?(comm\.start\(['"]\w+|[\w.]+)""")


def calls(program: str) -> list[tuple[str, str]]:
    """Return for each statement the first name that it assigns (or "") and the function that it calls."""
    pairs: list[tuple[str, str]] = []
    for line in statements(program):
        target, equals, _ = line.partition(" = ")
        called = _CALL.match(line)
        name = re.split(r"\W", target.strip("( "), maxsplit=1)[0] if equals else ""
        pairs.append((name, called[1] if called else line))
    return pairs


def by_name(timeline: Timeline) -> dict[str, float]:
    """Return the seconds of ops, by the name that the program gives to their first result."""
    seconds: dict[str, float] = defaultdict(float)
    for event in timeline.events:
        _, percent, hint = event.name.partition(" %")
        seconds[identifier(hint) if percent else event.name] += event.end - event.start
    return seconds


def rows_of(program: str, measured: Sequence[float], predicted: dict[str, dict[str, float]]) -> Rows:
    """Return a row for each kind of statement, the slowest first."""
    rows: dict[str, dict[str, Any]] = {}
    for (name, called), seconds in zip(calls(program), measured, strict=True):
        row = rows.setdefault(called, {"statement": called, "times": 0, "measured ms": 0.0})
        row["times"] += 1
        row["measured ms"] += 1e3 * seconds
        for back_end, by_result in predicted.items():
            # `pop` counts a name once: a second assignment is the `wait` of the same collective.
            row[f"{back_end} ms"] = row.get(f"{back_end} ms", 0.0) + 1e3 * by_result.pop(name, 0.0)
    rest = {f"{back_end} ms": 1e3 * sum(seconds_left.values()) for back_end, seconds_left in predicted.items()}
    in_order = sorted(rows.values(), key=lambda row: -row["measured ms"])
    return [*in_order, {"statement": "no statement of that name", "times": 0, "measured ms": 0.0, **rest}]


def main() -> None:
    parser = arguments(__doc__)
    names = [group.name for group in GROUPS]
    parser.add_argument("group", nargs="?", default="gpt2-small x4", choices=names, metavar="GROUP")
    parser.add_argument("plan", nargs="?", default="dp", metavar="PLAN")
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parsed(parser, group="mlp-small x2", seconds=1.0)
    group = next(group for group in GROUPS if group.name == options.group)
    study = Study(Local(), [group], RESULTS / "prediction-local")
    folder = study.plan_path(group, options.plan)
    try:
        program = (folder / "program.py").read_text()
        # The first timeline belongs to the first stage, which has rank 0.
        predicted = {name: by_name(first) for name, (first, *_) in study.predicted(group, options.plan).items()}
    except (OSError, ClusterFileError) as error:
        skip(f"{error}; run python benchmarks/prediction.py first, which plans and measures")
    by_rank = run_ranks(time_lines, group.ranks, STEPS[group.step], program, options.seconds, timeout=300)
    measured = [statistics.fmean(times) for times in zip(*by_rank, strict=True)]
    publish("prediction-lines", rows_of(program, measured, predicted))


if __name__ == "__main__":
    main()
