"""The fragments of a pipeline: its ops in the loop over parts, by stage and kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, OpResult, SSAValue

from ...dialects.pipe import FragmentOp, TransferOp
from ...dialects.spmd import WaitOp
from ...dialects.staged import Stages
from ...dialects.step import BACKWARD
from ..errors import fail
from ..step.loop import LoopOps, fragment_of
from ..step.step_view import value_label
from .schedules import Delivery, FragmentKind, Work


def has_chunks(func: FuncOp) -> bool:
    """Whether stages of a scheduled step have several chunks of the model."""
    return any(_CHUNK in op.label.data for op in func.body.block.ops if isinstance(op, FragmentOp))


_CHUNK = "."
"""What parts the number of a stage from that of its chunk in labels of fragments."""


class Fragments:
    """
    The ops of a loop over parts, each with its stage and kind.

    A gradient is one of a weight where nothing that goes to another stage depends on it; where no gradient goes to
    another stage, all count as those of what forward works on, for there is nothing to hurry for.

    A stage that values come back to has several chunks of the model, and a fragment of each kind for each: an op
    belongs to the chunk that a part has reached when something needs it (`_laps`).
    """

    def __init__(self, func: FuncOp, loop: LoopOps) -> None:
        self.func, self.stages, self.loop = func, Stages(func), loop
        self.inside = set(loop.inside)
        self.transfers = [op for op in loop.inside if isinstance(op, TransferOp)]
        self.backward = self._backward()
        self.chunk_of = self._chunks()
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
        """The ops of backward, transfers included."""
        backward: set[Operation] = set()
        for op in self.loop.inside:
            made = [value.op for value in op.operands if isinstance(value, OpResult)]
            if isinstance(op, WaitOp):
                is_backward = op.start in backward
            else:
                is_backward = BACKWARD in op.attributes or any(source in backward for source in made)
            if is_backward:
                backward.add(op)
        return backward

    def _chunks(self) -> dict[Operation, int]:
        """By op, which chunk of its stage it belongs to; backward goes through them from the last to the first."""
        forward = self._laps(lambda op: op not in self.backward)
        backward = self._laps(lambda op: op in self.backward)
        last = max((*forward.values(), *backward.values()), default=0)
        return forward | {op: last - lap for op, lap in backward.items()}

    def _laps(self, is_one: Callable[[Operation], bool]) -> dict[Operation, int]:
        """
        How many times a part has gone through all stages, forward or backward, before an op is run: as few as what it
        needs allows, if that is what others need it for, else as many as those that need it.
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
        """1 for a transfer that begins another lap: in forward to an earlier stage, in backward to a later one."""
        if not isinstance(op, TransferOp):
            return 0
        source, target = self.stages.of_value(op.operand), self.stages.of_value(op.result)
        assert source is not None, "transfers are between stages"
        assert target is not None, "transfers are between stages"
        return int(target > source if op in self.backward else target < source)

    def _kinds(self) -> dict[Operation, FragmentKind]:
        """The kind of each op but transfers."""
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
        """The stage and the chunk of an op."""
        return self.stages.of_op(op), self.chunk_of[op]

    def _before(self, ops: Iterable[Operation]) -> set[Operation]:
        """The ops of the loop on the same stage that some ops depend on."""
        found, pending = set[Operation](), list(ops)
        while pending:
            for value in pending.pop().operands:
                owner = value.owner
                if isinstance(owner, Operation) and owner in self.inside and owner not in found:
                    if not isinstance(owner, TransferOp):
                        found.add(owner)
                        pending.append(owner)
        return found

    def works(self) -> list[Work]:
        """The fragments, in the order in which a part goes through them: forward, then back through the stages."""

        def place(work: Work) -> tuple[bool, tuple[int, int], bool]:
            forward, way = work.kind is FragmentKind.FORWARD, (work.chunk, work.stage)
            return not forward, way if forward else (-way[0], -way[1]), work.kind is FragmentKind.WEIGHTS

        return [replace(work, needs=self._needs(work)) for work in sorted(self.by_work, key=place)]

    def _needs(self, work: Work) -> tuple[str, ...]:
        """The other fragments of its stage whose values a fragment uses: of other chunks, too."""
        owners = (value.owner for op in self.by_work[work] for value in op.operands)
        made = (self._work(owner) for owner in owners if isinstance(owner, Operation) and owner in self.kinds)
        return tuple(dict.fromkeys(other.label for other in made if other != work))

    def deliveries(self) -> list[Delivery]:
        """The transfers of parts: from which fragment to which."""
        found: list[Delivery] = []
        for op in self.transfers:
            source, target = op.operand.owner, self.stages.of_value(op.result)
            assert target is not None
            if not isinstance(source, Operation) or source not in self.kinds:
                fail(op, f"sends {value_label(op.operand)}, expected what an op of the loop makes; send it from there")
            users = (self._work(use.operation).label for use in op.result.uses if use.operation in self.kinds)
            label = self._work(source).label
            found.append(Delivery(op.label.data, label, target, tuple(dict.fromkeys(users))))
        return found

    def write(self, axis: str) -> None:
        """Put the ops into fragments in the order of dataflow, between what comes before the loop and after it."""
        block = self.func.body.block
        order = self._ordered()
        for op in (*self.loop.before, *self.transfers, *self.loop.after):
            op.detach()
        end = block.last_op
        assert end is not None, "a step function returns"
        block.insert_ops_before(list(self.loop.before), end)
        for each in order:
            if isinstance(each, Work):
                block.insert_op_before(fragment_of(each.label, axis, self.by_work[each], each.stage), end)
            else:
                block.insert_op_before(each, end)
        block.insert_ops_before(list(self.loop.after), end)

    def _ordered(self) -> list[Work | TransferOp]:
        """
        Fragments and transfers in a depth-first order, each right after what it needs, which `graphlib` does not give;
        a failure where that cannot be.
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
                if op.operand.owner in self.kinds and self._work_of(op.operand) == work:
                    enter(op)
        return list(order)

    def _work_of(self, value: SSAValue) -> Work:
        assert isinstance(value.owner, Operation)
        return self._work(value.owner)

    def _name(self, each: Work | TransferOp) -> str:
        return f"fragment {each.label}" if isinstance(each, Work) else f"transfer {each.label}"
