"""
What the topology's costs of collectives say of NCCL on H100s, of sizes of clusters that they were not fitted to.

    python benchmarks/nccl_tables.py --data DIR [--splits 20]

`DIR/nccl_h100_tables.json` has a latency and a bandwidth for each number of nodes and of GPUs in a node, by algorithm
and protocol. Five physical constants for each algorithm and protocol (what a collective takes to begin, the latency of
a step inside a node and of one between nodes, and the bandwidth of each) are fitted to a random half of these settings,
with times at eleven sizes from 1 KiB to 1 GiB; the errors are those of the other half. `extrapolated`: fitted to at
most 8 nodes, the errors are those of 16 and 32. `chosen`: the fastest of all algorithms and protocols, as NCCL chooses.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from _report import plot_scatter, publish

from shardwright.ir.robust_fit import Constant, fit_constants
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
"""What data sheets say, and a factor of ten."""

Setting = tuple[int, int]
"""Nodes, and GPUs of each."""

Line = tuple[float, float]
"""Seconds of latency, and seconds per byte."""


@dataclass(frozen=True)
class Table:
    """The published lines of an algorithm and protocol."""

    collective: str
    kind: str
    protocol: str
    lines: Mapping[Setting, Line]


def read_tables(path: Path) -> list[Table]:
    """All of the file."""
    found: list[Table] = []
    for name, cells in json.loads(path.read_text())["tables"].items():
        kind = KINDS[name]
        by_protocol = {key: [value] if isinstance(value[0], float) else value for key, value in cells.items()}
        count = len(next(iter(by_protocol.values())))
        for index, protocol in enumerate(PROTOCOLS if count > 1 else ("Simple",)):
            lines = {_setting(key): _line(*lines[index]) for key, lines in by_protocol.items()}
            found.append(Table(kind.split(":")[0], kind, protocol, lines))
    return found


def _setting(key: str) -> Setting:
    nodes, gpus = key.split("x")
    return int(nodes), int(gpus)


def _line(microseconds: float, gigabytes: float) -> Line:
    return microseconds * 1e-6, 1e-9 / gigabytes


def topology(setting: Setting, constants: Mapping[str, float]) -> Topology:
    """Nodes with a NIC for each GPU."""
    inside = Level("inside", constants["inside latency"], constants["inside bandwidth"])
    nic = Level("nic", constants["nic latency"], constants["nic bandwidth"], constants["start"])
    return Topology((inside, nic), (Host(setting[1], "inside", "nic", nics=setting[1], count=setting[0]),))


@lru_cache(maxsize=100_000)
def predicted(kind: str, setting: Setting, constants: tuple[tuple[str, float], ...]) -> Line:
    """What the topology says of one collective over all GPUs."""
    return topology_costs(topology(setting, dict(constants)), kind, [range(setting[0] * setting[1])])


def fitted(table: Table, settings: Iterable[Setting]) -> dict[str, float]:
    """The constants that explain the times of some settings."""
    settings = list(settings)

    def model(constants: Mapping[str, float]) -> Sequence[float]:
        lines = [predicted(table.kind, each, tuple(constants.items())) for each in settings]
        return [seconds for line in lines for seconds in times(line)]

    measured = [seconds for each in settings for seconds in times(table.lines[each])]
    return dict(fit_constants(model, measured, EXPECTED).constants)


def times(line: Line) -> list[float]:
    """Seconds at all sizes."""
    return [line[0] + line[1] * size for size in SIZES]


def error(ours: Iterable[float], theirs: Iterable[float]) -> list[float]:
    """The parts by which times are missed."""
    return [abs(a / b - 1.0) for a, b in zip(ours, theirs, strict=True)]


@dataclass(frozen=True)
class Split:
    """Settings that are fitted to, and those that are predicted."""

    fitted: tuple[Setting, ...]
    unseen: tuple[Setting, ...]


def random_split(tables: Sequence[Table], seed: int) -> Split:
    """Half of the settings, drawn."""
    settings = sorted({setting for table in tables for setting in table.lines})
    drawn = set(random.Random(seed).sample(settings, len(settings) // 2))
    return Split(tuple(s for s in settings if s in drawn), tuple(s for s in settings if s not in drawn))


def extrapolation(tables: Sequence[Table]) -> Split:
    """Up to 8 nodes, and more."""
    settings = sorted({setting for table in tables for setting in table.lines})
    return Split(tuple(s for s in settings if s[0] <= 8), tuple(s for s in settings if s[0] > 8))


def errors_of(tables: Sequence[Table], split: Split) -> dict[str, list[float]]:
    """By algorithm and protocol, and for what is chosen of each collective, the errors on what was not seen."""
    found: dict[str, list[float]] = {}
    ours: dict[tuple[str, Setting], list[list[float]]] = {}
    theirs: dict[tuple[str, Setting], list[list[float]]] = {}
    for table in tables:
        constants = tuple(fitted(table, [s for s in split.fitted if s in table.lines]).items())
        errors: list[float] = []
        for setting in (s for s in split.unseen if s in table.lines):
            mine, published = times(predicted(table.kind, setting, constants)), times(table.lines[setting])
            errors += error(mine, published)
            ours.setdefault((table.collective, setting), []).append(mine)
            theirs.setdefault((table.collective, setting), []).append(published)
        found[f"{table.kind} {table.protocol}"] = errors
    for key, listed in ours.items():
        chosen = error(map(min, zip(*listed, strict=True)), map(min, zip(*theirs[key], strict=True)))
        found.setdefault(f"{key[0]} chosen", []).extend(chosen)
    return found


def rows(tables: Sequence[Table], splits: int) -> list[dict[str, Any]]:
    """A row per algorithm and protocol: medians over the splits, the worst of them, and beyond 8 nodes."""
    by_split = [errors_of(tables, random_split(tables, seed)) for seed in range(splits)]
    beyond = errors_of(tables, extrapolation(tables))
    found: list[dict[str, Any]] = []
    for name in beyond:
        medians = [statistics.median(each[name]) for each in by_split]
        found.append(
            {
                "collective": name,
                "times unseen": len(by_split[0][name]),
                "median error": statistics.median(medians),
                "of the worst split": max(medians),
                "90 % below": statistics.median(_quantile(each[name], 0.9) for each in by_split),
                "extrapolated": statistics.median(beyond[name]),
            }
        )
    return found


def _quantile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(int(part * len(values)), len(values) - 1)]


def constant_rows(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """The constants fitted to all settings, in units that are read easily."""
    found: list[dict[str, Any]] = []
    for table in tables:
        constants = fitted(table, table.lines)
        row: dict[str, Any] = {"algorithm": table.kind, "protocol": table.protocol}
        for name, value in constants.items():
            row[f"{name} {'GB/s' if 'bandwidth' in name else 'us'}"] = value * (1e-9 if "bandwidth" in name else 1e6)
        found.append(row)
    return found


def scatter(tables: Sequence[Table], split: Split) -> None:
    """Predicted against published times of one split's unseen half."""
    series: dict[str, list[tuple[float, float]]] = {}
    for table in tables:
        constants = tuple(fitted(table, [s for s in split.fitted if s in table.lines]).items())
        for setting in (s for s in split.unseen if s in table.lines):
            pairs = zip(times(table.lines[setting]), times(predicted(table.kind, setting, constants)), strict=True)
            series.setdefault(table.kind, []).extend(pairs)
    plot_scatter("nccl_tables", series, xlabel="published seconds", ylabel="predicted seconds")


def main() -> None:
    """Print the tables, write JSON and a plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=20)
    options = parser.parse_args()
    tables = read_tables(options.data / "nccl_h100_tables.json")
    command = f"python benchmarks/nccl_tables.py --data DIR --splits {options.splits}"
    publish("nccl_constants", constant_rows(tables), command=command)
    publish("nccl_tables", rows(tables, options.splits), command=command)
    scatter(tables, random_split(tables, 0))


if __name__ == "__main__":
    main()
