"""Tensors that are created from arguments alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..rules import Rule, replicated_rule
from .common import named, rows, whole
from .spec import OpInstance, OpSpec

_UNWRITTEN = {"self": "", "result0": ""}

_SIZE = {"size": "result0"}


def factory(op: OpInstance) -> Rule:
    """The rule of a tensor that is created from arguments alone: every device can create its part."""
    value, sizes = named(op.results[0])
    return Rule((), (value,), sizes)


def zeros(op: OpInstance) -> Rule:
    """The rule of zeros, which may be partial sums: they are linear in the empty set of operands."""
    return replace(factory(op), linear=(frozenset[int](),))


def filled(op: OpInstance) -> Rule:
    """The rule of a tensor that is filled with one number; for zero, the rule of `zeros`."""
    return zeros(op) if op.argument("fill_value") == 0 else factory(op)


def like_nothing(op: OpInstance) -> Rule:
    """The rule of `new_*`, whose operand gives only the dtype."""
    created = factory(op)
    blank = replicated_rule(op.operands, ())
    return Rule(blank.operands, created.results, {**blank.sizes, **created.sizes}, replicated=blank.replicated)


def factories_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from rows("zeros", "", zeros, localize=_SIZE)
    yield from rows("full", "", filled, localize=_SIZE)
    yield from rows("ones", "", factory, localize=_SIZE)
    yield from rows("scalar_tensor", "", factory)
    yield from rows("new_zeros new_ones new_full", "self", like_nothing, reads={"self": ""}, localize=_SIZE)
    yield from rows("empty.memory_format empty_permuted", "", factory, reads=_UNWRITTEN, localize=_SIZE)
    yield from rows("new_empty", "self", like_nothing, reads=_UNWRITTEN, localize=_SIZE)
    # These take the strides of the full tensor: import turns them into `empty` and `new_empty`.
    yield from rows("empty_strided", "", whole, reads=_UNWRITTEN)
    yield from rows("new_empty_strided", "self", whole, reads=_UNWRITTEN)
    # The numbers of a sequence depend on its start, so it is not split.
    yield from rows("arange.start_step arange.start arange linspace logspace", "", whole)
    yield from rows("eye eye.m tril_indices triu_indices", "", whole)
