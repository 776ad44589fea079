"""
Rules that a user registers: for ops that the table lacks, or in place of its rows.

Import asks here first. An op with a registered rule is written as `aten.opaque` with that rule as an attribute, so
that the IR file needs nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..rules import Notation, parse_rule

Ranks = tuple[tuple[int, ...], tuple[int, ...]]
"""How many dims each operand and each result has."""

_NAME = re.compile(r"\w+::\w+(\.\w+)?")

_REGISTERED: dict[str, dict[Ranks, Notation]] = {}


def register_rule(op: str, rule: str, *, linear: Iterable[str | int] = (), additive: Iterable[int] = ()) -> None:
    """
    Tell the compiler how an op may be split. A rule for operands of other numbers of dims is kept beside the first.

    Args:
        op: `mylib::op`, or `mylib::op.overload`; an op of `aten` is then no longer looked up in the table.
        rule: factor notation, as `([b, k], [k, n]) -> ([b, n]) reduction={k}` (docs/adding-an-op-rule.md). Operands are
            the tensor arguments in the order of the op's schema.
        linear: sets of operands, by number, in which the op is linear: `"0"` alone, `"0+1"` both together.
        additive: operands, by number, that are added to a sum: a bias.

    Raises:
        ValueError: the name or the rule is malformed; the message says what was expected.
    """
    name, notation = full_name(op), notation_of(rule, linear, additive)
    _REGISTERED.setdefault(name, {})[notation.ranks] = notation


def unregister_rule(op: str) -> None:
    """Forget every rule of an op."""
    _REGISTERED.pop(full_name(op), None)


def registered_rules(name: str) -> dict[Ranks, Notation]:
    """The rules of the op with this full name, by the numbers of dims that they are for."""
    return _REGISTERED.get(name, {})


def notation_of(rule: str, linear: Iterable[str | int] = (), additive: Iterable[int] = ()) -> Notation:
    """A rule with its sets of linear and additive operands; ValueError where it is malformed."""
    sets = {"linear": [str(group) for group in linear], "additive": [str(operand) for operand in additive]}
    return parse_rule(rule + "".join(f" {key}={{{', '.join(items)}}}" for key, items in sets.items() if items))


def full_name(op: str) -> str:
    """`ns::op.default` of `ns::op`; ValueError where it is neither."""
    if _NAME.fullmatch(op) is None:
        raise ValueError(f"'{op}' is not the name of an op; expected a form like mylib::op or mylib::op.overload")
    return op if "." in op else f"{op}.default"
