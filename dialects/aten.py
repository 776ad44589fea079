"""
The `aten` dialect: one op per ATen overload, made from the op table.

Operands are the tensor arguments; every other argument is an attribute under its schema name, left out where
it has the schema's default. An overload that the table lacks is an `aten.opaque`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from xdsl.dialects.builtin import StringAttr, TensorType, f32, i64
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.irdl import irdl_op_definition, prop_def
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import VerifyException

from ..ir.ops.dtypes import DEFAULTS, TypedOperand, result_dtypes
from ..ir.ops.schema import arguments_of
from ..ir.ops.spec import OpSpec
from ..ir.ops.table import op_table
from ..ir.rules import Rule, replicated_rule
from .compute import ABSENT, ELEMENTS, ComputeOp, dtype_of, shape_of
from .op_arguments import argument_problem
from .sharding_attrs import RuleAttr

RULE = "spmd.rule"
"""Attribute that holds the sharding rule of an op without a row in the op table."""

INFERRED = "spmd.inferred"
"""Attribute that marks a rule as inferred by running the op (`lowering/probe`)."""

_SEED = TensorType(i64, [])

_RULES: dict[tuple[object, ...], Rule] = {}
_VERIFIED: set[tuple[object, ...]] = set()


class AtenOp(ComputeOp):
    """The base class of all ops of the table."""

    @property
    def overload(self) -> str:
        """The overload without `aten.` and `.default`."""
        return self.name.removeprefix("aten.")

    @property
    def spec(self) -> OpSpec:
        """The op's row in the table."""
        return op_table()[self.overload]

    @property
    def is_random(self) -> bool:
        """Whether the op draws random numbers."""
        return self.overload.startswith("random_")

    def operand_names(self) -> tuple[str, ...]:
        """Return the names of the tensor arguments that are present; a list of tensors repeats its name."""
        missing = {*self.attributes, *self.absent()}
        present = [name for name in self.spec.operands if name not in missing]
        listed = max(len(self.args) - len(present) + 1, 0)
        counted = ((name.lstrip("*"), listed if name.startswith("*") else 1) for name in present)
        return tuple(name for name, count in counted for _ in range(count))

    def rule(self) -> Rule:
        """Return the table's rule for this use; equal uses share one object."""
        key = self.use_key()
        if (rule := _RULES.get(key)) is None:
            rule = _RULES[key] = self.spec.bind(self.instance())
        return rule

    def result_dtypes(self, default: str = DEFAULTS[0]) -> tuple[str | None, ...]:
        """Return the dtypes that torch gives the results, with None for a result without a rule."""
        named = zip(self.operand_names(), self.args, strict=True)
        operands = tuple(TypedOperand(name, dtype_of(value), bool(shape_of(value))) for name, value in named)
        return result_dtypes(self.overload, operands, self.arguments(), len(self.outs), default)

    def verify_(self) -> None:
        # Equal uses have the same verdict, and a model has few distinct uses.
        if (key := self.use_key()) not in _VERIFIED:
            self._verify_use()
            _VERIFIED.add(key)
        super().verify_()

    def _verify_use(self) -> None:
        """Raise VerifyException unless operands and attributes match the schema."""
        self.verify_absent()
        if (known := arguments_of(self.overload)) is not None:
            given = {name: value for name, value in self.attributes.items() if "." not in name and name != ABSENT}
            if (problem := argument_problem(known, given, self.absent())) is not None:
                raise VerifyException(f"'{self.name}' {problem}")
        names = self.operand_names()
        if len(names) != len(self.args):
            raise VerifyException(
                f"'{self.name}' has {len(self.args)} operands, its schema has tensors"
                f" ({', '.join(self.spec.operands)}); list tensors that are None in `absent`"
            )
        if self.is_random:
            if (stream := self.arguments()["stream"]) < 0:
                raise VerifyException(f"'{self.name}' draws from stream {stream}; streams are counted from 0")
            if self.args[-1].type != _SEED:
                raise VerifyException(f"'{self.name}' has a seed of type {self.args[-1].type}, expected {_SEED}")
        self._verify_dtypes()

    def _verify_dtypes(self) -> None:
        """Raise VerifyException unless the results have torch's dtypes under one of its default float dtypes."""
        try:
            by_default = [self.result_dtypes(default) for default in DEFAULTS]
        except ValueError as error:
            raise VerifyException(f"'{self.name}' {error}") from error
        for at, value in enumerate(self.outs):
            if (dtype := dtype_of(value)) not in (
                expected := {dtypes[at] for dtypes in by_default}
            ) and None not in expected:
                inputs = (f"{name} of {dtype_of(v)}" for name, v in zip(self.operand_names(), self.args, strict=True))
                raise VerifyException(
                    f"result {at} of '{self.name}' is of {dtype}, torch gives {by_default[0][at]} for"
                    f" {', '.join(inputs) or 'no operands'}; change its type, or cast by aten._to_copy"
                )


@irdl_op_definition
class OpaqueOp(ComputeOp):
    """
    An overload that the table lacks: `aten.opaque "ns::op.overload" %x`.

    It runs replicated unless it carries a rule of its own: `{spmd.rule = #spmd.rule<"([b, k]) -> ([b])">}`.
    """

    name = "aten.opaque"

    target = prop_def(StringAttr)

    assembly_format = "$target $args attr-dict `:` functional-type($args, $outs)"

    @property
    def overload(self) -> str:
        """The overload as `namespace::name.overload`."""
        return self.target.data

    def operand_names(self) -> tuple[str, ...]:
        """Return `arg0`, `arg1`, ..., since the schema is unknown."""
        return tuple(f"arg{i}" for i in range(len(self.args)))

    def rule(self) -> Rule:
        """Return the op's own rule, or the replicated rule where it has none."""
        attribute = self.attributes.get(RULE)
        return _opaque_rule(attribute if isinstance(attribute, RuleAttr) else None, *self._shapes())

    def _shapes(self) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        instance = self.instance()
        return instance.operands, instance.results


@lru_cache(maxsize=4096)
def _opaque_rule(
    given: RuleAttr | None, operands: tuple[tuple[int, ...], ...], results: tuple[tuple[int, ...], ...]
) -> Rule:
    rule = replicated_rule(operands, results) if given is None else given.notation.bind(operands, results)
    if rule.indexed:
        factor = next(iter(rule.indexed))
        raise ValueError(f"only ops of the table can look up parts of an indexed factor; write replicated={{{factor}}}")
    return rule


def _op_class(spec: OpSpec) -> type[AtenOp]:
    words = spec.name.replace(".", "_").split("_")
    body = {"name": f"aten.{spec.name}", "__doc__": f"`aten::{spec.name}`.", "__module__": __name__}
    return irdl_op_definition(type("".join(word.capitalize() for word in words) + "Op", (AtenOp,), body))


ATEN_OPS: dict[str, type[AtenOp]] = {name: _op_class(spec) for name, spec in op_table().items()}
"""Op class of each overload in the table."""


def typed_op(
    name: str, operands: Sequence[SSAValue], shapes: Sequence[Sequence[int]], attributes: Mapping[str, Attribute]
) -> AtenOp:
    """
    Return an op of the table with results of these shapes and the dtypes that torch gives them.

    Raises:
        ValueError: torch refuses operands of these dtypes, or no rule is known for a result.
    """
    types = [TensorType(f32, shape) for shape in shapes]
    op = ATEN_OPS[name](operands=[operands], result_types=[types], attributes=attributes)
    for value, dtype, shape in zip(tuple(op.outs), op.result_dtypes(), shapes, strict=True):
        if dtype is None:
            raise ValueError(f"the dtypes of the results of 'aten.{name}' are not known; see ir/ops/dtypes.py")
        Rewriter.replace_value_with_new_type(value, TensorType(ELEMENTS[dtype], shape))
    return op


ATEN = Dialect("aten", [*ATEN_OPS.values(), OpaqueOp])
