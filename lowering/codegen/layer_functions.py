"""
Choose the parameters and results of the functions of equal layers.

A value that a layer frees must be released at once, so only the function may hold a reference; a variable of the caller
would keep it alive. Values that a call frees are therefore passed in lists, which the function unpacks and clears.
Results that are freed together, such as the values that forward saves for backward, are returned as such a list.
Values that the caller keeps are passed by name, or as the list that holds them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from xdsl.ir import Operation, SSAValue

from ...dialects.pipe import FragmentOp
from ...dialects.spmd import FreeOp, TokenType, WaitOp
from ...dialects.train import ForeachOp, TrainOp, is_update
from .equal_layers import LayerCall, ValueUses

SHORTEST_LIST = 3
"""The least number of values that are passed as a list."""

_MANY = 8
"""An op with more results or operands than this gets lists of values."""

_Partition = tuple[tuple[int, ...], ...]
"""The indices of values, by group."""


@dataclass(eq=False)
class LayerFunction:
    """
    A function that is called for equal layers. Values are identified by their index in `given` or `left` of the calls.

    Args:
        named: arguments passed by name.
        lists: arguments passed in lists that the caller keeps: argument -> index in the list.
        groups: axes of the collectives in the function, filled when it is written.
        taken: groups of arguments passed in lists that the function clears.
        returned: groups of results; a group of several values is a list. Results in `replaced` are not returned.
        replaced: result -> argument that it overwrites.
        added: results that the function adds to the sums over the parts, instead of returning them. If the calls add
            results in different ways, the function returns them, and the callers add them.
    """

    calls: Sequence[LayerCall]
    named: Sequence[int] = ()
    lists: Sequence[Mapping[int, int]] = ()
    taken: Sequence[Sequence[int]] = ()
    returned: Sequence[Sequence[int]] = ()
    replaced: Mapping[int, int] = field(default_factory=dict[int, int])
    added: Sequence[int] = ()
    name: str = ""
    groups: dict[tuple[str, ...], None] = field(default_factory=dict[tuple[str, ...], None])


class Addition(NamedTuple):
    """
    The addition of a value to the sum over the parts.

    Args:
        how: the reduction, or "list" if the values of all parts are kept.
        is_copied: whether the first part copies the value, since others need its memory.
    """

    how: str
    is_copied: bool


Items = Sequence["Operation | LayerCall"]
"""The ops and calls of a function, in order."""


@dataclass(eq=False)
class Caller:
    """
    A function that may call functions of layers.

    Args:
        uses: ops of the function.
        lists: lists of its arguments.
        summed: fragment -> its results that are sums over all parts.
        added: values that are added to such sums as soon as they are computed -> how.
        items: ops and calls, in order.
        functions: call -> function.
        splits: op with many results -> lists of its results.
    """

    uses: ValueUses
    lists: Sequence[Sequence[SSAValue]] = ()
    summed: dict[Operation, Sequence[SSAValue]] = field(default_factory=dict[Operation, Sequence[SSAValue]])
    added: Mapping[SSAValue, Addition] = field(default_factory=dict[SSAValue, Addition])
    items: Items = field(init=False)
    functions: Mapping[LayerCall, LayerFunction] = field(default_factory=dict[LayerCall, LayerFunction])
    splits: dict[Operation, Sequence[Sequence[SSAValue]]] = field(
        default_factory=dict[Operation, Sequence[Sequence[SSAValue]]]
    )

    def __post_init__(self) -> None:
        self.items = self.uses.ops


class _ListPlace(NamedTuple):
    """The place of a value in a list: the number of the list, the index in it, and its size."""

    number: int
    at: int
    size: int


class _Interfaces:
    """
    The parameters and results of layer functions, and the lists that callers have values in (`call_functions`).
    """

    def __init__(
        self,
        callers: Sequence[Caller],
        functions: Sequence[Sequence[LayerCall]],
        ends: Mapping[SSAValue, Hashable],
        groups: Mapping[SSAValue, Hashable],
    ) -> None:
        self._places: dict[tuple[ValueUses, SSAValue], _ListPlace] = {}
        self._count = 0
        self._freed_at, self._groups = dict(ends), groups
        for caller in callers:
            for values in caller.lists:
                self._enter(caller.uses, values)
            for item in caller.items:
                self._freed_at |= dict.fromkeys(_freed_by(item), item)
            self._freed_at |= dict.fromkeys(caller.added, Addition)
        for caller in callers:
            self._split(caller)
        self._added = {caller.uses: caller.added for caller in callers}
        self.functions = [LayerFunction(calls) for calls in functions]
        for function in self.functions:
            self._set_results(function)
        for function in self.functions:
            self._set_arguments(function)

    def _split(self, caller: Caller) -> None:
        """Group the results of each op with many results by the item that frees them."""
        outside = frozenset(item for item in caller.items if isinstance(item, Operation))
        for op in caller.items:
            if isinstance(op, WaitOp | ForeachOp | FragmentOp) and not is_update(op):
                values = caller.summed.get(op, ()) if isinstance(op, FragmentOp) else tuple(op.results)
                if len(values) > _MANY:
                    last_forms = [_last_form(value, caller.uses, outside) for value in values]
                    parts = _partition([self._fate(value) for value in last_forms])
                    lists = [group for group in parts if len(group) >= SHORTEST_LIST]
                    if lists:
                        caller.splits[op] = [[values[at] for at in group] for group in parts]
                    for group in lists:
                        self._enter(caller.uses, [last_forms[at] for at in group])

    def _enter(self, uses: ValueUses, values: Sequence[SSAValue]) -> None:
        number, self._count = self._count, self._count + 1
        for index, value in enumerate(values):
            self._places[uses, value] = _ListPlace(number, index, len(values))

    def _set_results(self, function: LayerFunction) -> None:
        first = function.calls[0]
        function.replaced = _replaced(first)
        additions = [[self._added[call.uses].get(value) for value in call.left] for call in function.calls]
        if all(each == additions[0] for each in additions):
            function.added = [index for index, addition in enumerate(additions[0]) if addition is not None]
        plain = [index for index in range(len(first.left)) if index not in {*function.replaced, *function.added}]
        groups = _most_frequent(
            [_partition([self._fate(call.left[index]) for index in plain]) for call in function.calls]
        )
        # A group that is too short for a list becomes single results.
        lists = [sorted((plain[at] for at in group), key=_order_of(first)) for group in groups]
        parts = [[each] if len(each) >= SHORTEST_LIST else [[index] for index in each] for each in lists]
        function.returned = sorted((group for each in parts for group in each), key=lambda group: group[0])
        for call in function.calls:
            for number, group in enumerate(function.returned):
                values = [call.left[index] for index in group]
                if len(group) > 1 and len(set(map(self._end, values))) == 1:
                    call.kept.add(number)
                    self._enter(call.uses, values)

    def _end(self, value: SSAValue) -> Hashable:
        """Return a key for the item that frees a value; each token that the caller waits for has a separate key."""
        end = self._freed_at.get(value)
        return value if isinstance(value.type, TokenType) and not isinstance(end, LayerCall) else end

    def _fate(self, value: SSAValue) -> Hashable:
        return self._end(value), self._groups.get(value)

    def _set_arguments(self, function: LayerFunction) -> None:
        calls, freed = function.calls, function.calls[0].freed
        indices = range(len(calls[0].given))
        places = [[self._places.get((call.uses, call.given[index])) for call in calls] for index in indices]
        remaining = [index for index in indices if calls[0].given[index] not in freed]
        # In all calls, these values have the same index in a list of the same size; values of one group share a list.
        fixed = {
            index: [place for place in places[index] if place is not None]
            for index in remaining
            if None not in places[index] and len({place and place[1:] for place in places[index]}) == 1
        }
        groups = _grouped(fixed, lambda index: tuple(place.number for place in fixed[index]))
        function.lists = [
            {index: fixed[index][0].at for index in group} for group in groups if len(group) >= SHORTEST_LIST
        ]
        listed = {index for group in function.lists for index in group}
        function.named = [index for index in remaining if index not in listed]
        taken = [index for index in indices if index not in remaining]
        function.taken = _taken([[places[index][call] for index in taken] for call in range(len(calls))], taken)


def _taken(by_call: Sequence[Sequence[_ListPlace | None]], taken: Sequence[int]) -> list[Sequence[int]]:
    """
    Group the arguments that a function frees by the lists that hold them in most calls; lists come first.

    Args:
        by_call: for each call, the place of each argument.
        taken: the arguments.
    """

    def lists(places: Sequence[_ListPlace | None]) -> list[int | None]:
        sizes = Counter(place.number for place in places if place is not None)
        return [
            place.number if place is not None and sizes[place.number] >= SHORTEST_LIST else None for place in places
        ]

    patterns = list(map(lists, by_call))
    partitions = list(map(_partition, patterns))
    groups = _most_frequent(partitions)
    places, pattern = next(each for each in zip(by_call, patterns, partitions, strict=True) if each[2] == groups)[:2]

    def index_in_list(at: int) -> int:
        place = places[at]
        return 0 if pattern[at] is None or place is None else place.at

    ordered = sorted(groups, key=lambda group: pattern[group[0]] is None)
    return [[taken[at] for at in sorted(group, key=index_in_list)] for group in ordered]


def _last_form(value: SSAValue, uses: ValueUses, outside: Collection[Operation]) -> SSAValue:
    """
    Return the value that takes the place of the sum over a loop: the result of an all-reduce over the parts.

    Args:
        outside: the ops outside of the functions of layers; within these, the result has another name.
    """
    users = (use.operation for use in value.uses if isinstance(value.owner, FragmentOp))
    return next((op.results[0] for op in users if op in outside and uses.is_in_place_sum(op)), value)


def _freed_by(item: Operation | LayerCall) -> Iterable[SSAValue]:
    match item:
        case LayerCall():
            return item.freed
        case FreeOp():
            return item.operands
        case WaitOp():
            return (item.token,)
        case _:
            return ()


def _order_of(call: LayerCall) -> Callable[[int], tuple[int, int]]:
    """Return a sort key for results in a list: their order as operands of an op with many, such as a bucket."""

    def order(index: int) -> tuple[int, int]:
        value = call.left[index]
        users = (use for use in value.uses if not isinstance(use.operation, FreeOp))
        return next(((0, use.index) for use in users if len(use.operation.operands) > _MANY), (1, index))

    return order


def _partition(keys: Sequence[Hashable]) -> _Partition:
    """Group the indices of equal keys, in order of first occurrence."""
    return tuple(map(tuple, _grouped(range(len(keys)), keys.__getitem__)))


def _most_frequent(partitions: Sequence[_Partition]) -> _Partition:
    """Return the most frequent partition; of equally frequent partitions, one with the fewest groups."""
    counts = Counter(partitions)
    return max(counts, key=lambda each: (counts[each], -len(each)), default=())


def _replaced(call: LayerCall) -> dict[int, int]:
    """Return the results of updates that overwrite arguments that the caller keeps, as result -> argument."""
    given = {value: index for index, value in enumerate(call.given)}
    left = {value: index for index, value in enumerate(call.left)}
    caller_values, origin = given.keys() - call.freed, dict[SSAValue, SSAValue]()
    for op in call.ops:
        if isinstance(op, TrainOp):
            for operand, result in call.uses.overwritten[op].items():
                source = op.operands[operand]
                origin[op.results[result]] = origin.get(source, source)
    return {left[new]: given[old] for new, old in origin.items() if new in left and old in caller_values}


def _grouped(indices: Iterable[int], key: Callable[[int], Hashable]) -> list[list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for index in indices:
        groups.setdefault(key(index), []).append(index)
    return list(groups.values())


def call_functions(
    callers: Sequence[Caller],
    functions: Sequence[Sequence[LayerCall]],
    ends: Mapping[SSAValue, Hashable],
    groups: Mapping[SSAValue, Hashable],
) -> None:
    """
    Replace the equal layers of callers by calls, and choose how values are passed.

    Args:
        functions: calls of each function, by any of the callers (`find_calls`).
        ends: value -> key of the place that frees it, for values that no op of the callers frees.
        groups: value -> key of the list that it should be in, among values that are freed together.
    """
    calls = {op: call for calls in functions for call in calls for op in call.ops}
    for caller in callers:
        caller.items = list(dict.fromkeys(calls.get(op, op) for op in caller.uses.ops))
    faces = _Interfaces(callers, functions, ends, groups)
    by_call = {call: function for function in faces.functions for call in function.calls}
    for caller in callers:
        caller.functions = by_call
