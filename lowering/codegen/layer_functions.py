"""
The parameters and results of the functions of equal layers.

What a layer frees has to be free at once, so nobody but the function may hold on to it: a caller's variable would. So
values that a call frees are handed over in lists, which the function unpacks and clears, and values that a function
returns and that are freed together, such as what forward keeps for backward, are made as such a list from the outset.
What the caller keeps is passed by name, or as the list that it is in.
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
"""Values that are passed as a list."""

_MANY = 8
"""Results or operands of one op for which lists of values are worth while."""

_Place = tuple[int, int]
"""A list of values, by its number, and an index of it."""

_Partition = tuple[tuple[int, ...], ...]
"""The indices of values, by group."""


@dataclass(eq=False)
class LayerFunction:
    """
    A function that is called for equal layers. Values are given by their index in `given` and `left` of its calls.

    Args:
        named: those that are passed by name.
        lists: those that are passed in a list that the caller keeps, each with its index there.
        taken: the lists of those that are handed over.
        returned: the results, of which those of several values are lists; what is written in the place of an
            argument is none.
        replaced: results -> the arguments in whose place they are written.
    """

    calls: Sequence[LayerCall]
    named: Sequence[int] = ()
    lists: Sequence[Mapping[int, int]] = ()
    taken: Sequence[Sequence[int]] = ()
    returned: Sequence[Sequence[int]] = ()
    replaced: Mapping[int, int] = field(default_factory=dict[int, int])
    name: str = ""


Items = Sequence["Operation | LayerCall"]
"""A function, op by op and call by call."""


class _Interfaces:
    """
    How values come to calls and go from them, in all of a function.

    Args:
        items: of the function.
        functions: by function, its calls among the items.
        lists: of values that no op of the function makes.
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
        """The results of one op of many, by what frees them; None where they are written in the place of arguments."""
        if not isinstance(item, WaitOp | ForeachOp) or len(item.results) <= _MANY or is_update(item):
            return None
        values = tuple(item.results)
        groups = [[values[at] for at in group] for group in _partition([self._fate(value) for value in values])]
        for group in groups:
            if len(group) >= SHORTEST_LIST:
                self._enter(group)
        return [*groups]

    def _enter(self, values: Sequence[SSAValue]) -> None:
        """Note that values are in a list."""
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
        """What frees a value; each token by itself that an op of the caller waits for."""
        end = self._freed_at.get(value)
        return value if isinstance(value.type, TokenType) and not isinstance(end, LayerCall) else id(end)

    def _set_arguments(self, function: LayerFunction) -> None:
        calls, freed = function.calls, function.calls[0].freed
        indices = range(len(calls[0].given))
        places = [[self._places.get(call.given[index]) for call in calls] for index in indices]

        def numbers(index: int) -> Hashable:
            return tuple(place[0] if place is not None else None for place in places[index])

        kept = [index for index in indices if calls[0].given[index] not in freed]
        fixed = _grouped(filter(self._is_fixed(places), kept), numbers)
        groups = [group for group in fixed if len(group) >= SHORTEST_LIST]
        listed = {index for group in groups for index in group}
        function.named = [index for index in kept if index not in listed]
        function.lists = [{index: _index(places[index]) for index in group} for group in groups]
        function.taken = self._taken([index for index in indices if index not in kept], places)

    def _taken(self, taken: Sequence[int], places: Sequence[Sequence[_Place | None]]) -> list[Sequence[int]]:
        """The values that are handed over, by the lists that most calls have them in; then those in none."""

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
        """Whether a value is in all calls at the same place of a list of the same size."""

        def fixed(index: int) -> bool:
            found = {(place[1], self._sizes[place[0]]) if place is not None else None for place in places[index]}
            return len(found) == 1 and None not in found

        return fixed


def _freed_by(item: Operation | LayerCall) -> Iterable[SSAValue]:
    """The values, and tokens, that an op of the caller or a call lets go of."""
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
    """The order of results in a list: that in which one op takes many of them, a bucket above all."""

    def order(index: int) -> tuple[int, int]:
        value = call.left[index]
        users = (use for use in value.uses if not isinstance(use.operation, FreeOp))
        return next(((0, use.index) for use in users if len(use.operation.operands) > _MANY), (1, index))

    return order


def _partition(keys: Sequence[Hashable]) -> _Partition:
    """The indices of equal keys, in order of the first of each."""
    return tuple(map(tuple, _grouped(range(len(keys)), keys.__getitem__)))


def _most_frequent(partitions: Sequence[_Partition]) -> _Partition:
    """The most frequent of some partitions, and of those the one with the fewest groups."""
    counts = Counter(partitions)
    return max(counts, key=lambda each: (counts[each], -len(each)), default=())


def _index(places: Sequence[_Place | None]) -> int:
    """An index in the first list that there is."""
    return next((place[1] for place in places if place is not None), 0)


def _replaced(call: LayerCall, overwritten: Overwritten) -> dict[int, int]:
    """The results of updates that are written in the place of arguments that the caller keeps."""
    given = {value: index for index, value in enumerate(call.given)}
    left = {value: index for index, value in enumerate(call.left)}
    kept, origin = given.keys() - call.freed, dict[SSAValue, SSAValue]()
    for op in call.ops:
        if isinstance(op, TrainOp):
            for operand, result in overwritten[op].items():
                source = op.operands[operand]
                origin[op.results[result]] = origin.get(source, source)
    return {left[new]: given[old] for new, old in origin.items() if new in left and old in kept}


def _grouped(indices: Iterable[int], key: Callable[[int], Hashable]) -> list[list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for index in indices:
        groups.setdefault(key(index), []).append(index)
    return list(groups.values())


def _ungrouped(groups: Iterable[Sequence[int]]) -> list[Sequence[int]]:
    """Groups that are worth a list, and the members of the others one by one; in order of their first members."""
    found: list[Sequence[int]] = []
    for group in groups:
        found += [group] if len(group) >= SHORTEST_LIST else [[index] for index in group]
    return sorted(found, key=lambda group: group[0])


@dataclass(frozen=True)
class LayeredOps:
    """
    A function of the program with calls for its equal layers.

    Args:
        items: its ops and calls, in order.
        functions: what each call calls.
        splits: the ops of many results -> the lists that these become.
    """

    items: Items
    functions: Mapping[LayerCall, LayerFunction] = field(default_factory=dict[LayerCall, LayerFunction])
    splits: Mapping[Operation, Sequence[Sequence[SSAValue]]] = field(
        default_factory=dict[Operation, Sequence[Sequence[SSAValue]]]
    )


def find_layers(ops: Sequence[Operation], flow: ValueUses, lists: Sequence[Sequence[SSAValue]]) -> LayeredOps:
    """
    The equal layers of the ops of a function.

    Args:
        lists: of values that no op makes.
    """
    functions = find_calls(ops, flow)
    if not functions:
        return LayeredOps(ops)
    calls = {op: each for calls in functions for each in calls for op in each.ops}
    items: list[Operation | LayerCall] = []
    for op in ops:
        item = calls.get(op, op)
        if item is op or not items or items[-1] is not item:
            items.append(item)
    faces = _Interfaces(items, functions, flow.overwritten, lists)
    return LayeredOps(items, {each: function for function in faces.functions for each in function.calls}, faces.splits)
