"""
Compare the topology's costs of collectives with NCCL on H100s, for cluster sizes that were not used for fitting.

    python benchmarks/nccl_tables.py --data DIR [--splits 20]

`DIR/nccl_h100_tables.json` has a latency and a bandwidth for each number of nodes and of GPUs in a node, by algorithm
and protocol. Five physical constants for each algorithm and protocol (start of a collective, latency of a step inside a
node and between nodes, and both bandwidths) are fitted to a random half of these settings, with times at eleven sizes
from 1 KiB to 1 GiB. Errors are measured on the other half. `extrapolated` is fitted to at most 8 nodes and measured on
16 and 32. `chosen` is the fastest of all algorithms and protocols, as NCCL chooses.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from _fit_constants import Constant, fit_constants
from _report import Rows, arguments, given_data, parsed, plot_scatter, publish

from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.topology import Host, Level, Topology
from shardwright.ir.topology_cost import topology_costs

SIZES = tuple(1024 * 4**i for i in range(11))
KINDS = {
    "h100_agrs_ring": "all_gather",
    "h100_ar_ring": "all_reduce:ring",
    "h100_ar_tree": "all_reduce:tree",
    "h100_ar_nvls_tree": "all_reduce:switch",
}
PROTOCOLS = ("LL", "LL128", "Simple")
EXPECTED = (
    Constant("start", 8e-6, 10.0),
    Constant("inside latency", 2e-6, 10.0),
    Constant("nic latency", 8e-6, 10.0),
    Constant("inside bandwidth", 300e9, 10.0),
    Constant("nic bandwidth", 45e9, 10.0),
)
"""Values of data sheets, with a factor of uncertainty of ten."""

Setting = tuple[int, int]
"""Number of nodes, and number of GPUs in a node."""

Line = tuple[float, float]
"""Latency in seconds, and seconds per byte."""

Split = tuple[Sequence[Setting], Sequence[Setting]]
"""Settings for fitting, and settings for prediction."""

CHOSEN = "chosen"
"""Protocol name for the fastest of all algorithms and protocols."""


@dataclass(frozen=True)
class Table:
    """The published seconds of an algorithm and protocol, at all sizes."""

    kind: str
    protocol: str
    seconds: Mapping[Setting, Sequence[float]]

    @property
    def collective(self) -> str:
        """Return the kind without its algorithm."""
        return self.kind.split(":")[0]


def read_tables(path: Path) -> list[Table]:
    """Return all tables of the file."""
    tables: list[Table] = []
    for name, cells in json.loads(path.read_text())["tables"].items():
        kind = KINDS[name]
        by_protocol = {key: [value] if isinstance(value[0], float) else value for key, value in cells.items()}
        count = len(next(iter(by_protocol.values())))
        for index, protocol in enumerate(PROTOCOLS if count > 1 else ("Simple",)):
            seconds: dict[Setting, list[float]] = {}
            for key, lines in by_protocol.items():
                nodes, gpus = key.split("x")
                microseconds, gigabytes = lines[index]
                seconds[int(nodes), int(gpus)] = times((microseconds * 1e-6, 1e-9 / gigabytes))
            tables.append(Table(kind, protocol, seconds))
    return tables


def chosen(tables: Sequence[Table]) -> list[Table]:
    """Return for each collective the least seconds over all algorithms and protocols."""
    fastest: list[Table] = []
    for collective in dict.fromkeys(table.collective for table in tables):
        own = [table for table in tables if table.collective == collective]
        settings = dict.fromkeys(setting for table in own for setting in table.seconds)
        listed = {s: [table.seconds[s] for table in own if s in table.seconds] for s in settings}
        fastest.append(
            Table(collective, CHOSEN, {s: [*map(min, zip(*runs, strict=True))] for s, runs in listed.items()})
        )
    return fastest


def topology(setting: Setting, hop: float, step: float, inside: float, nic: float) -> Topology:
    """Return nodes with a NIC for each GPU."""
    levels = (Level("inside", hop, inside), Level("nic", step, nic))
    return Topology(levels, (Host(setting[1], "inside", "nic", nics=setting[1], count=setting[0]),))


@cache
def coefficients(kind: str, setting: Setting) -> tuple[float, float, float, float]:
    """
    Return the numbers of steps inside nodes and between nodes, and the shares of the value that pass the busiest wire
    inside a node and the busiest NIC.

    Costs are linear in latencies if a step inside a node is the faster one, and the maximum of two terms in bandwidths.
    """
    groups = (tuple(range(setting[0] * setting[1])),)
    between, _ = topology_costs(topology(setting, 0.0, 1.0, 1.0, 1.0), kind, groups)
    both, _ = topology_costs(topology(setting, 1.0, 1.0, 1.0, 1.0), kind, groups)
    _, inside = topology_costs(topology(setting, 1.0, 1.0, 1.0, math.inf), kind, groups)
    _, out = topology_costs(topology(setting, 1.0, 1.0, math.inf, 1.0), kind, groups)
    return both - between, between, inside, out


def predicted(kind: str, setting: Setting, constants: Mapping[str, float]) -> Line:
    """Return the topology's prediction for one collective over all GPUs."""
    if kind == "all_reduce":
        ring, tree = (predicted(f"{kind}:{algorithm}", setting, constants) for algorithm in ("ring", "tree"))
        return min(ring[0], tree[0]), ring[1]
    hops, steps, inside, out = coefficients(kind, setting)
    latency = constants["start"] + hops * constants["inside latency"] + steps * constants["nic latency"]
    return latency, max(inside / constants["inside bandwidth"], out / constants["nic bandwidth"])


def fitted(tables: Sequence[Table], settings: Iterable[Setting]) -> dict[str, float]:
    """Return the constants that explain the times of some settings best, in all tables."""
    pairs = [(table, at) for at in settings for table in tables if at in table.seconds]

    def model(constants: Mapping[str, float]) -> Sequence[float]:
        lines = [predicted(table.kind, at, constants) for table, at in pairs]
        return [seconds for line in lines for seconds in times(line)]

    measured = [seconds for table, at in pairs for seconds in table.seconds[at]]
    return dict(fit_constants(model, measured, EXPECTED).constants)


def times(line: Line) -> list[float]:
    return [line[0] + line[1] * size for size in SIZES]


def split(tables: Sequence[Table], seed: int | None) -> Split:
    """Return a split into random halves, or without a seed the split at 8 nodes."""
    settings = sorted({setting for table in tables for setting in table.seconds})
    if seed is None:
        seen = {setting for setting in settings if setting[0] <= 8}
    else:
        seen = set(random.Random(seed).sample(settings, len(settings) // 2))
    return [s for s in settings if s in seen], [s for s in settings if s not in seen]


def errors_of(tables: Sequence[Table], settings: Split) -> dict[str, list[float]]:
    """
    Return the errors on unseen settings: by algorithm and protocol; of the fastest choice for each collective; and of
    one set of constants (as in a cluster file) that is fitted to the fastest choices.
    """
    errors: dict[str, list[float]] = {}
    ours: list[Table] = []
    for table in tables:
        constants = fitted([table], settings[0])
        unseen = [setting for setting in settings[1] if setting in table.seconds]
        ours.append(Table(table.kind, table.protocol, {s: times(predicted(table.kind, s, constants)) for s in unseen}))
        errors[f"{table.kind} {table.protocol}"] = compared(ours[-1], table)
    best = chosen(tables)
    for own, theirs in zip(chosen(ours), best, strict=True):
        errors[f"{own.collective} {CHOSEN}"] = compared(own, theirs)
    constants = fitted(best, settings[0])
    for table in best:
        own = {s: times(predicted(table.kind, s, constants)) for s in settings[1]}
        errors[f"{table.collective} {CHOSEN}, one set"] = compared(Table(table.kind, CHOSEN, own), table)
    errors["all algorithms and protocols"] = [e for table in tables for e in errors[f"{table.kind} {table.protocol}"]]
    return errors


def compared(ours: Table, theirs: Table) -> list[float]:
    pairs = ((a, b) for s, mine in ours.seconds.items() for a, b in zip(mine, theirs.seconds[s], strict=True))
    return [abs(a / b - 1.0) for a, b in pairs]


def rows(tables: Sequence[Table], splits: int) -> Rows:
    """Return a row per algorithm and protocol: medians over the splits, the worst split, and errors beyond 8 nodes."""
    by_split = [errors_of(tables, split(tables, seed)) for seed in range(splits)]
    beyond = errors_of(tables, split(tables, None))
    table = Rows()
    for name, extrapolated in beyond.items():
        medians = [statistics.median(errors[name]) for errors in by_split]
        row = {"collective": name, "times unseen": len(by_split[0][name])}
        row |= {"median error": statistics.median(medians), "of the worst split": max(medians)}
        row |= {"90 % below": statistics.median(_quantile(errors[name], 0.9) for errors in by_split)}
        table.append(row | {"extrapolated": statistics.median(extrapolated)})
    return table


def _quantile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(int(part * len(values)), len(values) - 1)]


def constant_rows(tables: Sequence[Table]) -> Rows:
    """Return the constants that are fitted to all settings, in readable units."""
    table = Rows()
    settings = sorted({setting for table in tables for setting in table.seconds})
    for name, own in [*((f"{table.kind} {table.protocol}", [table]) for table in tables), ("one set", chosen(tables))]:
        constants = fitted(own, settings)
        row: dict[str, Any] = {"algorithm": name}
        for constant, value in constants.items():
            is_rate = "bandwidth" in constant
            row[f"{constant} {'GB/s' if is_rate else 'us'}"] = value * (1e-9 if is_rate else 1e6)
        table.append(row)
    return table


def shipped_rows(tables: Sequence[Table]) -> Rows:
    """Return the errors of the shipped H100 cluster against NCCL's choices, by collective, over all settings."""
    where = find_cluster("h100-8x8").topology
    assert where is not None
    inside, nic = (next(level for level in where.levels if level.name == name) for name in ("nvlink", "infiniband"))
    values = (nic.start, inside.latency, nic.latency, inside.bandwidth, nic.bandwidth)
    constants = {constant.name: value for constant, value in zip(EXPECTED, values, strict=True)}
    errors_by_table = Rows()
    for table in chosen(tables):
        ours = {setting: times(predicted(table.kind, setting, constants)) for setting in table.seconds}
        errors = compared(Table(table.kind, CHOSEN, ours), table)
        row = {"median error": statistics.median(errors), "90 % below": _quantile(errors, 0.9)}
        errors_by_table.append({"h100-8x8.toml": table.kind, "times": len(errors), **row})
    return errors_by_table


def scatter(tables: Sequence[Table], settings: Split) -> None:
    """Plot predicted against published times of the unseen half of one split."""
    series: dict[str, list[tuple[float, float]]] = {}
    for table in tables:
        constants = fitted([table], settings[0])
        for setting in (s for s in settings[1] if s in table.seconds):
            pairs = zip(table.seconds[setting], times(predicted(table.kind, setting, constants)), strict=True)
            series.setdefault(table.kind, []).extend(pairs)
    plot_scatter("nccl_tables", series, title="Collectives of NCCL", xlabel="published, s", ylabel="predicted, s")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--splits", type=int, default=20)
    options = parsed(parser, splits=1)
    tables = read_tables(given_data(options, "nccl_h100_tables.json") / "nccl_h100_tables.json")
    publish("nccl_constants", constant_rows(tables))
    publish("nccl_tables", rows(tables, options.splits))
    publish("nccl_shipped", shipped_rows(tables))
    scatter(tables, split(tables, 0))


if __name__ == "__main__":
    main()
