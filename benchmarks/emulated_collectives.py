"""
Compare flat and hierarchical collectives of each kind on emulated hosts, paired by round.

    sudo python benchmarks/emulated_collectives.py [--pairs 30] [--rate 200mbit] [--sizes 65536 8388608]

There are two hosts of two ranks (`_netns`): hosts send to each other at RATE, and ranks of a host communicate at
several Gbit/s. In each round the same processes call all collectives in random order. A collective ends when its last
rank is done. The ratio is the median of the ratios within a round, with a 95 % bootstrap interval; the flat collective
runs twice, as a control.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import _netns
from _report import Rows, arguments, parsed, plot_ratios, publish, ratio

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
WAYS = ("flat", "flat (control)", "hierarchical")


def worker(request: Any) -> list[list[float]]:
    """Call all collectives in turn as one rank, and return the seconds of each by round."""
    import torch
    from _sides import by_round, until_all_are_done

    from shardwright.ir.mesh import Mesh
    from shardwright.runtime.communicator import Communicator

    axes = ("node", "gpu")
    comm = Communicator(Mesh.of(node=2, gpu=2), (axes, axes[:1], axes[1:]))
    calls = [
        partial(until_all_are_done, _call(comm, kind, torch.ones(size // 4), way))
        for size, kind, way in product(request["sizes"], KINDS, WAYS)
    ]
    return by_round(calls, request["pairs"], warm=3)


def _call(comm: Any, kind: str, whole: Any, way: str) -> Callable[[], object]:
    """Return a call of a collective over both axes. `whole` is its full value; in an all-to-all, a rank's shard."""
    axes, method = ("node", "gpu"), "hierarchical" if way == WAYS[2] else None
    match kind:
        case "all_reduce":
            return lambda: comm.all_reduce(whole, axes, method=method)
        case "all_gather":
            return lambda: comm.all_gather(whole[: len(whole) // 4], 0, axes, method=method)
        case "reduce_scatter":
            return lambda: comm.reduce_scatter(whole, 0, axes, method=method)
        case _:
            return lambda: comm.all_to_all(whole.view(-1, 4), 0, 1, axes, method=method)


def measure(rate: str, pairs: int, sizes: Sequence[int]) -> Rows:
    """Return a row for each size, kind and method."""
    rounds = _netns.answers(__file__, [rate] * 2, {"pairs": pairs, "sizes": list(sizes)}, ranks_each=2)
    taken = dict(zip(product(sizes, KINDS, WAYS), zip(*rounds, strict=True), strict=True))
    rows = Rows()
    for (size, kind, way), seconds in taken.items():
        row = {"kind": kind, "bytes": size, "way": way, "links": rate, "ms": 1e3 * statistics.median(seconds)}
        rows.append({**row, **ratio(seconds, taken[size, kind, WAYS[0]]), "rounds": pairs})
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--rate", default="200mbit", help="sending rate of a host, e.g. 200mbit")
    parser.add_argument("--sizes", type=int, nargs="+", default=[65536, 8388608], help="bytes, multiples of 64")
    options = parsed(parser, pairs=2, sizes=[65536])
    rows = measure(options.rate, options.pairs, options.sizes)
    publish("emulated_collectives", rows)
    shown = [row for row in rows if row["way"] != WAYS[0]]
    label, xlabel = "{kind} of {bytes} bytes: {way}".format_map, "time / that of the flat collective"
    plot_ratios("emulated_collectives", shown, label, title="Collectives on emulated links", xlabel=xlabel)


if __name__ == "__main__":
    _netns.start(worker, main)
