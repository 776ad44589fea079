"""The pass `check-order`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from .analysis.communications import Communication, CommunicationEvent, Half, communication_events
from .errors import describe, fail
from .step.step_view import step_functions


@dataclass(frozen=True)
class CheckOrderPass(ModulePass):
    """
    Refuse a program whose ranks could wait for one another for ever, or take one communication for another.

    The program, with its schedule, is projected to what each rank communicates. The ranks of a group must issue their
    collectives in one order, and a sender and a receiver their transfers; and the order of all ranks together, in
    which a communication is over after all have issued it and before any has waited for it, must have no cycle.

    Requires: collectives (`select-collectives`).
    Ensures: no deadlock and no mismatch is possible, whatever the speed of the ranks. Nothing is changed.

    Before:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> tensor<8xf32> {
      %y = spmd.all_gather [{"gpu"}] %x out_sharding = <@mesh, [{}]> : tensor<8xf32>
      func.return %y : tensor<8xf32>
    }
    ```

    After:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> tensor<8xf32> {
      %y = spmd.all_gather [{"gpu"}] %x out_sharding = <@mesh, [{}]> : tensor<8xf32>
      func.return %y : tensor<8xf32>
    }
    ```

    Source: HiDup 5 (alternation is enforced on all workers), cross-mesh 4 (schedules without deadlock).
    """

    name = "check-order"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Check every step function of the module."""
        for func in step_functions(op):
            by_rank = communication_events(op, func)
            _check_groups(by_rank)
            _check_cycles(by_rank)


def _check_groups(by_rank: Mapping[int, Sequence[CommunicationEvent]]) -> None:
    """Compare, in each group, the order in which its ranks issue their communications."""
    orders: dict[tuple[int, ...], dict[int, list[Communication]]] = {}
    for rank, events in by_rank.items():
        for event in events:
            for group in event.groups if event.half is Half.ISSUE else ():
                orders.setdefault(group, {}).setdefault(rank, []).append(event.what)
    for group, order in orders.items():
        first, expected = group[0], order.get(group[0], [])
        for rank in group[1:]:
            _compare(group, (first, expected), (rank, order.get(rank, [])))


def _compare(
    group: tuple[int, ...], one: tuple[int, Sequence[Communication]], other: tuple[int, Sequence[Communication]]
) -> None:
    for place in range(max(len(one[1]), len(other[1]))):
        left, right = (order[place] if place < len(order) else None for _, order in (one, other))
        if left == right:
            continue
        known = left or right
        assert known is not None
        fail(
            known.op,
            f"the ranks {list(group)} issue their communications in different orders: at position {place + 1} rank "
            f"{one[0]} issues {_text(left)}, rank {other[0]} {_text(right)}; issue them in the same order on all ranks",
        )


def _check_cycles(by_rank: Mapping[int, Sequence[CommunicationEvent]]) -> None:
    """Look for a cycle in the order of all ranks together."""
    try:
        _order(by_rank).prepare()
    except CycleError as error:
        # Each node of a cycle directly precedes the next.
        cycle = list(dict.fromkeys(node for node in error.args[1] if isinstance(node, Communication)))
        first, second = cycle[0], cycle[-1]
        fail(
            first.op,
            f"deadlock: {_text(first)} and {_text(second)} each wait, on some rank, for the other to complete;"
            " issue one of them before waiting for the other",
        )


def _order(by_rank: Mapping[int, Sequence[CommunicationEvent]]) -> TopologicalSorter[Hashable]:
    """
    What comes directly before what: the events of a rank one after the other; a communication after all have issued it
    and before any waits for it.
    """
    order = TopologicalSorter[Hashable]()
    for rank, events in by_rank.items():
        for index, event in enumerate(events):
            node = (rank, index)
            order.add(node, *([(rank, index - 1)] if index else []))
            if event.half is Half.ISSUE:
                order.add(event.what, node)
            else:
                order.add(node, event.what)
    return order


def _text(what: Communication | None) -> str:
    return f"{describe(what.op)} for part {what.part}" if what is not None else "nothing"
