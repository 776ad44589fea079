"""The fragments of a pipeline: its ops in the loop over parts, by stage and kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, OpResult

from ...dialects.pipe import FragmentOp, TransferOp
from ...dialects.spmd import WaitOp
from ...dialects.staged import Stages
from ...dialects.step import BACKWARD
from ..errors import fail
from ..step.loop import LoopOps, fragment_of
from ..step.step_view import value_label
from .schedules import Delivery, FragmentKind, Work


def has_chunks(func: FuncOp) -> bool:
    """Return whether stages of a scheduled step have several chunks of the model."""
    return any(_CHUNK in op.label.data for op in func.body.block.ops if isinstance(op, FragmentOp))


_CHUNK = "."
"""Separator between the index of a stage and the index of its chunk in labels of fragments."""


class Fragments:
    """
    The ops of a loop over parts, each with its stage and kind.

    A backward op is of kind WEIGHTS if no transfer depends on it. In a chunk that sends no gradient to another stage,
    all backward ops are of kind BACKWARD, because no stage waits for them.

    A stage that values return to has several chunks of the model, with a fragment of each kind for each chunk. An op
    belongs to the chunk that a part has reached when the op's results are needed (`_laps`).
    """

    def __init__(self, func: FuncOp, loop: LoopOps) -> None:
        self.func, self.stages, self.loop = func, Stages(func), loop
        self.inside = set(loop.inside)
        self.transfers = [op for op in loop.inside if isinstance(op, TransferOp)]
        self.backward = self._backward()
        # Backward runs the chunks of its stage from the last to the first.
        forward = self._laps(lambda op: op not in self.backward)
        backward = self._laps(lambda op: op in self.backward)
        last = max((*forward.values(), *backward.values()), default=0)
        self.chunk_of = forward | {op: last - lap for op, lap in backward.items()}
        self.chunks = 1 + max(self.chunk_of.values(), default=0)
        self.kinds = self._kinds()
        self.by_work: dict[Work, list[Operation]] = {}
        for op in loop.inside:
            if op in self.kinds:
                self.by_work.setdefault(self._work(op), []).append(op)

    def _work(self, op: Operation) -> Work:
        stage, kind = self.stages.of_op(op), self.kinds[op]
        if stage is None:
            fail(op, "belongs to no stage; run partition-stages first")
        chunk = self.chunk_of[op]
        return Work(f"{kind}{stage}" + (f"{_CHUNK}{chunk}" if self.chunks > 1 else ""), stage, kind, chunk)

    def _backward(self) -> set[Operation]:
        backward: set[Operation] = set()
        for op in self.loop.inside:
            producers = [value.op for value in op.operands if isinstance(value, OpResult)]
            if isinstance(op, WaitOp):
                is_backward = op.start in backward
            else:
                is_backward = BACKWARD in op.attributes or any(source in backward for source in producers)
            if is_backward:
                backward.add(op)
        return backward

    def _laps(self, is_one: Callable[[Operation], bool]) -> dict[Operation, int]:
        """
        Return how many times a part has passed all stages, forward or backward, when each op runs.

        This is the lap of the op's earliest user or, without users, the earliest lap that the operands allow.
        """
        ops = [op for op in self.loop.inside if is_one(op)]
        laps: dict[Operation, int] = {}
        for op in ops:
            sources = (value.op for value in op.operands if isinstance(value, OpResult) and value.op in laps)
            laps[op] = max((laps[source] for source in sources), default=0) + self._turns(op)
        for op in reversed(ops):
            users = [use.operation for result in op.results for use in result.uses if use.operation in laps]
            if users and not isinstance(op, TransferOp):
                laps[op] = min(laps[user] - self._turns(user) for user in users)
        return {op: lap for op, lap in laps.items() if not isinstance(op, TransferOp)}

    def _turns(self, op: Operation) -> int:
        """Return 1 for a transfer that begins another lap: in forward to an earlier stage, in backward to a later."""
        if not isinstance(op, TransferOp):
            return 0
        source, target = self.stages.of_value(op.operand), self.stages.of_value(op.result)
        assert source is not None, "transfers are between stages"
        assert target is not None, "transfers are between stages"
        return int(target > source if op in self.backward else target < source)

    def _kinds(self) -> dict[Operation, FragmentKind]:
        """Return the kind of each op other than transfers."""
        urgent = self._before(op for op in self.transfers if op in self.backward)
        hurried = {self._place(op) for op in urgent & self.backward}
        kinds: dict[Operation, FragmentKind] = {}
        for op in self.loop.inside:
            if isinstance(op, TransferOp):
                continue
            if op not in self.backward:
                kinds[op] = FragmentKind.FORWARD
            else:
                late = op not in urgent and self._place(op) in hurried
                kinds[op] = FragmentKind.WEIGHTS if late else FragmentKind.BACKWARD
        return kinds

    def _place(self, op: Operation) -> tuple[int | None, int]:
        return self.stages.of_op(op), self.chunk_of[op]

    def _before(self, ops: Iterable[Operation]) -> set[Operation]:
        ancestors, pending = set[Operation](), list(ops)
        while pending:
            for value in pending.pop().operands:
                owner = value.owner
                if isinstance(owner, Operation) and owner in self.inside and owner not in ancestors:
                    if not isinstance(owner, TransferOp):
                        ancestors.add(owner)
                        pending.append(owner)
        return ancestors

    def works(self) -> list[Work]:
        """Return the fragments in the order that a part runs them: forward, then back through the stages."""

        def place(work: Work) -> tuple[bool, tuple[int, int], bool]:
            forward, way = work.kind is FragmentKind.FORWARD, (work.chunk, work.stage)
            return not forward, way if forward else (-way[0], -way[1]), work.kind is FragmentKind.WEIGHTS

        return [replace(work, needs=self._needs(work)) for work in sorted(self.by_work, key=place)]

    def _needs(self, work: Work) -> tuple[str, ...]:
        """Return the labels of the other fragments of its stage whose values a fragment uses, in all chunks."""
        owners = (value.owner for op in self.by_work[work] for value in op.operands)
        producers = (self._work(owner) for owner in owners if isinstance(owner, Operation) and owner in self.kinds)
        return tuple(dict.fromkeys(other.label for other in producers if other != work))

    def deliveries(self) -> list[Delivery]:
        """Return the transfers of parts, with the fragments that they connect."""
        deliveries: list[Delivery] = []
        for op in self.transfers:
            source, target = op.operand.owner, self.stages.of_value(op.result)
            assert target is not None
            if not isinstance(source, Operation) or source not in self.kinds:
                fail(op, f"sends {value_label(op.operand)}, expected a result of an op in the loop; send it from there")
            users = (self._work(use.operation).label for use in op.result.uses if use.operation in self.kinds)
            label = self._work(source).label
            deliveries.append(Delivery(op.label.data, label, target, tuple(dict.fromkeys(users))))
        return deliveries

    def write(self, axis: str) -> None:
        """Write the ops as fragments in dataflow order, between the ops before the loop and the ops after it."""
        block = self.func.body.block
        order = self._ordered()
        for op in (*self.loop.before, *self.transfers, *self.loop.after):
            op.detach()
        end = block.last_op
        assert end is not None, "a step function returns"
        block.insert_ops_before(list(self.loop.before), end)
        for node in order:
            if isinstance(node, Work):
                block.insert_op_before(fragment_of(node.label, axis, self.by_work[node], node.stage), end)
            else:
                block.insert_op_before(node, end)
        block.insert_ops_before(list(self.loop.after), end)

    def _ordered(self) -> list[Work | TransferOp]:
        """
        Return fragments and transfers in depth-first order, each right after its inputs, which `graphlib` does not
        give.

        Raises OpFailure if there is no such order.
        """
        order: dict[Work | TransferOp, None] = {}
        entered: set[Work | TransferOp] = set()

        def enter(each: Work | TransferOp) -> None:
            if each in order:
                return
            ops = self.by_work[each] if isinstance(each, Work) else [each]
            if each in entered:
                fail(
                    ops[0],
                    f"{self._name(each)} depends on its own results through another stage; its stage would have to "
                    "be cut in two",
                )
            entered.add(each)
            for source in (value.owner for op in ops for value in op.operands):
                if isinstance(source, Operation) and source in self.inside:
                    node = source if isinstance(source, TransferOp) else self._work(source)
                    if node != each:
                        enter(node)
            order[each] = None

        for work in self.works():
            enter(work)
            for op in self.transfers:
                owner = op.operand.owner
                if isinstance(owner, Operation) and owner in self.kinds and self._work(owner) == work:
                    enter(op)
        return list(order)

    def _name(self, each: Work | TransferOp) -> str:
        return f"fragment {each.label}" if isinstance(each, Work) else f"transfer {each.label}"
