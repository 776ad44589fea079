"""Ops that torch can run on several tensors at once: overload -> multi-tensor function (`torch._foreach_*`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class ForeachForm:
    """
    The multi-tensor form of an overload, which applies it to every member of lists of tensors.

    function   torch's name of the function, without `_foreach_`
    arguments  arguments of the overload that it takes, in order; lists, unless said otherwise
    numbers    arguments that may be one number for all members
    tensors    arguments that may be one tensor of no dims for all members
    options    arguments that are passed by name if all of `arguments` are tensors
    """

    function: str
    arguments: tuple[str, ...] = ("self",)
    numbers: frozenset[str] = frozenset()
    tensors: frozenset[str] = frozenset()
    options: frozenset[str] = frozenset()


_OTHER = frozenset({"other"})
_UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round"
    " rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
)


def _forms() -> Iterator[tuple[str, ForeachForm]]:
    for name in _UNARY.split():
        yield name, ForeachForm(name)
    pair = ("self", "other")
    yield "add.Tensor", ForeachForm("add", pair, _OTHER, _OTHER, frozenset({"alpha"}))
    yield "sub.Tensor", ForeachForm("sub", pair, _OTHER, options=frozenset({"alpha"}))
    yield "mul.Tensor", ForeachForm("mul", pair, _OTHER, _OTHER)
    yield "div.Tensor", ForeachForm("div", pair, _OTHER, _OTHER)
    yield "maximum", ForeachForm("maximum", pair)
    yield "minimum", ForeachForm("minimum", pair)
    yield "clamp_min", ForeachForm("clamp_min", ("self", "min"), frozenset({"min"}))
    yield "clamp_max", ForeachForm("clamp_max", ("self", "max"), frozenset({"max"}))
    yield "pow.Tensor_Scalar", ForeachForm("pow", ("self", "exponent"), frozenset({"exponent"}))
    yield "lerp.Scalar", ForeachForm("lerp", ("self", "end", "weight"), frozenset({"weight"}))


FOREACH: dict[str, ForeachForm] = {f"aten.{name}": form for name, form in _forms()}
"""Maps the name of an op to its form; missing ops (`where`, products of matrices, casts) have no such function."""


def foreach_problem(
    form: ForeachForm, lists: frozenset[str], shared: frozenset[str], given: frozenset[str]
) -> str | None:
    """
    Return why an op with these arguments has no multi-tensor form, or None if it has one.

    Args:
        lists: arguments that are another tensor for each member.
        shared: arguments that are one tensor for all members.
        given: arguments that are plain values.
    """
    known = frozenset(form.arguments)
    if missing := known - lists - shared - given:
        return f"lacks the argument '{min(missing)}'"
    if form.arguments[0] not in lists:
        return f"takes '{form.arguments[0]}' as a list of tensors"
    if wrong := shared - form.tensors:
        return f"takes no tensor for all members as '{min(wrong)}'"
    numbers = given & known
    if wrong := numbers - form.numbers:
        return f"takes no number as '{min(wrong)}'"
    allowed = frozenset[str]() if numbers else form.options
    if wrong := (lists | given) - known - allowed:
        return f"takes no '{min(wrong)}'" + (" together with a number" if wrong <= form.options else "")
    return None
