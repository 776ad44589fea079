"""The base class of compute ops: tensors in and out, arguments, a sharding rule and a signature."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from xdsl.dialects import builtin
from xdsl.dialects.builtin import (
    ArrayAttr,
    BoolAttr,
    DenseArrayBase,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.ir import Attribute, SSAValue, TypeAttribute
from xdsl.irdl import IRDLOperation, base, traits_def, var_operand_def, var_result_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from ..ir.mesh import Mesh
from ..ir.ops.spec import OpInstance
from ..ir.rules import Rule
from ..ir.sharding import Sharding
from ..ir.signatures import Signature, explain_mismatch
from .kinds import entries_of
from .mesh_ops import find_mesh
from .placed import GivesShardings, element_of, shape_of
from .sharding_attrs import SignatureAttr

SIGNATURE = "spmd.signature"
ABSENT = "absent"
"""Attribute that lists the tensor arguments of the schema that are None in this use."""

INDEPENDENT = "independent"
"""Attribute of a random op that draws from torch's own generator: its numbers depend on its sharding."""

ELEMENTS: Mapping[str, TypeAttribute] = {
    "float64": builtin.f64, "float32": builtin.f32, "float16": builtin.f16, "bfloat16": builtin.bf16, "int64": i64,
    "int32": builtin.i32, "int16": builtin.i16, "int8": builtin.i8, "bool": builtin.i1,
    "uint8": IntegerType(8, builtin.Signedness.UNSIGNED),
    "complex128": builtin.ComplexType(builtin.f64), "complex64": builtin.ComplexType(builtin.f32),
}  # fmt: skip
"""The element type of each dtype, by torch's name of the dtype."""

DTYPES = {str(element): name for name, element in ELEMENTS.items()}
"""Maps an element type to the dtype's name."""


class ComputeOp(IRDLOperation, GivesShardings, ABC):
    """An op on tensors with a sharding rule; its `spmd.signature`, where present, must be allowed by the rule."""

    args = var_operand_def(base(TensorType[Attribute]))
    outs = var_result_def(base(TensorType[Attribute]))

    traits = traits_def(Pure())

    assembly_format = "$args attr-dict `:` functional-type($args, $outs)"

    @property
    @abstractmethod
    def overload(self) -> str:
        """The overload's name as the op table spells it."""

    @abstractmethod
    def operand_names(self) -> tuple[str, ...]:
        """Return the schema's names of the operands that are present, in order."""

    @abstractmethod
    def rule(self) -> Rule:
        """Return the sharding rule of this use of the op; equal uses share one object."""

    def instance(self) -> OpInstance:
        """Return this use of the op as pure data."""
        shapes = (tuple(shape_of(value) for value in values) for values in (self.args, self.outs))
        operands, results = shapes
        masks = frozenset(index for index, value in enumerate(self.args) if dtype_of(value) == "bool")
        return OpInstance(self.overload, operands, results, self.operand_names(), self.arguments(), masks)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that are not tensors, under their schema names, as Python values."""
        names = (name for name in self.attributes if "." not in name and name != ABSENT)
        return {name: python_value(self.attributes[name]) for name in names}

    def absent(self) -> tuple[str, ...]:
        """Return the names of the tensor arguments that are None."""
        listed = self.attributes.get(ABSENT)
        return tuple(python_value(listed)) if listed is not None else ()

    def use_key(self) -> tuple[object, ...]:
        """Return a key that equal uses of one op share: the overload, and numbers for its arguments and types."""
        arguments = tuple((n, number_of(a)) for n, a in self.attributes.items() if "." not in n)
        # These values equal `self.args` and `self.outs`, which xDSL looks up slowly.
        operands, results = [number_of(v.type) for v in self.operands], [number_of(v.type) for v in self.results]
        return (self.overload, arguments, tuple(operands), tuple(results))

    @property
    def signature(self) -> Signature | None:
        """The signature that the op was given, if any."""
        attribute = self.attributes.get(SIGNATURE)
        return attribute.signature if isinstance(attribute, SignatureAttr) else None

    def result_sharding(self, index: int) -> Sharding | None:
        """Return the sharding that the signature gives result `index`."""
        return self.signature.results[index] if self.signature is not None else None

    def verify_(self) -> None:
        self.verify_absent()
        try:
            rule = self.rule()
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            raise VerifyException(f"its shapes and arguments do not fit '{self.overload}': {error}") from error
        attribute = self.attributes.get(SIGNATURE)
        if attribute is None:
            return
        if not isinstance(attribute, SignatureAttr):
            raise VerifyException(f"'{SIGNATURE}' must be a #spmd.sig, found {attribute}")
        mesh = find_mesh(self, attribute.data.mesh)
        if (problem := signature_problem(rule, attribute.signature, mesh)) is not None:
            raise VerifyException(problem)

    def verify_absent(self) -> None:
        """Raise VerifyException unless `absent` is a list of names."""
        listed = self.attributes.get(ABSENT)
        if listed is None:
            return
        entries = entries_of(listed)
        if entries is None or not all(isinstance(entry, StringAttr) for entry in entries):
            raise VerifyException(f"`{ABSENT}` is {listed}, expected a list of the names of tensor arguments")


_MOST_NUMBERED = 200_000
_NUMBERS: dict[Attribute, int] = {}
_NUMBERED: dict[int, tuple[Attribute, int]] = {}
"""Maps the address of an attribute to the attribute, which keeps the address in use, and to its number."""


def number_of(attribute: Attribute) -> int:
    """Return a number that equal attributes share in this process. xDSL hashes all fields of a type at each lookup."""
    if (entry := _NUMBERED.get(id(attribute))) is None:
        if len(_NUMBERED) >= _MOST_NUMBERED:
            _NUMBERED.clear()
        entry = _NUMBERED[id(attribute)] = attribute, _NUMBERS.setdefault(attribute, len(_NUMBERS))
    return entry[1]


@lru_cache(maxsize=100_000)
def signature_problem(rule: Rule, signature: Signature, mesh: Mesh) -> str | None:
    """Return why `rule` does not allow `signature` on `mesh`, or None if it does."""
    return explain_mismatch(rule, signature, mesh)


def dtype_of(value: SSAValue) -> str:
    """Return torch's name of the dtype of a tensor value."""
    return dtype_name(element_of(value))


@lru_cache(maxsize=64)
def dtype_name(element: Attribute) -> str:
    """Return torch's name of an element type."""
    text = str(element)
    return DTYPES.get(text, text)


def sum_dtype(dtype: str) -> str:
    """Return the dtype for sums of many elements of `dtype`."""
    return "float32" if dtype in ("bfloat16", "float16") else dtype


def element_bytes(value: SSAValue) -> int:
    """Return the bytes of one element of a tensor value."""
    return _bytes_of(dtype_of(value))


@lru_cache(maxsize=64)
def _bytes_of(dtype: str) -> int:
    bits = "".join(c for c in dtype if c.isdigit())
    return int(bits) // 8 if bits else 1


def value_bytes(value: SSAValue) -> int:
    """Return the bytes of the global tensor value."""
    size = element_bytes(value)
    for extent in shape_of(value):
        size *= extent
    return size


def plain_attribute(value: object) -> Attribute:
    """Return the attribute that `python_value` reads back as `value`; raise TypeError where there is none."""
    match value:
        case bool():
            return BoolAttr.from_bool(value)
        case int():
            return IntegerAttr(value, i64)
        case float():
            return FloatAttr(value, 64)
        case str():
            return StringAttr(value)
        case Mapping():
            named = cast("Mapping[str, object]", value)
            return DictionaryAttr({name: plain_attribute(item) for name, item in named.items()})
        case list() | tuple():
            return ArrayAttr([plain_attribute(item) for item in cast("Sequence[object]", value)])
        case _:
            raise TypeError(f"a value of type {type(value).__name__} has no form in the IR")


def python_value(attribute: Attribute) -> Any:
    """Return the Python value of an argument's attribute; element types become dtype names."""
    match attribute:
        case IntegerAttr():
            boolean = isinstance(attribute.type, IntegerType) and attribute.type.width.data == 1
            return bool(attribute.value.data) if boolean else attribute.value.data
        case FloatAttr():
            return attribute.value.data
        case StringAttr():
            return attribute.data
        case ArrayAttr():
            return [python_value(item) for item in attribute]
        case DictionaryAttr():
            return {name: python_value(item) for name, item in attribute.data.items()}
        case DenseArrayBase():
            return list(cast("DenseArrayBase[IntegerType]", attribute).get_values())
        case TypeAttribute():
            return dtype_name(attribute)
        case _:
            raise VerifyException(f"an op's argument cannot be {attribute}")
