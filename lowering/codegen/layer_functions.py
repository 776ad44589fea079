"""
Choose the parameters and results of the functions of equal layers.

A value that a layer frees must be released at once, so only the function may hold a reference; a variable of the caller
would keep it alive. Values that a call frees are therefore passed in lists, which the function unpacks and clears.
Results that are freed together, such as the values that forward saves for backward, are returned as such a list.
Values that the caller keeps are passed by name, or as the list that holds them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.ir import Operation, SSAValue

from ...dialects.spmd import FreeOp, TokenType, WaitOp
from ...dialects.train import ForeachOp, TrainOp, is_update
from .equal_layers import LayerCall, find_calls
from .equal_ops import ValueUses
from .overwritten import Overwritten

SHORTEST_LIST = 3
"""The least number of values that are passed as a list."""

_MANY = 8
"""An op with more results or operands than this gets lists of values."""

_Place = tuple[int, int]
"""The number of a list of values, and an index in this list."""

_Partition = tuple[tuple[int, ...], ...]
"""The indices of values, by group."""


@dataclass(eq=False)
class LayerFunction:
    """
    A function that is called for equal layers. Values are identified by their index in `given` or `left` of the calls.

    Args:
        named: arguments passed by name.
        lists: arguments passed in lists that the caller keeps: argument -> index in the list.
        taken: groups of arguments passed in lists that the function clears.
        returned: groups of results; a group of several values is a list. Results in `replaced` are not returned.
        replaced: result -> argument that it overwrites.
    """

    calls: Sequence[LayerCall]
    named: Sequence[int] = ()
    lists: Sequence[Mapping[int, int]] = ()
    taken: Sequence[Sequence[int]] = ()
    returned: Sequence[Sequence[int]] = ()
    replaced: Mapping[int, int] = field(default_factory=dict[int, int])
    name: str = ""


Items = Sequence["Operation | LayerCall"]
"""The ops and calls of a function, in order."""


class _Interfaces:
    """
    The parameters and results of all layer functions that a function calls.

    Args:
        items: ops and calls of the caller.
        functions: calls of each function among the items.
        lists: lists of arguments of the caller.
    """

    def __init__(
        self,
        items: Items,
        functions: Sequence[Sequence[LayerCall]],
        overwritten: Overwritten,
        lists: Sequence[Sequence[SSAValue]],
    ) -> None:
        self._overwritten = overwritten
        self._places: dict[SSAValue, _Place] = {}
        self._sizes: list[int] = []
        for values in lists:
            self._enter(values)
        self._freed_at: dict[SSAValue, Hashable] = {}
        for item in items:
            self._freed_at |= dict.fromkeys(_freed_by(item), item)
        ops = (item for item in items if isinstance(item, Operation))
        self.splits = {op: groups for op in ops if (groups := self._split(op)) is not None}
        self.functions = [LayerFunction(calls) for calls in functions]
        for function in self.functions:
            self._set_results(function)
        for function in self.functions:
            self._set_arguments(function)

    def _split(self, item: Operation) -> list[Sequence[SSAValue]] | None:
        """Group the results of an op with many results by the item that frees them; return None for other ops."""
        if not isinstance(item, WaitOp | ForeachOp) or len(item.results) <= _MANY or is_update(item):
            return None
        values = tuple(item.results)
        groups = [[values[at] for at in group] for group in _partition([self._fate(value) for value in values])]
        for group in groups:
            if len(group) >= SHORTEST_LIST:
                self._enter(group)
        return [*groups]

    def _enter(self, values: Sequence[SSAValue]) -> None:
        self._places.update((value, (len(self._sizes), index)) for index, value in enumerate(values))
        self._sizes.append(len(values))

    def _set_results(self, function: LayerFunction) -> None:
        first = function.calls[0]
        function.replaced = _replaced(first, self._overwritten)
        plain = [index for index in range(len(first.left)) if index not in function.replaced]

        def fates(call: LayerCall) -> list[Hashable]:
            return [self._fate(call.left[index]) for index in plain]

        groups = _most_frequent([_partition(fates(call)) for call in function.calls])
        function.returned = _ungrouped([sorted((plain[at] for at in group), key=_order_of(first)) for group in groups])
        for call in function.calls:
            for group in function.returned:
                values = [call.left[index] for index in group]
                if len(group) > 1 and len(set(map(self._fate, values))) == 1:
                    call.lists.append(values)
                    self._enter(values)

    def _fate(self, value: SSAValue) -> Hashable:
        """Return a key for the item that frees a value; each token that the caller waits for has a separate key."""
        end = self._freed_at.get(value)
        return value if isinstance(value.type, TokenType) and not isinstance(end, LayerCall) else id(end)

    def _set_arguments(self, function: LayerFunction) -> None:
        calls, freed = function.calls, function.calls[0].freed
        indices = range(len(calls[0].given))
        places = [[self._places.get(call.given[index]) for call in calls] for index in indices]

        def numbers(index: int) -> Hashable:
            return tuple(place[0] if place is not None else None for place in places[index])

        remaining = [index for index in indices if calls[0].given[index] not in freed]
        fixed = _grouped(filter(self._is_fixed(places), remaining), numbers)
        groups = [group for group in fixed if len(group) >= SHORTEST_LIST]
        listed = {index for group in groups for index in group}
        function.named = [index for index in remaining if index not in listed]
        function.lists = [{index: _index(places[index]) for index in group} for group in groups]
        function.taken = self._taken([index for index in indices if index not in remaining], places)

    def _taken(self, taken: Sequence[int], places: Sequence[Sequence[_Place | None]]) -> list[Sequence[int]]:
        """Group the arguments that the function frees by the lists that hold them in most calls; lists come first."""

        def lists(call: int) -> list[Hashable]:
            found = [(place[0] if (place := places[index][call]) is not None else None) for index in taken]
            sizes = Counter(found)
            return [each if each is not None and sizes[each] >= SHORTEST_LIST else None for each in found]

        patterns = [lists(call) for call in range(len(places[taken[0]]) if taken else 0)]
        groups = _most_frequent([_partition(each) for each in patterns])
        call = next((at for at, each in enumerate(patterns) if _partition(each) == groups), 0)
        named = [[taken[at] for at in group] for group in groups if patterns[call][group[0]] is None]
        whole = [[taken[at] for at in group] for group in groups if patterns[call][group[0]] is not None]
        for group in whole:
            group.sort(key=lambda index: _index(places[index][call:]))
        return [*whole, *named]

    def _is_fixed(self, places: Sequence[Sequence[_Place | None]]) -> Callable[[int], bool]:
        """Return whether a value has, in all calls, the same index in a list of the same size."""

        def fixed(index: int) -> bool:
            places_found = {(place[1], self._sizes[place[0]]) if place is not None else None for place in places[index]}
            return len(places_found) == 1 and None not in places_found

        return fixed


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


def _index(places: Sequence[_Place | None]) -> int:
    """Return the index in the first list, or 0."""
    return next((place[1] for place in places if place is not None), 0)


def _replaced(call: LayerCall, overwritten: Overwritten) -> dict[int, int]:
    """Return the results of updates that overwrite arguments that the caller keeps, as result -> argument."""
    given = {value: index for index, value in enumerate(call.given)}
    left = {value: index for index, value in enumerate(call.left)}
    caller_values, origin = given.keys() - call.freed, dict[SSAValue, SSAValue]()
    for op in call.ops:
        if isinstance(op, TrainOp):
            for operand, result in overwritten[op].items():
                source = op.operands[operand]
                origin[op.results[result]] = origin.get(source, source)
    return {left[new]: given[old] for new, old in origin.items() if new in left and old in caller_values}


def _grouped(indices: Iterable[int], key: Callable[[int], Hashable]) -> list[list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for index in indices:
        groups.setdefault(key(index), []).append(index)
    return list(groups.values())


def _ungrouped(groups: Iterable[Sequence[int]]) -> list[Sequence[int]]:
    """Split groups that are too short for a list into single members; sort all groups by first member."""
    result: list[Sequence[int]] = []
    for group in groups:
        result += [group] if len(group) >= SHORTEST_LIST else [[index] for index in group]
    return sorted(result, key=lambda group: group[0])


@dataclass(frozen=True)
class LayeredOps:
    """
    The ops of a function, with calls in place of its equal layers.

    Args:
        items: ops and calls, in order.
        functions: call -> function.
        splits: op with many results -> lists of its results.
    """

    items: Items
    functions: Mapping[LayerCall, LayerFunction] = field(default_factory=dict[LayerCall, LayerFunction])
    splits: Mapping[Operation, Sequence[Sequence[SSAValue]]] = field(
        default_factory=dict[Operation, Sequence[Sequence[SSAValue]]]
    )


def find_layers(ops: Sequence[Operation], flow: ValueUses, lists: Sequence[Sequence[SSAValue]]) -> LayeredOps:
    """
    Find the equal layers among the ops of a function.

    Args:
        lists: lists of arguments of the function.
    """
    functions = find_calls(ops, flow)
    if not functions:
        return LayeredOps(ops)
    calls = {op: call for calls in functions for call in calls for op in call.ops}
    items: list[Operation | LayerCall] = []
    for op in ops:
        item = calls.get(op, op)
        if item is op or not items or items[-1] is not item:
            items.append(item)
    faces = _Interfaces(items, functions, flow.overwritten, lists)
    return LayeredOps(items, {call: function for function in faces.functions for call in function.calls}, faces.splits)
