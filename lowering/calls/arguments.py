"""Convert the arguments of fx nodes to operands and attributes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.node import Target
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    TensorType,
)
from xdsl.ir import Attribute

from ...dialects.compute import ELEMENTS, plain_attribute
from ...ir.not_supported import COMPLEX_NUMBER
from ...ir.ops.registered import registered_rules
from ...ir.ops.table import op_table
from ..capture.captured import CaptureError, Origin
from ..fused.table import BY_DEFINITION

_PLACEMENT = {"device", "layout", "pin_memory", "memory_format", "non_blocking"}
"""Arguments that choose the device and memory layout of a tensor. The runtime chooses these; it runs views as reshapes,
so that no later op depends on strides."""


@dataclass(frozen=True)
class Arguments:
    """
    The call of an fx node.

    Args:
        name: name of the op.
        tensors: tensor arguments, in the order of the schema.
        absent: names of the tensor arguments that are None.
        attributes: all other arguments.
    """

    name: str
    tensors: tuple[Node, ...]
    absent: tuple[str, ...]
    attributes: dict[str, Attribute]


def element_type(dtype: torch.dtype) -> Attribute:
    """Return the element type of a dtype; raise CaptureError if the IR has none."""
    if (element := ELEMENTS.get(str(dtype).removeprefix("torch."))) is None:
        raise CaptureError(f"tensors of {dtype} cannot be imported; supported: torch.{', torch.'.join(ELEMENTS)}")
    return element


def overload_name(target: Target) -> str:
    """Return the name of a node's target in the op table, or `namespace::op.overload` if the table lacks it."""
    if not isinstance(target, OpOverload):
        return target if isinstance(target, str) else target.__name__
    namespace, name = target.namespace, target._schema.name.partition("::")[2]
    overload = target._overloadname
    full = f"{namespace}::{name}.{overload}"
    short = name if overload == "default" else f"{name}.{overload}"
    return short if namespace == "aten" and short in op_table() and not registered_rules(full) else full


def bind_arguments(node: Node, origin: Origin) -> Arguments:
    """Return the node's arguments by schema name; arguments equal to their default are left out."""
    name = overload_name(node.target)
    tensors: list[Node] = []
    absent: list[str] = []
    attributes: dict[str, Attribute] = {}
    spec = op_table().get(name)
    localized = spec.localize if spec is not None and spec.localize else {}
    for parameter, default, is_tensor, value in _bound(node):
        if isinstance(value, Node):
            tensors.append(value)
        elif isinstance(value, list | tuple) and any(isinstance(item, Node) for item in value):
            if not all(isinstance(item, Node) for item in value):
                raise _refused(node, origin, f"argument '{parameter}' mixes tensors with None")
            tensors.extend(value)
        elif is_tensor and value is None:
            absent.append(parameter)
        elif parameter in _PLACEMENT or value is None:
            continue
        elif localized.get(parameter) == "result0":
            attributes[parameter] = attribute_of([int(size) for size in node.meta["val"].shape])
        elif value != default:
            try:
                attributes[parameter] = attribute_of(value)
            except TypeError as error:
                advice = f"; {COMPLEX_NUMBER.instead}" if isinstance(value, complex) else ""
                raise _refused(node, origin, f"argument '{parameter}': {error}{advice}") from error
    return Arguments(name, tuple(tensors), tuple(absent), attributes)


def _refused(node: Node, origin: Origin, why: str) -> CaptureError:
    place = f"{origin.file}:{origin.line} (layer '{origin.layer}')"
    return CaptureError(f"{place}: '{node.target}' cannot be imported: {why}")


def _bound(node: Node) -> Iterator[tuple[str, object, bool, object]]:
    """Yield (name, default, whether it is a tensor, value) of each argument of the node, in the order of the schema."""
    for position, (name, default, is_tensor) in enumerate(_parameters(node.target)):
        value = node.args[position] if position < len(node.args) else node.kwargs.get(name, default)
        yield name, default, is_tensor, value


@lru_cache(maxsize=1024)
def _parameters(target: Target) -> tuple[tuple[str, object, bool], ...]:
    if isinstance(target, OpOverload):
        schema = target._schema.arguments
        return tuple(
            (a.name, a.default_value if a.has_default_value() else None, "Tensor" in str(a.type)) for a in schema
        )
    assert not isinstance(target, str)
    return tuple((p.name, p.default, p.is_tensor) for p in BY_DEFINITION[target].parameters)


def attribute_of(value: object) -> Attribute:
    """Return the attribute for an op's argument; raise TypeError if the argument has no attribute form."""
    match value:
        case torch.dtype():
            return element_type(value)
        case list() | tuple():
            return ArrayAttr([attribute_of(item) for item in value])
        case _:
            return plain_attribute(value)


def constant_attribute(value: torch.Tensor, type: TensorType[Attribute]) -> Attribute:
    """Return the values of a small constant tensor; raise CaptureError if they are complex."""
    if value.is_complex():
        problem = f"a constant tensor of {value.dtype}, such as torch.tensor(1j), cannot be imported"
        raise CaptureError(f"{problem}; {COMPLEX_NUMBER.instead}")
    items = value.detach().reshape(-1).tolist()
    numbers = [float(x) for x in items] if value.is_floating_point() else [int(x) for x in items]
    return DenseIntOrFPElementsAttr.from_list(type, numbers)  # pyright: ignore[reportCallIssue, reportArgumentType]
