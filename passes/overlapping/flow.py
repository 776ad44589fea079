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
    The ops that a collective serves.

    ARGUMENTS  ops that read arguments of the step: gathers of parameters
    RESULTS    only updates and results of the step, casts and norms of gradients before them, and sums over the parts
               of the batch: reductions of gradients and of the loss
    INNER      ops between other ops: resharding of activations and of their gradients, counts
    """

    ARGUMENTS = "arguments"
    RESULTS = "results"
    INNER = "inner"


class OpFlow:
    """
    One step function, or one fragment of it: its ops in order, and its collectives with their roles.

    Positions count the ops of `body`, then the ops of `updates`, from 0. The body does not contain frees, the
    terminator and ops that are placed on demand: collectives that serve results, and views of results of collectives.
    """

    def __init__(self, view: StepView, fragment: FragmentOp | None = None) -> None:
        self.view, self.mesh = view, view.mesh
        self.block = view.func.body.block if fragment is None else fragment.body.block
        ops = [op for op in self.block.ops if not isinstance(op, FreeOp | ReturnOp | YieldOp)]
        self._late = _late(ops)
        own = (op for op in ops if isinstance(op, CollectiveOp) and view.has(op))
        collectives = (op for op in own if communicates(op, self.mesh))
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
        """Return the collectives of one role, in program order."""
        listed = (op for op, served in self.roles.items() if served is role)
        return [op for op in listed if isinstance(op, CollectiveOp)]

    def ready(self, op: CollectiveOp) -> int:
        """
        Return the position of the op that produces the operand of `op`; -1 for an argument.

        A collective that continues another inner collective is ready at its own place in the program.
        """
        if op in self.position and self._continues(op):
            return self.position[op]
        return self._made(op.operand)

    def first_use(self, op: CollectiveOp) -> int:
        """Return the position of the first op that needs the result of `op`, directly or through ops on demand."""
        users = final_users(op.result, self._hands_on)
        return min((self.position.get(user, self.end) for user in users), default=self.end)

    def height(self, op: CollectiveOp) -> int:
        """Return how many more collectives follow `op` on the way of an argument's value to its users."""
        users = final_users(op.result, self.floating.__contains__)
        further = (user for user in users if isinstance(user, CollectiveOp) and self._hands_on(user))
        return max((1 + self.height(user) for user in further), default=0)

    def continued_by(self, op: CollectiveOp) -> list[CollectiveOp]:
        """Return the collectives on the result of `op` or on a view of it."""
        return [user for user in final_users(op.result, is_view) if isinstance(user, CollectiveOp)]

    def has_work(self, after: int, before: int) -> bool:
        """Return whether an op strictly between two positions computes."""
        return before > after + 1 and self._work[min(before, self.end)] > self._work[after + 1]

    def _made(self, value: SSAValue) -> int:
        if not isinstance(value, OpResult):
            return -1
        if (position := self.position.get(value.op)) is not None:
            return position
        return max(map(self._made, value.op.operands), default=-1)

    def _continues(self, op: Operation) -> bool:
        """Return whether an inner collective produces an operand of `op`, directly or through views."""
        return any(
            self.roles.get(source) is CollectiveRole.INNER or (is_view(source) and self._continues(source))
            for source in sources(op)
        )

    def _hands_on(self, op: Operation) -> bool:
        """Return whether the users of the operand of `op` are in fact the users of its result."""
        return op in self.floating or self.roles.get(op) is CollectiveRole.ARGUMENTS

    def _role(self, op: CollectiveOp) -> CollectiveRole:
        if _from_arguments(op):
            return CollectiveRole.ARGUMENTS
        # A fragment only adds a gradient to the sum over the parts of the batch.
        is_term = bool(op.sharding.over_time(self.mesh).partial)
        is_term = is_term and all(isinstance(user, YieldOp) for user in _served(op))
        return CollectiveRole.RESULTS if is_term or _serves_results(op, self._late) else CollectiveRole.INNER

    def _of_updates(self) -> set[Operation]:
        """Return the optimizer's ops, the ops on reduced gradients before them, and the users of their results."""
        updates: set[Operation] = set()
        for op in self.ops:
            of_reduced = op in self._late and not self.floating.isdisjoint(sources(op))
            if is_update(op) or of_reduced or not updates.isdisjoint(sources(op)):
                updates.add(op)
        return updates

    def _floating(self) -> set[Operation]:
        """Return the collectives that serve results, the views of results of collectives, and waits of other stages."""
        found: set[Operation] = {*self.of(CollectiveRole.RESULTS), *(op for op in self.ops if isinstance(op, WaitOp))}
        for op in self.ops:
            if is_view(op) and any(source in found or source in self.roles for source in sources(op)):
                found.add(op)
        return found


def _late(ops: Sequence[Operation]) -> set[Operation]:
    """Return the ops on gradients of parameters that only serve updates: casts, sums of gradients, norms, scales."""
    late: set[Operation] = set()
    for op in reversed(ops):
        is_after = isinstance(op, ComputeOp) and (BACKWARD not in op.attributes or spec_of(op).family == "elementwise")
        if is_after and _serves_results(op, late) and not all(isinstance(user, ReturnOp) for user in _served(op)):
            late.add(op)
    return late


def _serves_results(op: Operation, late: Container[Operation]) -> bool:
    users = _served(op)
    return bool(users) and all(is_update(user) or isinstance(user, ReturnOp) or user in late for user in users)


def _served(op: Operation) -> list[Operation]:
    return [user for result in op.results for user in final_users(result, _moves_data)]


def _from_arguments(op: Operation) -> bool:
    """Return whether `op` only reshards or views arguments."""
    return _moves_data(op) and all(map(_from_arguments, sources(op)))


def _moves_data(op: Operation) -> bool:
    return is_view(op) or isinstance(op, CollectiveOp)


def is_view(op: Operation) -> bool:
    """Return whether `op` costs no time wherever it is placed."""
    return isinstance(op, SliceOp | PartialOp) or (isinstance(op, AtenOp) and op.spec.view)


def _computes(op: Operation) -> bool:
    return isinstance(op, FragmentOp) or (isinstance(op, ComputeOp) and not is_view(op))


def final_users(value: SSAValue, hands_on: Callable[[Operation], bool]) -> Iterator[Operation]:
    """Yield the users of `value` behind ops that hand it on; a user inside a fragment counts as the fragment."""
    around = value.owner.parent if isinstance(value.owner, Operation) else value.owner
    for use in value.uses:
        user, parent = use.operation, use.operation.parent_op()
        if isinstance(parent, FragmentOp) and parent.body.block is not around:
            yield parent
        elif hands_on(user):
            for result in user.results:
                yield from final_users(result, hands_on)
        elif not isinstance(user, FreeOp):
            yield user
