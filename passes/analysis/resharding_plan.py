"""
Plan the copies of each value that a step needs, and where each is made; `insert-resharding` writes the plan.

A copy is the value in one sharding. The home is the copy that its op makes. Users that demand another sharding get it
by resharding the value's working copy, if there is one, or the home; users with the same demand share one copy. A
subclass inserts the resharding into the IR (`insert-resharding`), or only counts its memory (`search.memory`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import Generic, TypeVar

from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue, Use

from ...dialects import train
from ...dialects.compute import ComputeOp, element_bytes, shape_of
from ...dialects.pipe import TransferOp
from ...dialects.ratios import ratios_of
from ...dialects.step import BACKWARD
from ...ir.collectives import CollectiveKind, Step
from ...ir.ratios import Splits
from ...ir.sharding import Sharding
from ..errors import fail
from ..step.factors import Factors
from ..step.step_view import StepView, value_label
from .comparisons import find_comparisons
from .reductions import gradients_of_parameters
from .resharding import ReshardCosts, ReshardingError

Copy = TypeVar("Copy", bound=Hashable)

_SUMS = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)


class ReshardingPlan(ABC, Generic[Copy]):
    """
    Gives every user of every value a copy in the sharding it demands; an instance runs once.

    Args:
        view: the step, or one stage of it.
        costs: finds the cheapest chain of collectives from one sharding to another.
        factors: factors of the program before any resharding is inserted.
        per_part: whether each part of the batch gathers parameters and reduces their gradients.
    """

    def __init__(
        self, view: StepView, costs: ReshardCosts, factors: Factors | None = None, *, per_part: bool = False
    ) -> None:
        self.view, self.costs, self.per_part = view, costs, per_part
        self.factors = factors if factors is not None else Factors(view, ratios_of(view.func, view.mesh))
        self.spatial = {axis.name for axis in view.mesh.spatial}
        self.comparisons = find_comparisons(view)
        self.order = {op: i for i, op in enumerate(view.func.body.block.ops)}

    @abstractmethod
    def itself(self, value: SSAValue) -> Copy:
        """Return the home of a value."""

    @abstractmethod
    def home(self, value: SSAValue) -> Sharding:
        """Return the sharding of the home of a value."""

    @abstractmethod
    def working(self, value: SSAValue) -> tuple[Sharding, bool] | None:
        """Return the sharding of the working copy, and whether backward makes it again; None without a copy."""

    @abstractmethod
    def demand(self, op: ComputeOp, index: int) -> Sharding:
        """Return the sharding that an op demands of an operand."""

    @property
    @abstractmethod
    def saves_memory(self) -> bool:
        """Return whether only the home or the working copy of a value is kept from forward to backward."""

    @abstractmethod
    def make(self, value: SSAValue, start: Copy, step: Step, before: Operation, user: Operation, again: bool) -> Copy:
        """Insert one step from `start`, before the op `before`, for `user`; with `again` once more, for backward."""

    @abstractmethod
    def give(self, use: Use, copy: Copy) -> None:
        """Replace the operand of a use by a copy."""

    def run(self) -> None:
        """Walk over all values, and then over the results of the function."""
        block = self.view.func.body.block
        values: list[SSAValue] = [*block.args, *(r for op in list(block.ops) for r in op.results)]
        self._values = list(filter(self.view.has, values))
        self._splits = {value: self.factors.of_value(value) for value in self._values}
        self._made: dict[SSAValue, dict[tuple[bool, Sharding], Copy]] = {value: {} for value in self._values}
        self.reduced_per_part: set[SSAValue] = set()
        if self.per_part:
            self.reduced_per_part = gradients_of_parameters(self.view, self._is_gathered_per_part)
        for value in self._values:
            self._value(value)
        for index, value in self._returned():
            wanted = self.returned(index)
            if wanted != self.home(value):
                end = self.view.terminator
                use = next(use for use in value.uses if use.operation is end and use.index == index)
                self.give(use, self._copy(value, self.itself(value), self.home(value), wanted, end, end, False))

    def _is_gathered_per_part(self, value: SSAValue) -> bool:
        """Return whether each part makes its copies of a value: no copy serves both forward and backward."""
        home, (working, again) = self.home(value), self.working(value) or (None, False)
        phases: dict[Sharding, set[bool]] = {}
        for use in value.uses:
            if isinstance(op := use.operation, ComputeOp) and not train.is_update(op):
                phases.setdefault(working or self.demand(op, use.index), set()).add(BACKWARD in op.attributes)
        copies = [shared for copy, shared in phases.items() if copy != home]
        return bool(copies) and (again or all(len(shared) == 1 for shared in copies))

    def _returned(self) -> Iterator[tuple[int, SSAValue]]:
        listed = enumerate(list(self.view.terminator.arguments))
        return ((index, value) for index, value in listed if self.view.has(value))

    def returned(self, index: int) -> Sharding:
        """Return the sharding of a result: its updated argument's home, replicated for loss and metrics, or its own."""
        value = self.view.terminator.arguments[index]
        home = self.home(value)
        if (target := self.view.updated.get(index)) is not None:
            return self.home(self.view.func.body.block.args[target])
        if self.view.is_for_all(index):
            return Sharding.replicated(len(shape_of(value)))
        return replace(home, partial=tuple(pair for pair in home.partial if pair[0] in self.spatial))

    def _value(self, value: SSAValue) -> None:
        """Give each user of `value` the copy it demands, in program order."""
        for use in sorted(value.uses, key=lambda use: (self.order[use.operation], use.index)):
            op = use.operation
            if isinstance(op, ComputeOp):
                self._serve(value, use, self.demand(op, use.index))
            elif isinstance(op, TransferOp):
                # A partial value is reduced, in the cheapest way, before it is sent to another stage.
                home, transfer = self.home(value), use.operation
                wanted = self.home(transfer.results[0]).partial_axes
                summed = replace(home, partial=tuple(p for p in home.partial if p[0] in self.spatial or p[0] in wanted))
                target = self.costs.cheapest_reduced(self._splits[value], element_bytes(value), summed)
                self.give(use, self._copy(value, self.itself(value), home, target, transfer, transfer, False))

    def _serve(self, value: SSAValue, use: Use, demand: Sharding) -> None:
        home, user = self.home(value), use.operation
        in_backward = BACKWARD in user.attributes
        updates = train.is_update(user)
        working, again = None, False
        if not (updates and isinstance(value, BlockArgument)):
            working, again = self.working(value) or (None, False)
        is_compared = value in self.comparisons.values
        again = again and not is_compared
        # The working copy replaces the home of a value in memory; an argument's home stays.
        through = (
            working is not None and working != home and self.saves_memory and not again and isinstance(value, OpResult)
        )
        if demand == home and not through:
            return
        before = self._place(value, user)
        start, source = self.itself(value), home
        if working is not None and working != home:
            start = self._copy(value, start, home, working, before, user, again and in_backward)
            source = working
        apart = in_backward and (again or self.saves_memory) and not is_compared
        self.give(use, self._copy(value, start, source, demand, before, user, apart))

    def _place(self, value: SSAValue, user: Operation) -> Operation:
        """Return the op before which to make a copy: its first user, or the next op if only updates use the value."""
        producer = value.op if isinstance(value, OpResult) else None
        if producer is None or not all(train.is_update(use.operation) for use in value.uses):
            return user
        assert producer.next_op is not None, "a step function returns"
        return producer.next_op

    def _copy(
        self,
        value: SSAValue,
        start: Copy,
        source: Sharding,
        target: Sharding,
        before: Operation,
        user: Operation,
        again: bool,
    ) -> Copy:
        """Return the copy of `value` in sharding `target`, resharded from `start` in `source` if it does not exist."""
        if source == target:
            return start
        copies = self._made[value]
        if (again, target) in copies:
            return copies[again, target]
        if (reduced := self._reduced(value, source, target, again)) is not None:
            start, source = copies[again, reduced], reduced
        splits: Splits = self._splits[value]
        for step in self._steps(value, splits, source, target, user):
            # Temporal steps and reductions are shared with the other chains of the value.
            is_shared = step.kind in _SUMS or not self.spatial.issuperset(step.axes)
            if is_shared and (again, step.target) in copies:
                start = copies[again, step.target]
                continue
            start = self.make(value, start, step, before, user, again)
            if is_shared:
                copies[again, step.target] = start
        copies[again, target] = start
        return start

    def _steps(
        self, value: SSAValue, splits: Splits, source: Sharding, target: Sharding, user: Operation
    ) -> tuple[Step, ...]:
        """Return the steps of a cheapest chain; raise OpFailure if there is none."""
        of_part = target
        if value in self.reduced_per_part and not target.partial:
            of_part = replace(target, partial=tuple(pair for pair in source.partial if pair[0] not in self.spatial))
        try:
            steps = self.costs.path(splits, element_bytes(value), source, of_part)
            return (*steps, *self.costs.path(splits, element_bytes(value), of_part, target))
        except ReshardingError as error:
            fail(user, f"cannot have {value_label(value)}: {error}")

    def _reduced(self, value: SSAValue, source: Sharding, target: Sharding, again: bool) -> Sharding | None:
        """
        Return the sharding of an existing copy that is reduced further than `source` and not further than `target`.

        Reducing the same numbers twice costs more, and may round differently.
        """
        left, whole = set(target.partial_axes), set(source.partial_axes)
        copies = (copy for apart, copy in self._made[value] if apart == again)
        return next((copy for copy in copies if left <= set(copy.partial_axes) < whole), None)
