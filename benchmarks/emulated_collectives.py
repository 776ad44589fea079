"""
Compare flat and hierarchical collectives of each kind on emulated hosts, paired by round.

    sudo python benchmarks/emulated_collectives.py [--pairs 30] [--rate 200mbit] [--sizes 65536 8388608]

There are two hosts of two ranks (`_netns`): hosts send to each other at RATE, and ranks of a host communicate at
several Gbit/s. In each round the same processes call all collectives in random order, so that noise of the machine
affects all equally. A collective ends when its last rank is done. The ratio is the median of the ratios within a round,
with a 95 % bootstrap interval; the flat collective runs twice, as a control. Without root, iproute2 or network
namespaces the script is skipped with a message.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import _netns
from _report import interval, parsed, plot_intervals, publish, skip

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
WAYS = ("flat", "flat (control)", "hierarchical")
_WARM = 3


def worker(folder: Path) -> None:
    """Run one rank: call all collectives, in random order in each round. Rank 0 writes the seconds by round."""
    import torch
    import torch.distributed as dist

    from shardwright.ir.mesh import Mesh
    from shardwright.runtime.communicator import Communicator

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    request = json.loads((folder / "asked.json").read_text())
    axes = ("node", "gpu")
    comm = Communicator(Mesh.of(node=2, gpu=2), (axes, axes[:1], axes[1:]))
    calls: list[Callable[[], object]] = []
    for size, kind, way in _cases(request["sizes"]):
        whole = torch.ones(size // 4)
        calls.append(_call(comm, kind, whole, "hierarchical" if way == WAYS[2] else None))
    generator, rounds = random.Random(0), list[list[float]]()
    order = list(range(len(calls)))
    for number in range(request["pairs"] + _WARM):
        generator.shuffle(order)
        seconds = torch.zeros(len(calls))
        for index in order:
            dist.barrier()
            start = time.perf_counter()
            calls[index]()
            seconds[index] = time.perf_counter() - start
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        if number >= _WARM:
            rounds.append(seconds.tolist())
    if dist.get_rank() == 0:
        (folder / "seconds.json").write_text(json.dumps(rounds))
    dist.destroy_process_group()


def _cases(sizes: Sequence[int]) -> list[tuple[int, str, str]]:
    return [(size, kind, way) for size in sizes for kind in KINDS for way in WAYS]


def _call(comm: Any, kind: str, whole: Any, method: str | None) -> Callable[[], object]:
    """Return a call of a collective over both axes. `whole` is its full value; in an all-to-all, a rank's shard."""
    axes = ("node", "gpu")
    match kind:
        case "all_reduce":
            return lambda: comm.all_reduce(whole, axes, method=method)
        case "all_gather":
            return lambda: comm.all_gather(whole[: len(whole) // 4], 0, axes, method=method)
        case "reduce_scatter":
            return lambda: comm.reduce_scatter(whole, 0, axes, method=method)
        case _:
            return lambda: comm.all_to_all(whole.view(-1, 4), 0, 1, axes, method=method)


def measure(rate: str, pairs: int, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row for each size, kind and method."""
    with tempfile.TemporaryDirectory() as path, _netns.hosts([rate] * 2) as names:
        folder = Path(path)
        (folder / "asked.json").write_text(json.dumps({"pairs": pairs, "sizes": list(sizes)}))
        ranks = [name for name in names for _ in range(2)]
        _netns.launch(ranks, [os.fspath(Path(__file__).resolve()), "--worker", path])
        rounds = json.loads((folder / "seconds.json").read_text())
    cases = _cases(sizes)
    return [_row(case, rate, rounds, index, index - WAYS.index(case[2])) for index, case in enumerate(cases)]


def _row(
    case: tuple[int, str, str], rate: str, rounds: Sequence[Sequence[float]], index: int, first: int
) -> dict[str, Any]:
    ratios = [row[index] / row[first] for row in rounds]
    low, high = interval(ratios) if index != first else (1.0, 1.0)
    size, kind, way = case
    return {
        "kind": kind,
        "bytes": size,
        "way": way,
        "links": rate,
        "ms": 1e3 * statistics.median(row[index] for row in rounds),
        "ratio": statistics.median(ratios),
        "low": low,
        "high": high,
        "rounds": len(rounds),
    }


def main() -> None:
    """Print the table, and write JSON file and plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--rate", default="200mbit", help="sending rate of a host, e.g. 200mbit")
    parser.add_argument("--sizes", type=int, nargs="+", default=[65536, 8388608], help="bytes, multiples of 64")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parsed(parser, pairs=2, sizes=[65536])
    if options.worker is not None:
        worker(options.worker)
        return
    try:
        rows = measure(options.rate, options.pairs, options.sizes)
    except _netns.Unavailable as error:
        skip(error)
    sizes = " ".join(map(str, options.sizes))
    command = f"python benchmarks/emulated_collectives.py --pairs {options.pairs} --rate {options.rate} --sizes {sizes}"
    publish("emulated_collectives", rows, command=command)
    shown = [row for row in rows if row["way"] != "flat"]
    labels = [f"{row['kind']} of {row['bytes']}: {row['way']}" for row in shown]
    bounds = [(row["low"], row["high"]) for row in shown]
    ratios = [row["ratio"] for row in shown]
    plot_intervals("emulated_collectives", labels, ratios, bounds, xlabel="seconds, to those of the flat one")


if __name__ == "__main__":
    main()
