"""
Rules that a user registers: for ops that the table lacks, or instead of rows in the table.

Import looks here first. An op with a registered rule becomes an `aten.opaque` with that rule as an attribute, so the IR
file needs nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..rules import Notation, parse_rule

Ranks = tuple[tuple[int, ...], tuple[int, ...]]
"""The number of dims of each operand and each result."""

_NAME = re.compile(r"\w+::\w+(\.\w+)?")

_REGISTERED: dict[str, dict[Ranks, Notation]] = {}


def register_rule(op: str, rule: str, *, linear: Iterable[str | int] = (), additive: Iterable[int] = ()) -> None:
    """
    Tell the compiler how an op may be split. An op may have several rules, for operands with other numbers of dims.

    Args:
        op: `mylib::op`, or `mylib::op.overload`; an op of `aten` is then no longer looked up in the table.
        rule: factor notation, as `([b, k], [k, n]) -> ([b, n]) reduction={k}` (docs/adding-an-op-rule.md). Operands are
            the tensor arguments in the order of the op's schema.
        linear: sets of operands, by number, in which the op is linear: `"0"` alone, `"0+1"` both together.
        additive: operands, by number, that are added to a sum: a bias.

    Raises:
        ValueError: the name or the rule is malformed; the message gives the expected form.
    """
    name, notation = full_name(op), notation_of(rule, linear, additive)
    _REGISTERED.setdefault(name, {})[notation.ranks] = notation


def unregister_rule(op: str) -> None:
    """Forget every rule of an op."""
    _REGISTERED.pop(full_name(op), None)


def registered_rules(name: str) -> dict[Ranks, Notation]:
    """Return the rules of the op with this full name, by numbers of dims."""
    return _REGISTERED.get(name, {})


def notation_of(rule: str, linear: Iterable[str | int] = (), additive: Iterable[int] = ()) -> Notation:
    """Return a rule with its sets of linear and additive operands; raise ValueError if it is malformed."""
    sets = {"linear": [str(group) for group in linear], "additive": [str(operand) for operand in additive]}
    return parse_rule(rule + "".join(f" {key}={{{', '.join(items)}}}" for key, items in sets.items() if items))


def full_name(op: str) -> str:
    """Return the name of an op with its overload, `ns::op.default` for `ns::op`; raise ValueError for other text."""
    if _NAME.fullmatch(op) is None:
        raise ValueError(f"'{op}' is not the name of an op; expected a form like mylib::op or mylib::op.overload")
    return op if "." in op else f"{op}.default"
