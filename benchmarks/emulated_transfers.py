"""
Compare methods and orders of cross-mesh resharding by transfers between emulated hosts.

    sudo python benchmarks/emulated_transfers.py [--rounds 12] [--rate 100mbit] [--mib 8] [--cases case1 case3 ...]

Each host is a network namespace with four ranks, whose NIC sends and receives at RATE at most (`_netns`); traffic
inside a host uses loopback. The cases are the cases of the paper's Table 2 (`_cross_mesh_cases.py`) with fewer bytes.
Each round sends each case by each method and order, in random order, by the runtime's own `Channels`. A time starts at
a barrier and ends with the slowest rank. `of bound` is the time relative to the NIC bound at the rate. `ratio` is the
median of the paired ratios to `broadcast best`, with a 95 % bootstrap interval; that way is sent twice, as a control.
`simulated` is the same ratio by the simulator. In the first round each rank checks the values that arrive.

The runtime begins all tasks of a transfer at once, and gloo's sockets share a NIC. With `in turn` a rank begins a task
when its previous task is over, as NCCL does for broadcasts on one stream, so that the order matters as in the paper.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _netns
from _cross_mesh_cases import BYTES, Case, outcome, paper_cases, scaled
from _report import interval, parsed, plot_intervals, publish, skip

from shardwright.ir.port_schedule import Order
from shardwright.ir.transfer_plan import Method, least_nic_time, plan

GPUS = 4
CASES = ("case1", "case3", "case4", "case7", "case9")
BEST: tuple[Method, Order] = ("broadcast", "best")
WAYS: tuple[tuple[Method, Order], ...] = (
    BEST,
    ("broadcast", "greedy"),
    ("broadcast", "naive"),
    ("local_allgather", "greedy"),
    ("global_allgather", "greedy"),
    ("send_recv", "greedy"),
)
WARM = 1
TURNS: tuple[Order, ...] = ("best", "greedy", "naive")
IN_TURN = "in turn"


@dataclass(frozen=True)
class Way:
    """A case and how it is sent. `mode` is `control`, or `in turn` if each rank sends one task after the other."""

    case: Case
    method: Method
    order: Order
    mode: str = ""

    @property
    def title(self) -> str:
        """Return the name of the way within its case."""
        return f"{self.method} {self.order}" + (f", {self.mode}" if self.mode else "")


def ways(mib: float, names: Sequence[str]) -> list[Way]:
    """Return all ways to send all cases; the first way of each case is `BEST`."""
    cases = [scaled(case, mib * 2**20) for case in paper_cases() if case.name in names]
    turns: list[tuple[Method, Order]] = [("broadcast", order) for order in TURNS]
    others = [(BEST, "control"), *((way, "") for way in WAYS[1:]), *((way, IN_TURN) for way in turns)]
    return [Way(case, *way, mode) for case in cases for way, mode in ((BEST, ""), *others)]


def worker(folder: Path) -> None:
    """Run one rank: send all ways in random order in each round. Rank 0 writes the seconds."""
    import torch
    import torch.distributed as dist

    from shardwright.runtime.transfers import Channels, Holders, Lines, Transfer

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    request = json.loads((folder / "asked.json").read_text())
    me, listed = dist.get_rank(), ways(request["mib"], request["cases"])
    transfers: list[list[Transfer]] = []
    for number, way in enumerate(listed):
        case = way.case
        source, target = (
            Holders(mesh, tuple(ranks), str(spread))
            for mesh, ranks, spread in zip(
                (case.source, case.target), case.ranks, (case.sent, case.wanted), strict=True
            )
        )
        tasks = plan(case.units(), case.sites, way.method, way.order)
        groups = [(task,) for task in tasks] if way.mode == IN_TURN else [tuple(tasks)]
        labels = [f"{number}.{at}" for at in range(len(groups))]
        transfers.append(
            [
                Transfer(label, case.shape, "int32", source, target, group)
                for label, group in zip(labels, groups, strict=True)
            ]
        )
    channels = Channels([each for group in transfers for each in group], Lines())
    shapes = {way.case.shape for way in listed}
    whole = {shape: torch.arange(math.prod(shape), dtype=torch.int32).reshape(shape) for shape in shapes}
    generator, rows = random.Random(0), list[list[float]]()
    order = list(range(len(listed)))
    for number in range(request["rounds"] + WARM):
        generator.shuffle(order)
        seconds = [0.0] * len(listed)
        for index in order:
            transfer, own_part = transfers[index][0], None
            if me in transfer.source.ranks:
                own_part = whole[transfer.shape][transfer.source.slices(transfer.shape, me, 0)].contiguous()
            dist.barrier()
            start = time.perf_counter()
            for each in transfers[index]:
                if not each.tasks_of(0, me):
                    continue
                if own_part is not None:
                    channels.send(each.label, 0, own_part)
                if me in each.target.ranks:
                    arrived = channels.receive(each.label, 0).wait()
                    if number == 0 and len(transfers[index]) == 1:
                        expected = whole[each.shape][each.target.slices(each.shape, me, 0)]
                        assert torch.equal(arrived, expected), listed[index].title
                channels.finish()
            took = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            seconds[index] = took.item()
        if number >= WARM:
            rows.append(seconds)
    if me == 0:
        (folder / "seconds.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


def measure(rate: str, rounds: int, mib: float, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each case and way."""
    listed = ways(mib, names)
    hosts = 1 + max(max(way.case.sites.hosts.values()) for way in listed)
    with tempfile.TemporaryDirectory() as path, _netns.hosts([rate] * hosts, receiving=True) as spaces:
        folder = Path(path)
        (folder / "asked.json").write_text(json.dumps({"mib": mib, "cases": list(names), "rounds": rounds}))
        arguments = [os.fspath(Path(__file__).resolve()), "--worker", path]
        _netns.launch([name for name in spaces for _ in range(GPUS)], arguments)
        rows = json.loads((folder / "seconds.json").read_text())
    bandwidth = float(rate.removesuffix("mbit")) * 1e6 / 8
    first = {way.case.name: at for at, way in reversed(list(enumerate(listed)))}
    return [_row(way, rows, first[way.case.name], at, rate, bandwidth) for at, way in enumerate(listed)]


def _row(way: Way, rows: Sequence[Sequence[float]], best: int, at: int, rate: str, bandwidth: float) -> dict[str, Any]:
    case = way.case
    ratios = [row[at] / row[best] for row in rows]
    low, high = interval(ratios)
    simulated = outcome(case, way.method, way.order, bandwidth).seconds / outcome(case, *BEST, bandwidth).seconds
    least = least_nic_time(case.units(), case.sites) * BYTES / bandwidth
    seconds = statistics.median(row[at] for row in rows)
    return {
        "case": case.name,
        "way": way.title,
        "NIC": rate,
        "MiB": BYTES * math.prod(case.shape) / 2**20,
        "ms": 1e3 * seconds,
        "of bound": seconds / least,
        "ratio": statistics.median(ratios),
        "low": low,
        "high": high,
        "simulated": simulated,
        "rounds": len(rows),
    }


def main() -> None:
    """Print the table, and write JSON file and plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--rate", default="100mbit", help="rate at which a host sends and receives: 100mbit")
    parser.add_argument("--mib", type=float, default=8.0, help="size of the whole value in MiB")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parsed(parser, rounds=2, mib=0.5, cases=["case1"])
    if options.worker is not None:
        worker(options.worker)
        return
    try:
        rows = measure(options.rate, options.rounds, options.mib, options.cases)
    except _netns.Unavailable as error:
        skip(error)
    command = f"python benchmarks/emulated_transfers.py --rounds {options.rounds} --rate {options.rate}"
    publish("emulated_transfers", rows, command=f"{command} --mib {options.mib:g}")
    labels = [f"{row['case']}: {row['way']}" for row in rows]
    bounds = [(row["low"], row["high"]) for row in rows]
    xlabel = "seconds, to broadcast in the best order"
    plot_intervals("emulated_transfers", labels, [row["ratio"] for row in rows], bounds, xlabel=xlabel)


if __name__ == "__main__":
    main()
