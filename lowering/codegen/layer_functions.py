"""
Equal layers of a step: the ranges of ops of which the program has one function, and how its values come and go.

What a layer frees has to be free at once, so nobody but the function may hold on to it: a caller's variable would. So
values that a call frees are handed over in lists, which the function unpacks and clears, and values that a function
returns and that are freed together, such as what forward keeps for backward, are made as such a list from the outset.
What the caller keeps is passed by name, or as the list that it is in.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import NameLoc
from xdsl.ir import Operation, SSAValue

from ...dialects.compute import ComputeOp
from ...dialects.spmd import FreeOp, TokenType, WaitOp
from ...dialects.step import BACKWARD
from ...dialects.train import ForeachOp, TrainOp, is_update
from .equal_ops import STREAM, Classes, Flow
from .repeats import repeated_ranges

_SHORTEST_LIST = 3
"""Values that are passed as a list."""

_MANY = 12
"""Results or operands of one op for which lists of values are worth while."""

Overwritten = Mapping[Operation, Mapping[int, int]]

Place = tuple[int, int]
"""A list of values, by its number, and an index of it."""


@dataclass(eq=False)
class LayerCall:
    """
    One of several equal ranges of ops.

    Args:
        ops: with their frees.
        given: the values that it takes, in order of first use.
        left: the values that it makes for others, in order.
        lists: those of them that are freed together.
    """

    ops: Sequence[Operation]
    given: Sequence[SSAValue]
    left: Sequence[SSAValue]
    lists: list[Sequence[SSAValue]] = field(default_factory=list[Sequence[SSAValue]])

    def is_list(self, values: Sequence[SSAValue]) -> bool:
        """Whether some of what it makes stays in one list until all of it is freed at once."""
        return any(list(values) == list(each) for each in self.lists)

    @property
    def freed(self) -> frozenset[SSAValue]:
        """The values that are not held on to any longer than in here."""
        frees = (value for op in self.ops if isinstance(op, FreeOp) for value in op.args)
        return frozenset((*frees, *(op.token for op in self.ops if isinstance(op, WaitOp))))

    @property
    def streams(self) -> Sequence[ComputeOp]:
        """The ops that draw random numbers."""
        return [op for op in self.ops if isinstance(op, ComputeOp) and STREAM in op.attributes]

    @property
    def block(self) -> str:
        """The numbered layer of the model that most of its ops are of: `h.3`."""
        return most_frequent(numbered_layer(op) for op in self.ops)

    @property
    def phase(self) -> str:
        """What it does for that layer."""
        computed = [phase_of(op) for op in self.ops if isinstance(op, ComputeOp)]
        return most_frequent(computed or map(phase_of, self.ops))


@dataclass(eq=False)
class LayerFunction:
    """
    A function that is called for equal layers. Values are said by their index in `given` and `left` of its calls.

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


def phase_of(op: Operation) -> str:
    """The part of a step that an op belongs to."""
    return "backward" if BACKWARD in op.attributes else "update" if is_update(op) else "forward"


def numbered_layer(op: Operation) -> str:
    """The layer that an op is of, up to its number: `h.3` for `h.3.attn.q`; empty where it has none."""
    found = _NUMBERED.match(op.location.desc.data) if isinstance(op.location, NameLoc) else None
    return found[0] if found is not None else ""


def numbered(name: str) -> tuple[str, int | None]:
    """What a numbered layer is called, and its number, for the name of something in it: `h`, 3 for `h.3.attn.q`."""
    if (found := _NUMBERED.match(name)) is None:
        return "", None
    family, _, number = found[0].rpartition(".")
    return family, int(number)


def without_number(hint: str) -> str:
    """The name of a value within its layer: `attn.q.weight` for `h.3.attn.q.weight`."""
    return hint[found.end() + 1 :] if (found := _NUMBERED.match(hint)) is not None and found.end() < len(hint) else hint


def any_number(place: str) -> str:
    """A place in the model (`errors.place`) that stands for that of all layers: `h.*.attn.q` for `h.3.attn.q`."""
    if (found := _NUMBERED_PLACE.match(place)) is None:
        return place
    return f"{found[1]}*{place[found.end() :]}"


_NUMBERED_PLACE = re.compile(r"((?:[^\W\d]\w*\.)*)\d+(?=[.,\s]|$)", re.ASCII)
_NUMBERED = re.compile(r"(?:[^\W\d]\w*\.)*\d+(?![^.])", re.ASCII)


def most_frequent(items: Iterable[str]) -> str:
    """The most frequent of some words that are not empty."""
    counts = Counter(item for item in items if item)
    return counts.most_common(1)[0][0] if counts else ""


def find_calls(ops: Sequence[Operation], flow: Flow) -> list[list[LayerCall]]:
    """The ranges of equal ops that are worth a function."""
    steps = _with_frees(ops)
    heads = [step[0] for step in steps]
    classes = Classes()
    ends = _ends([_place(op) for op in heads])
    begins = [at == 0 or end != ends[at - 1] for at, end in enumerate(ends)]
    items = [_item(classes, step) for step in steps]

    def within(each: range) -> list[Operation]:
        return [op for step in steps[each.start : each.stop] for op in step]

    def alike(ranges: Sequence[range]) -> Sequence[range]:
        by_key: dict[Hashable, list[range]] = {}
        for each in ranges:
            by_key.setdefault(flow.key(within(each)), []).append(each)
        return max(by_key.values(), key=len)

    found = repeated_ranges(items, begins, ends, alike)
    return [[_call(within(each), flow) for each in ranges] for ranges in found]


_Place = tuple[str, str]


def _place(op: Operation) -> _Place | None:
    """The layer and phase that an op says that it is of; what communicates, or has no layer, may stand in any."""
    if not isinstance(op, ComputeOp) or not isinstance(op.location, NameLoc):
        return None
    return numbered_layer(op), phase_of(op)


def _ends(places: Sequence[_Place | None]) -> list[int]:
    """Up to where a range may go that begins at each op: the last of the layer and phase that is there or comes next."""
    ends: list[int] = []
    end, last = len(places), None
    for at in reversed(range(len(places))):
        place = places[at]
        if place is not None and place != last:
            end, last = at + 1, place
        ends.append(end)
    return ends[::-1]


def _call(ops: Sequence[Operation], flow: Flow) -> LayerCall:
    return LayerCall(ops, flow.given(ops), flow.left(ops))


def _with_frees(ops: Sequence[Operation]) -> list[list[Operation]]:
    """Each op with the frees that follow it."""
    steps: list[list[Operation]] = []
    for op in ops:
        if isinstance(op, FreeOp) and steps:
            steps[-1].append(op)
        else:
            steps.append([op])
    return steps


def _item(classes: Classes, step: Sequence[Operation]) -> int | None:
    """The class of an op and of how many values are freed after it."""
    number = classes.of(step[0])
    freed = sum(len(op.operands) for op in step[1:])
    return None if number is None else (number << 8) + min(freed, 255)


Items = Sequence["Operation | LayerCall"]
"""A function, op by op and call by call."""


class Interfaces:
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
        self._places: dict[SSAValue, Place] = {}
        self._sizes: list[int] = []
        for values in lists:
            self._enter(values)
        self._freed_at: dict[SSAValue, Hashable] = {}
        for item in items:
            for value in item.freed if isinstance(item, LayerCall) else item.operands if isinstance(item, FreeOp) else ():
                self._freed_at[value] = item
            if isinstance(item, WaitOp):
                self._freed_at[item.token] = item
        self.splits = {op: groups for op in items if (groups := self._split(op)) is not None}
        self.functions = [LayerFunction(calls) for calls in functions]
        for function in self.functions:
            self._set_results(function)
        for function in self.functions:
            self._set_arguments(function)

    def _split(self, item: Operation | LayerCall) -> list[Sequence[SSAValue]] | None:
        """
        The results of one op of many, as lists of neighbours that are freed together; None where those are not neighbours,
        or are written in the place of arguments.
        """
        if not isinstance(item, WaitOp | ForeachOp) or len(item.results) <= _MANY or is_update(item):
            return None
        groups: list[list[SSAValue]] = []
        for value in item.results:
            if groups and self._freed_at.get(value) is self._freed_at.get(groups[-1][0]):
                groups[-1].append(value)
            else:
                groups.append([value])
        ends = {id(self._freed_at.get(group[0])) for group in groups}
        if len(ends) < len(groups):
            return None
        for group in groups:
            self._enter(group)
        return list(groups)

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
        groups = [group for group in _grouped(filter(self._is_fixed(places), kept), numbers) if len(group) >= _SHORTEST_LIST]
        listed = {index for group in groups for index in group}
        function.named = [index for index in kept if index not in listed]
        function.lists = [{index: _index(places[index]) for index in group} for group in groups]
        function.taken = self._taken([index for index in indices if index not in kept], places)

    def _taken(self, taken: Sequence[int], places: Sequence[Sequence[Place | None]]) -> list[Sequence[int]]:
        """The values that are handed over, by the lists that most calls have them in; then those in none."""

        def lists(call: int) -> list[Hashable]:
            found = [(place[0] if (place := places[index][call]) is not None else None) for index in taken]
            sizes = Counter(found)
            return [each if each is not None and sizes[each] >= _SHORTEST_LIST else None for each in found]

        patterns = [lists(call) for call in range(len(places[taken[0]]) if taken else 0)]
        groups = _most_frequent([_partition(each) for each in patterns])
        call = next((at for at, each in enumerate(patterns) if _partition(each) == groups), 0)
        named = [[taken[at] for at in group] for group in groups if patterns[call][group[0]] is None]
        whole = [[taken[at] for at in group] for group in groups if patterns[call][group[0]] is not None]
        for group in whole:
            group.sort(key=lambda index: _index(places[index][call:]))
        return [*whole, *named]

    def _is_fixed(self, places: Sequence[Sequence[Place | None]]) -> Callable[[int], bool]:
        """Whether a value is in all calls at the same place of a list of the same size."""

        def fixed(index: int) -> bool:
            found = {(place[1], self._sizes[place[0]]) if place is not None else None for place in places[index]}
            return len(found) == 1 and None not in found

        return fixed


def _order_of(call: LayerCall) -> Callable[[int], tuple[int, int]]:
    """The order of results in a list: that in which one op takes many of them, a bucket above all."""

    def order(index: int) -> tuple[int, int]:
        value = call.left[index]
        users = (use for use in value.uses if not isinstance(use.operation, FreeOp))
        return next(((0, use.index) for use in users if len(use.operation.operands) > _MANY), (1, index))

    return order


def _partition(keys: Sequence[Hashable]) -> tuple[tuple[int, ...], ...]:
    """The indices of equal keys, in order of the first of each."""
    return tuple(map(tuple, _grouped(range(len(keys)), keys.__getitem__)))


def _most_frequent(partitions: Sequence[tuple[tuple[int, ...], ...]]) -> tuple[tuple[int, ...], ...]:
    """The most frequent of some partitions, and of those the one with the fewest groups."""
    counts = Counter(partitions)
    return max(counts, key=lambda each: (counts[each], -len(each)), default=())


def _index(places: Sequence[Place | None]) -> int:
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
        found += [group] if len(group) >= _SHORTEST_LIST else [[index] for index in group]
    return sorted(found, key=lambda group: group[0])


@dataclass(frozen=True)
class Layers:
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


def find_layers(ops: Sequence[Operation], flow: Flow, lists: Sequence[Sequence[SSAValue]]) -> Layers:
    """
    The equal layers of the ops of a function.

    Args:
        lists: of values that no op makes.
    """
    functions = find_calls(ops, flow)
    if not functions:
        return Layers(ops)
    calls = {op: each for calls in functions for each in calls for op in each.ops}
    items: list[Operation | LayerCall] = []
    for op in ops:
        item = calls.get(op, op)
        if item is op or not items or items[-1] is not item:
            items.append(item)
    faces = Interfaces(items, functions, flow.overwritten, lists)
    return Layers(items, {each: function for function in faces.functions for each in function.calls}, faces.splits)
