"""
Flat and hierarchical collectives on emulated hosts: each kind both ways, paired.

    sudo python benchmarks/emulated_collectives.py [--pairs 30] [--rate 200mbit] [--sizes 65536 8388608]

Two hosts of two ranks (`_netns`): what a host sends to the other goes at RATE, what its ranks send to one another at
several Gbit/s. All collectives are called in the same processes, one round after the other, each round in another
order, so that the machine's noise hits all alike; a time is that of the last rank. The ratio is the median of that of a
round's times, with a bootstrap interval of 95 %; the flat one is there twice, as a control. Without root, iproute2 or
network namespaces the script says so and ends.
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
    """One rank: all collectives, each round in random order; rank 0 writes the seconds by round."""
    import torch
    import torch.distributed as dist

    from shardwright.ir.mesh import Mesh
    from shardwright.runtime.communicator import Communicator

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    asked = json.loads((folder / "asked.json").read_text())
    axes = ("node", "gpu")
    comm = Communicator(Mesh.of(node=2, gpu=2), (axes, axes[:1], axes[1:]))
    calls: list[Callable[[], object]] = []
    for size, kind, way in _cases(asked["sizes"]):
        whole = torch.ones(size // 4)
        calls.append(_call(comm, kind, whole, "hierarchical" if way == WAYS[2] else None))
    generator, rounds = random.Random(0), list[list[float]]()
    order = list(range(len(calls)))
    for number in range(asked["pairs"] + _WARM):
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
    """A collective over both axes; of an all-to-all `whole` is what a rank has, of others the whole value."""
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
    """A row per size, kind and way."""
    with tempfile.TemporaryDirectory() as made, _netns.hosts([rate] * 2) as names:
        folder = Path(made)
        (folder / "asked.json").write_text(json.dumps({"pairs": pairs, "sizes": list(sizes)}))
        ranks = [name for name in names for _ in range(2)]
        _netns.launch(ranks, [os.fspath(Path(__file__).resolve()), "--worker", made])
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
    """Print the table and write JSON and plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--rate", default="200mbit", help="what a host may send: 200mbit")
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
