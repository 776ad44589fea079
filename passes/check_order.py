"""Check that the ranks of a program cannot deadlock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from .analysis.communications import Communication, Communications, EqualRanks, Half, communications_of
from .errors import describe, fail
from .step.step_view import step_functions


@dataclass(frozen=True)
class CheckOrderPass(ModulePass):
    """
    Refuse a program whose ranks could deadlock, or mistake one communication for another.

    The program, with its schedule, is projected to the communications of each rank. The ranks of a group must issue
    their collectives in the same order, and so must a sender and a receiver their transfers. The joint order of all
    ranks must have no cycle: a communication completes after all ranks have issued it and before any rank has waited
    for it.

    One proof covers all ranks of a class, which have the same communications in the same order. All ranks of a group
    run the program of one stage, so their collectives are in one order. Sender and receiver pairs with the same
    transfers between the same classes are compared once. All ranks of a class come before and after the same
    communications, so a cycle through any of them is also a cycle through the first.

    Requires: collectives (`select-collectives`).
    Ensures: deadlocks and mismatches are impossible, whatever the speed of the ranks. The program is unchanged.

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
            communications = communications_of(op, func)
            # The programs of two stages would run at once.
            counts = Counter(rank for cls in communications.classes for rank in cls.ranks)
            if twice := [rank for rank, count in counts.items() if count > 1]:
                fail(func, f"rank {twice[0]} is in the meshes of several stages; place each stage on ranks of its own")
            _check_transfers(communications)
            _check_cycles(communications.classes)


def _check_transfers(found: Communications) -> None:
    """Compare the order of transfers at the sender and the receiver of each pair."""
    class_of = {rank: cls for cls in found.classes for rank in cls.ranks}
    checked = set[Hashable]()
    for pair in sorted(found.transfers, key=min):
        transfers, classes = set(found.transfers[pair]), [class_of.get(rank) for rank in pair]
        if (key := (*map(id, classes), found.transfers[pair])) not in checked:
            checked.add(key)
            sent, received = (
                [event.what for event in cls.events if event.half is Half.ISSUE and event.what in transfers]
                if cls is not None
                else []
                for cls in classes
            )
            _compare(pair, (pair[0], sent), (pair[1], received))


def _compare(
    group: tuple[int, ...], one: tuple[int, Sequence[Communication]], other: tuple[int, Sequence[Communication]]
) -> None:
    for place in range(max(len(one[1]), len(other[1]))):
        left, right = (order[place] if place < len(order) else None for _, order in (one, other))
        if left == right:
            continue
        issued = left or right
        assert issued is not None
        fail(
            issued.op,
            f"the ranks {list(group)} issue their communications in different orders: at position {place + 1} rank "
            f"{one[0]} issues {_text(left)}, rank {other[0]} {_text(right)}; issue them in the same order on all ranks",
        )


def _check_cycles(classes: Sequence[EqualRanks]) -> None:
    """Refuse a cycle in the joint order of all ranks; one rank represents its class."""
    try:
        _order(classes).prepare()
    except CycleError as error:
        # Each node of a cycle directly precedes the next.
        cycle = list(dict.fromkeys(node for node in error.args[1] if isinstance(node, Communication)))
        first, second = cycle[0], cycle[-1]
        fail(
            first.op,
            f"deadlock: {_text(first)} and {_text(second)} each wait, on some rank, for the other to complete;"
            " issue one of them before waiting for the other",
        )


def _order(classes: Sequence[EqualRanks]) -> TopologicalSorter[Hashable]:
    """Return the joint order: the events of each rank in sequence; a communication between its issues and its waits."""
    order = TopologicalSorter[Hashable]()
    for number, cls in enumerate(classes):
        for index, event in enumerate(cls.events):
            node = (number, index)
            order.add(node, *([(number, index - 1)] if index else []))
            if event.half is Half.ISSUE:
                order.add(event.what, node)
            else:
                order.add(node, event.what)
    return order


def _text(what: Communication | None) -> str:
    return f"{describe(what.op)} for part {what.part}" if what is not None else "nothing"
