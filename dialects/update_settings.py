"""The constraints on the attributes of optimizer updates: settings of fused ops, arguments of other ops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from xdsl.ir import Attribute

from ..ir.ops.schema import Argument, arguments_of, parse_arguments
from ..ir.ops.table import op_table
from .compute import ABSENT
from .op_arguments import argument_problem

_ADAM = "float? beta1, float? beta2, float eps=1e-08, float weight_decay=0, bool amsgrad=False, bool maximize=False"

SETTINGS: Mapping[str, str] = {
    "train.sgd": "float momentum=0, float dampening=0, bool nesterov=False, float weight_decay=0, bool maximize=False",
    "train.adam": _ADAM,
    "train.adamw": _ADAM,
}
"""Maps the name of an update to its settings, in torch's schema notation; updates that are missing have none."""


def settings_problem(
    name: str, given: Mapping[str, Attribute], operands: tuple[str, ...], absent: Iterable[str] = ()
) -> str | None:
    """
    Return why an update's settings are invalid, or None if they are valid.

    Args:
        name: name of the update, or of the op that a multi-tensor op runs on each member.
        given: attributes of the op.
        operands: names of its tensors.
        absent: names of its tensors that are None.
    """
    if unknown := next((entry for entry in absent if entry not in operands), None):
        return f"lists '{unknown}' in `{ABSENT}`, expected some of its tensors: {', '.join(operands) or 'it has none'}"
    plain = {key: value for key, value in given.items() if "." not in key and key != ABSENT}
    if (problem := argument_problem(_known(name, operands), plain, ())) is not None:
        return problem
    return "has one of beta1 and beta2, expected both or none" if ("beta1" in plain) != ("beta2" in plain) else None


@lru_cache(maxsize=256)
def _known(name: str, operands: tuple[str, ...]) -> Mapping[str, Argument]:
    if (settings := SETTINGS.get(name)) is not None:
        return {argument.name: argument for argument in parse_arguments(settings)}
    if (overload := name.removeprefix("aten.")) not in op_table():
        return {}
    return {key: argument for key, argument in (arguments_of(overload) or {}).items() if key not in operands}
