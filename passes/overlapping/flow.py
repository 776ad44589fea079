"""The purpose of each collective of a step, and the ops between which it may run: the input of `overlap`."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from enum import Enum
from itertools import accumulate

from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation, OpResult, SSAValue

from ...dialects.aten import AtenOp
from ...dialects.compute import ComputeOp
from ...dialects.pipe import FragmentOp, YieldOp
from ...dialects.spmd import CollectiveOp, FreeOp, PartialOp, SliceOp, WaitOp
from ...dialects.step import BACKWARD
from ...dialects.train import is_update
from ..analysis.compute import spec_of
from ..step.loop import communicates
from ..step.step_view import StepView
from .early import early_scalars_first, operands_first, sources


class CollectiveRole(Enum):
    """
    What a collective is for.

    ARGUMENTS  ops that read arguments of the step: gathers of parameters
    RESULTS    updates and results of the step alone, casts and norms of gradients before them too: reductions of
               gradients and of the loss
    INNER      ops between others: changes of activations and of their gradients, counts
    """

    ARGUMENTS = "arguments"
    RESULTS = "results"
    INNER = "inner"


class OpFlow:
    """
    One step function, or one fragment of it: its ops in order, and its collectives with their roles.

    The positions of `body`, then of `updates`, count from 0. Not in the body are frees, the return, and what
    goes where it is needed: collectives that serve results, and views of what a collective makes.
    """

    def __init__(self, view: StepView, fragment: FragmentOp | None = None) -> None:
        self.view, self.mesh = view, view.mesh
        self.block = view.func.body.block if fragment is None else fragment.body.block
        ops = [op for op in self.block.ops if not isinstance(op, FreeOp | ReturnOp | YieldOp)]
        self._late = _late(ops)
        mine = (op for op in ops if isinstance(op, CollectiveOp) and view.has(op))
        collectives = (op for op in mine if communicates(op, self.mesh))
        self.roles: dict[Operation, CollectiveRole] = {op: self._role(op) for op in collectives}
        inner = self.of(CollectiveRole.INNER)
        self.ops = operands_first(early_scalars_first(ops, inner), inner)
        self.floating = self._floating()
        updates = self._of_updates()
        self.body = [op for op in self.ops if op not in self.floating and op not in updates]
        self.updates = [op for op in self.ops if op not in self.floating and op in updates]
        self.position = {op: index for index, op in enumerate((*self.body, *self.updates))}
        self.end = len(self.position)
        self._work = list(accumulate((_computes(op) for op in self.position), initial=0))

    def of(self, role: CollectiveRole) -> list[CollectiveOp]:
        """The collectives of one role, in program order."""
        listed = (op for op, served in self.roles.items() if served is role)
        return [op for op in listed if isinstance(op, CollectiveOp)]

    def ready(self, op: CollectiveOp) -> int:
        """
        The position of the op after which the operand of `op` can be had; -1 for an argument.

        What continues another inner collective is not ready before its place in the program.
        """
        if op in self.position and self._continues(op):
            return self.position[op]
        return self._made(op.operand)

    def first_use(self, op: CollectiveOp) -> int:
        """The position of the first op that needs the result of `op`, or something that is handed on from it."""
        users = _final_users(op.result, self._hands_on)
        return min((self.position.get(user, self.end) for user in users), default=self.end)

    def height(self, op: CollectiveOp) -> int:
        """How many more collectives a value that `op` brings from an argument goes through."""
        users = _final_users(op.result, self.floating.__contains__)
        further = (user for user in users if isinstance(user, CollectiveOp) and self._hands_on(user))
        return max((1 + self.height(user) for user in further), default=0)

    def has_work(self, after: int, before: int) -> bool:
        """Whether some op computes strictly between two positions."""
        return before > after + 1 and self._work[min(before, self.end)] > self._work[after + 1]

    def _made(self, value: SSAValue) -> int:
        if not isinstance(value, OpResult):
            return -1
        if (position := self.position.get(value.op)) is not None:
            return position
        return max(map(self._made, value.op.operands), default=-1)

    def _continues(self, op: Operation) -> bool:
        """Whether an inner collective makes an operand of `op`, but for views."""
        return any(
            self.roles.get(source) is CollectiveRole.INNER or (is_view(source) and self._continues(source))
            for source in sources(op)
        )

    def _hands_on(self, op: Operation) -> bool:
        """Whether those who need the result of `op` are those who need its operand."""
        return op in self.floating or self.roles.get(op) is CollectiveRole.ARGUMENTS

    def _role(self, op: CollectiveOp) -> CollectiveRole:
        if _from_arguments(op):
            return CollectiveRole.ARGUMENTS
        return CollectiveRole.RESULTS if _serves_results(op, self._late) else CollectiveRole.INNER

    def _of_updates(self) -> set[Operation]:
        """The optimizer's ops, what they need of reduced gradients, and what needs their results."""
        found: set[Operation] = set()
        for op in self.ops:
            of_reduced = op in self._late and not self.floating.isdisjoint(sources(op))
            if is_update(op) or of_reduced or not found.isdisjoint(sources(op)):
                found.add(op)
        return found

    def _floating(self) -> set[Operation]:
        """The collectives that serve results, the views of what any collective makes, and waits of other stages."""
        found: set[Operation] = {*self.of(CollectiveRole.RESULTS), *(op for op in self.ops if isinstance(op, WaitOp))}
        for op in self.ops:
            if is_view(op) and any(source in found or source in self.roles for source in sources(op)):
                found.add(op)
        return found


def _late(ops: Sequence[Operation]) -> set[Operation]:
    """What is done to gradients of parameters for updates alone: casts, sums of two gradients, norms, scales."""
    found: set[Operation] = set()
    for op in reversed(ops):
        is_after = isinstance(op, ComputeOp) and (BACKWARD not in op.attributes or spec_of(op).family == "elementwise")
        if is_after and _serves_results(op, found) and not all(isinstance(user, ReturnOp) for user in _served(op)):
            found.add(op)
    return found


def _serves_results(op: Operation, late: Container[Operation]) -> bool:
    users = _served(op)
    return bool(users) and all(is_update(user) or isinstance(user, ReturnOp) or user in late for user in users)


def _served(op: Operation) -> list[Operation]:
    return [user for result in op.results for user in _final_users(result, _moves_data)]


def _from_arguments(op: Operation) -> bool:
    """Whether `op` only brings data of arguments into another form."""
    return _moves_data(op) and all(map(_from_arguments, sources(op)))


def _moves_data(op: Operation) -> bool:
    return is_view(op) or isinstance(op, CollectiveOp)


def is_view(op: Operation) -> bool:
    """Whether `op` costs nothing, wherever it is."""
    return isinstance(op, SliceOp | PartialOp) or (isinstance(op, AtenOp) and op.spec.view)


def _computes(op: Operation) -> bool:
    return isinstance(op, FragmentOp) or (isinstance(op, ComputeOp) and not is_view(op))


def _final_users(value: SSAValue, hands_on: Callable[[Operation], bool]) -> Iterator[Operation]:
    """
    The users of `value`, or of what those that hand it on make of it; from outside of a fragment, the fragment.
    """
    around = value.owner.parent if isinstance(value.owner, Operation) else value.owner
    for use in value.uses:
        user, parent = use.operation, use.operation.parent_op()
        if isinstance(parent, FragmentOp) and parent.body.block is not around:
            yield parent
        elif hands_on(user):
            for result in user.results:
                yield from _final_users(result, hands_on)
        elif not isinstance(user, FreeOp):
            yield user
