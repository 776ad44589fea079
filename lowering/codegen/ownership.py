"""
Ownership: which ops may write their result into the memory of an operand.

A value *owns* its memory where an op made that memory for it alone: the result of an op that computes, and
of a collective. A view shares the memory of what it looks at, and an argument's memory is the caller's. An op
may take over an operand's memory where nothing reads that memory, under any name, from then on.

The analysis is one walk over a straight-line program. Values are any hashable objects; it knows no IR.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Value = Hashable


@dataclass(frozen=True)
class Effect:
    """
    What one op does with memory.

    shares      the operands whose memory the results may share (all of them, where nothing is known)
    overwrites  (operand, result) positions: the result may be written into the operand's memory
    updates     whether an overwritten operand may also be memory of an argument that this program replaces
    """

    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    shares: tuple[int, ...] = ()
    overwrites: tuple[tuple[int, int], ...] = ()
    updates: bool = False


@dataclass
class _Memory:
    """A piece of memory: the values that may look at it and whether it may be written to."""

    values: list[Value] = field(default_factory=list)
    borrowed: bool = False


def writable_operands(
    effects: Sequence[Effect],
    arguments: Iterable[Value],
    replaced: Iterable[Value],
    returned: Iterable[Value],
) -> Iterator[frozenset[int]]:
    """
    Per effect, in order, the operands among `overwrites` whose memory it may take.

    Args:
        arguments: the values that the caller owns.
        replaced: those of them whose new value the program returns.
        returned: the values that it returns.
    """
    yield from _walk(effects, _enter_arguments(arguments, replaced), returned)


def sole_owners(effects: Sequence[Effect], arguments: Iterable[Value], returned: Sequence[Value]) -> frozenset[Value]:
    """
    The values among `returned` whose memory neither the caller nor another of them looks at.

    Args:
        arguments: the values that the caller owns, all of which it keeps.
    """
    memory = _enter_arguments(arguments, ())
    for _ in _walk(effects, memory, returned):
        pass
    places = [memory[value] for value in dict.fromkeys(returned)]
    shared = {id(place) for place in places if place.borrowed or sum(other is place for other in places) > 1}
    return frozenset(value for value in returned if id(memory[value]) not in shared)


def _enter_arguments(arguments: Iterable[Value], replaced: Iterable[Value]) -> dict[Value, _Memory]:
    lent = set(replaced)
    return {value: _Memory([value], borrowed=value not in lent) for value in arguments}


def _walk(
    effects: Sequence[Effect], memory: dict[Value, _Memory], returned: Iterable[Value]
) -> Iterator[frozenset[int]]:
    last, owners = _last_uses(effects, returned), set[Value]()
    # A collective that carries several arguments merges what is known of their memory; it is not the same.
    apart = set(memory)
    for index, effect in enumerate(effects):
        taken = {
            operand
            for operand, _ in effect.overwrites
            if (effect.updates or effect.operands[operand] in owners)
            and _is_free(effect, operand, index, memory[effect.operands[operand]], last, apart)
        }
        _enter_results(effect, taken, memory, owners)
        if effect.updates:
            kept = ((effect.operands[operand], result) for operand, result in effect.overwrites if operand in taken)
            apart.update(effect.results[result] for operand, result in kept if operand in apart)
        yield frozenset(taken)


def _last_uses(effects: Sequence[Effect], returned: Iterable[Value]) -> Mapping[Value, int]:
    """The index of the last effect that reads each value; one past the end for what is returned."""
    last = {value: index for index, effect in enumerate(effects) for value in effect.operands}
    return last | dict.fromkeys(returned, len(effects))


def _is_free(
    effect: Effect, operand: int, index: int, memory: _Memory, last: Mapping[Value, int], apart: set[Value]
) -> bool:
    """
    Whether this operand alone still reads its memory, here for the last time.

    Args:
        apart: arguments, and what was written over them, each of which has memory of its own.
    """
    value = effect.operands[operand]
    if memory.borrowed or effect.operands.count(value) > 1 or last[value] > index:
        return False
    memory.values = [other for other in memory.values if last.get(other, -1) >= index]
    return memory.values == [value] or (value in apart and apart.issuperset(memory.values))


def _enter_results(effect: Effect, taken: set[int], memory: dict[Value, _Memory], owners: set[Value]) -> None:
    """Note which memory each result looks at, and whether it owns it."""
    origin = {result: effect.operands[operand] for operand, result in effect.overwrites if operand in taken}
    shared = _merged([memory[effect.operands[i]] for i in effect.shares], memory) if effect.shares else None
    for position, result in enumerate(effect.results):
        if shared is not None:
            place = shared
        else:
            place = memory[origin[position]] if position in origin else _Memory()
        place.values.append(result)
        memory[result] = place
        if shared is None:
            owners.add(result)


def _merged(places: Sequence[_Memory], memory: dict[Value, _Memory]) -> _Memory:
    """One memory out of several that can no longer be told apart."""
    first = places[0]
    for other in places[1:]:
        if other is not first:
            first.values += other.values
            first.borrowed |= other.borrowed
            memory.update(dict.fromkeys(other.values, first))
    return first
