"""
Write the calls of a layer's function, and the first and last lines of the function.

    # h.3, backward
    moved = [h_2_add_1, h_4_ln_1_add_grad]
    del h_2_add_1, h_4_ln_1_add_grad
    h_3_ln_1_add_grad, h_3_grads = h_backward(comm, h[3], h_3_saved, moved)

`h[3]` is a list that the caller keeps; the function clears all other lists after it has unpacked them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from xdsl.ir import SSAValue

from ...dialects.compute import python_value
from .equal_layers import LayerCall
from .equal_ops import STREAM
from .layer_functions import LayerFunction
from .layout import INDENT, WIDTH, Group, assignment, call, filled, flat, lines, tuple_of
from .names import Named, Names

_UNUSED = "_"
_MOVED = "moved"
_LISTS = {"forward": "saved", "backward": "grads", "update": "updated"}
"""Phase -> label of the lists of results."""


def call_of_layer(function: LayerFunction, each: LayerCall, names: Names, first: Sequence[str]) -> Iterator[str]:
    """
    Write the lines of a call.

    Args:
        names: names in the caller.
        first: arguments common to all functions.
    """
    args = [*first, *(names[each.given[index]] for index in function.named)]
    args += [str(python_value(op.attributes[STREAM])) for op in each.streams]
    args += [names.variable(each.given[next(iter(indices))]) for indices in function.lists]
    moved: list[SSAValue] = []
    boxes: list[str] = []
    for group in function.taken:
        values = [each.given[index] for index in group]
        whole = names.whole_list(values)
        if whole is None:
            moved += values
            boxes.append(names.beside(_MOVED))
            args.append(boxes[-1])
            yield from assignment(boxes[-1:], _list_of(names.listed(values)), INDENT)
        else:
            args.append(whole.text)
    yield from let_go(names, moved)
    names.forget(boxes)
    for value in moved:
        names.release(value)
    for result, argument in function.replaced.items():
        names.share(each.left[result], each.given[argument])
    groups = [[each.left[index] for index in group] for group in function.returned]
    scattered = [values for values in groups if len(values) > 1 and not each.is_list(values)]
    targets = [_target(each, values, names) for values in groups]
    yield from assignment(targets, call(function.name, args), INDENT)
    for values, target in zip(groups, targets, strict=True):
        if values in scattered:
            yield from assignment([names.new(value) for value in values], Group(target, (), ""), INDENT, unpacked=True)
            yield f"{INDENT}del {target}"
            names.forget([target])


def _target(each: LayerCall, values: Sequence[SSAValue], names: Names) -> str:
    """Name the target of a result: a value, or a list, which is kept if its values are freed together."""
    if len(values) == 1:
        return names.new(values[0], "token")
    if each.is_list(values):
        return names.new_list(values, _LISTS[each.phase], each.block)
    return names.beside(f"{each.block}.{_LISTS[each.phase]}")


def parameters_of(
    function: LayerFunction, first: LayerCall, names: Names, caller: Names
) -> tuple[list[str], list[str], list[str]]:
    """
    Return the parameters of a function, its stream parameters, and the lines that unpack lists.

    Args:
        first: the call that the function is written from.
        names: names in the function, which receive the parameters.
        caller: names in the caller at this call.
    """
    named = [names.new(first.given[index]) for index in function.named]
    streams = [names.beside(STREAM) for _ in first.streams]
    lists: list[str] = []
    text: list[str] = []
    for indices in function.lists:
        named_list = caller.list_of(first.given[next(iter(indices))])
        assert named_list is not None, "what is passed as a list is in one"
        lists.append(names.beside(named_list.label))
        by_place = {place: names.new(first.given[index]) for index, place in indices.items()}
        targets = [by_place.get(place, _UNUSED) for place in range(len(named_list.values))]
        text += assignment(targets, Group(lists[-1], (), ""), INDENT, unpacked=True)
    for group in function.taken:
        values = [first.given[index] for index in group]
        whole = caller.whole_list(values)
        lists.append(names.beside(whole.label if whole is not None else _MOVED))
        targets = [names.new(value, "token") for value in values]
        text += assignment(targets, Group(lists[-1], (), ""), INDENT, unpacked=True)
        text.append(f"{INDENT}{lists[-1]}.clear()")
    return [*named, *streams, *lists], streams, text


def return_of(function: LayerFunction, first: LayerCall, names: Names) -> Iterator[str]:
    """Write the last lines of a function, which return values and lists of values."""
    left = first.left
    groups = [[names[left[index]] for index in group] for group in function.returned]
    docs = [group[0] if len(group) == 1 else _list_of(group) for group in groups]
    if not docs:
        return
    yield ""
    line = f"{INDENT}return {', '.join(map(flat, docs))}"
    if len(line) <= WIDTH:
        yield line
    elif len(docs) > 1:
        yield from lines(tuple_of(docs, "return "), INDENT)
    else:
        yield from lines(_list_of(groups[0], "return "), INDENT)


def _list_of(items: Sequence[str], prefix: str = "") -> Group:
    return Group(f"{prefix}[", tuple(items), "]", fill=True)


def let_go(names: Names, values: Iterable[Named]) -> Iterator[str]:
    """Write statements that delete values; an element of a list of arguments is overwritten with None instead."""
    variables: dict[str, None] = {}
    for value in values:
        if names.is_argument(value):
            yield f"{INDENT}{names[value]} = None"
        else:
            variables[names.variable(value)] = None
    yield from (f"{INDENT}del {line}" for line in filled(list(variables), len(f"{INDENT}del ")))
