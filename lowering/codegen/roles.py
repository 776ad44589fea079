"""Read the attributes that hold the roles of a step's arguments and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute


def roles_of_arguments(func: FuncOp) -> Sequence[Mapping[str, Attribute]]:
    """Return the attributes of each argument."""
    return _dictionaries(func.arg_attrs, len(func.body.block.args))


def roles_of_results(func: FuncOp) -> Sequence[Mapping[str, Attribute]]:
    """Return the attributes of each result."""
    return _dictionaries(func.res_attrs, len(func.function_type.outputs))


def _dictionaries(attributes: ArrayAttr[DictionaryAttr] | None, count: int) -> Sequence[Mapping[str, Attribute]]:
    return [entry.data for entry in attributes] if attributes is not None else [{}] * count
