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
from .equal_layers import STREAM, LayerCall
from .layer_functions import LayerFunction
from .layout import INDENT, SUMS, Group, assignment, call, filled, list_of, returned
from .names import UNUSED, Named, Names

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
    args = [*first, *([SUMS] if function.added else []), *(names[each.given[index]] for index in function.named)]
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
            yield from assignment(boxes[-1:], list_of(names.listed(values)), INDENT)
        else:
            args.append(whole.text)
    yield from let_go(names, moved)
    names.forget(boxes)
    for value in moved:
        names.release(value)
    for result, argument in function.replaced.items():
        names.share(each.left[result], each.given[argument])
    targets: list[str] = []
    scattered: dict[str, list[SSAValue]] = {}
    for number, group in enumerate(function.returned):
        values, label = [each.left[index] for index in group], _LISTS[each.phase]
        if len(values) == 1:
            targets.append(names.new(values[0], "token"))
        elif number in each.kept:
            targets.append(names.new_list(values, label, each.block))
        else:
            targets.append(names.beside(f"{each.block}.{label}"))
            scattered[targets[-1]] = values
    yield from assignment(targets, call(function.name, args), INDENT)
    for target, values in scattered.items():
        yield from assignment([names.new(value) for value in values], Group(target, (), ""), INDENT, unpacked=True)
        yield f"{INDENT}del {target}"
        names.forget([target])


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
        targets = [by_place.get(place, UNUSED) for place in range(len(named_list.values))]
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
    groups = [[names[first.left[index]] for index in group] for group in function.returned]
    if groups:
        results = [group[0] if len(group) == 1 else list_of(group) for group in groups]
        yield from ("", *returned(results, as_tuple=len(results) > 1))


def let_go(names: Names, values: Iterable[Named]) -> Iterator[str]:
    """Write statements that delete values; an element of a list of arguments is overwritten with None instead."""
    variables: dict[str, None] = {}
    for value in values:
        if names.is_argument(value):
            yield f"{INDENT}{names[value]} = None"
        else:
            variables[names.variable(value)] = None
    yield from (f"{INDENT}del {line}" for line in filled(list(variables), len(f"{INDENT}del ")))
