"""
Compare methods and orders of cross-mesh resharding by transfers between emulated hosts.

    sudo python benchmarks/emulated_transfers.py [--rounds 12] [--rate 100mbit] [--mib 8] [--cases case1 case3 ...]

Each host is a network namespace with four ranks, whose NIC sends and receives at RATE at most (`_netns`). The cases are
the cases of the paper's Table 2 (`_cross_mesh_cases.py`) with fewer bytes. Each round sends each case by each method
and order, in random order, by the runtime's own `Channels`, from a barrier until the slowest rank is done. `of bound`
is the time relative to the NIC bound. `ratio` is the median of the paired ratios to `broadcast best`, which is sent
twice, as a control; `simulated` is the same ratio by the simulator. In the first round each rank checks the values.

The runtime begins all tasks of a transfer at once, and gloo's sockets share a NIC. With `in turn` a rank begins a task
when its previous task is over, as NCCL does for broadcasts on one stream, so that the order matters as in the paper.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import _netns
from _cross_mesh_cases import BYTES, Case, outcome, paper_cases, scaled
from _report import Rows, arguments, parsed, plot_ratios, publish, ratio

from shardwright.ir.port_schedule import Order
from shardwright.ir.transfer_plan import Method, least_nic_time, plan

if TYPE_CHECKING:
    import torch

    from shardwright.runtime.transfers import Channels, Transfer

GPUS = 4
CASES = ("case1", "case3", "case4", "case7", "case9")
BEST: tuple[Method, Order] = ("broadcast", "best")
OTHERS: tuple[tuple[Method, Order], ...] = (
    ("broadcast", "greedy"),
    ("broadcast", "naive"),
    ("local_allgather", "greedy"),
    ("global_allgather", "greedy"),
    ("send_recv", "greedy"),
)
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
    modes = [(BEST, ""), (BEST, "control"), *((way, "") for way in OTHERS), *((way, IN_TURN) for way in turns)]
    return [Way(case, *way, mode) for case in cases for way, mode in modes]


def worker(request: Any) -> list[list[float]]:
    """Send all ways in turn as one rank, and return the seconds of each by round."""
    import torch
    import torch.distributed as dist
    from _sides import by_round, until_all_are_done

    from shardwright.runtime.transfers import Channels, Lines

    listed = ways(request["mib"], request["cases"])
    transfers = [_transfers(way, number) for number, way in enumerate(listed)]
    channels = Channels([each for own in transfers for each in own], Lines())
    shapes = {way.case.shape for way in listed}
    whole = {shape: torch.arange(math.prod(shape), dtype=torch.int32).reshape(shape) for shape in shapes}
    me, sends = dist.get_rank(), list[Callable[..., None]]()
    for own, way in zip(transfers, listed, strict=True):
        value, source = whole[way.case.shape], own[0].source
        part = value[source.slices(way.case.shape, me, 0)].contiguous() if me in source.ranks else None
        sends.append(partial(_send, channels, own, part))
        sends[-1](expected=value)
    return by_round([partial(until_all_are_done, send) for send in sends], request["rounds"], warm=1)


def _transfers(way: Way, number: int) -> list[Transfer]:
    """Return the transfers of a way: one, or one for each task if they are sent in turn."""
    from shardwright.runtime.transfers import Holders, Transfer

    case = way.case
    meshes, spreads = (case.source, case.target), (case.sent, case.wanted)
    source, target = (
        Holders(mesh, tuple(ranks), str(spread))
        for mesh, ranks, spread in zip(meshes, case.ranks, spreads, strict=True)
    )
    tasks = plan(case.units(), case.sites, way.method, way.order)
    groups = [(task,) for task in tasks] if way.mode == IN_TURN else [tuple(tasks)]
    return [Transfer(f"{number}.{at}", case.shape, "int32", source, target, group) for at, group in enumerate(groups)]


def _send(
    channels: Channels, transfers: Sequence[Transfer], part: torch.Tensor | None, expected: torch.Tensor | None = None
) -> None:
    """Send this rank's part, and receive its parts of transfers, which are compared with `expected` if it is given."""
    import torch
    import torch.distributed as dist

    me = dist.get_rank()
    for each in transfers:
        if not each.tasks_of(0, me):
            continue
        if part is not None:
            channels.send(each.label, 0, part)
        if me in each.target.ranks:
            arrived = channels.receive(each.label, 0).wait()
            if expected is not None and len(transfers) == 1:
                assert torch.equal(arrived, expected[each.target.slices(each.shape, me, 0)]), each.label
        channels.finish()


def measure(rate: str, rounds: int, mib: float, names: Sequence[str]) -> Rows:
    """Return a row for each case and way."""
    listed = ways(mib, names)
    hosts = 1 + max(max(way.case.sites.hosts.values()) for way in listed)
    request = {"mib": mib, "cases": list(names), "rounds": rounds}
    answer = _netns.answers(__file__, [rate] * hosts, request, GPUS, receiving=True)
    bandwidth = float(rate.removesuffix("mbit")) * 1e6 / 8
    taken = dict(zip(listed, zip(*answer, strict=True), strict=True))
    rows = Rows()
    for way, seconds in taken.items():
        case = way.case
        own, best = outcome(case, way.method, way.order, bandwidth), outcome(case, *BEST, bandwidth)
        least = least_nic_time(case.units(), case.sites) * BYTES / bandwidth
        row = {"case": case.name, "way": way.title, "NIC": rate, "MiB": BYTES * math.prod(case.shape) / 2**20}
        row |= {"ms": 1e3 * statistics.median(seconds), "of bound": statistics.median(seconds) / least}
        row |= ratio(seconds, taken[Way(case, *BEST)])
        rows.append(row | {"simulated": own.seconds / best.seconds, "rounds": len(seconds)})
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--rate", default="100mbit", help="rate at which a host sends and receives: 100mbit")
    parser.add_argument("--mib", type=float, default=8.0, help="size of the whole value in MiB")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options = parsed(parser, rounds=2, mib=0.5, cases=["case1"])
    rows = measure(options.rate, options.rounds, options.mib, options.cases)
    publish("emulated_transfers", rows)
    title, xlabel = "Transfers on emulated links", "time / that of broadcasts in the best order"
    plot_ratios("emulated_transfers", rows, "{case}: {way}".format_map, title=title, xlabel=xlabel)


if __name__ == "__main__":
    _netns.start(worker, main)
