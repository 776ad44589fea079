"""
The `train` dialect: the optimizer's updates, and the roles of a step function's arguments and results.

The update of a parameter is one fused op (`train.sgd`, `train.adam`, `train.adamw`), or ordinary ops that carry
`train.update`; the last of them write the new parameter and states over the old ones (`train.assign`). Multi-tensor
ops (`train.foreach`) update several parameters together.

A step is `(parameters, optimizer states, buffers, batch, learning rate, seed) -> (loss, updated values, ...)`.
Arguments carry one of the role attributes below; the new value of an argument carries its index in `train.updates`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, TypeAlias

from xdsl.dialects.builtin import ArrayAttr, StringAttr, UnitAttr
from xdsl.ir import Attribute, BlockArgument, Dialect, Operation, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, opt_prop_def, prop_def
from xdsl.utils.exceptions import VerifyException

from ..ir.mesh import Mesh
from ..ir.ops.foreach import FOREACH, foreach_problem
from ..ir.ops.spec import OpInstance
from ..ir.ops.table import update_rule
from ..ir.rules import Rule, Value
from ..ir.sharding import Reduction
from ..ir.signatures import Signature
from .compute import SIGNATURE, ComputeOp, dtype_of, element_bytes, shape_of, signature_problem, sum_dtype
from .mesh_ops import find_mesh
from .placed import argument_attribute
from .sharding_attrs import SignatureAttr
from .update_settings import settings_problem

PARAM, STATE, BUFFER, CONSTANT, BATCH = (
    "train.param",
    "train.state",
    "train.buffer",
    "train.constant",
    "train.batch",
)
LEARNING_RATE, STEP_COUNT, SEED = "train.learning_rate", "train.step_count", "train.seed"
ROLES = (PARAM, STATE, BUFFER, CONSTANT, BATCH, LEARNING_RATE, STEP_COUNT, SEED)
"""
Role attributes of arguments. PARAM, BUFFER, CONSTANT and BATCH hold a name, STATE holds `[parameter, state]`, and
LEARNING_RATE holds the number of a group of parameters if there are several groups; the others hold nothing. SEED
marks the random seed, which differs for each step.
"""

UPDATES, LOSS, GRAD, METRIC, OUTPUT = "train.updates", "train.loss", "train.grad", "train.metric", "train.output"
"""
Role attributes of results. UPDATES holds the index of the argument that the result replaces, LOSS holds nothing, GRAD
holds a parameter's name, METRIC holds a name, and OUTPUT says which of the model's returned tensors the result is.
"""

LOSS_GRADIENT = "train.loss_gradient"
"""On an op: it produces the gradient of the loss, 1, and is the first op of backward."""

FORWARD = "train.forward"
"""On a function: it is only the forward pass of a model, in eval mode."""

REDUCE_DTYPE = "train.reduce_dtype"
"""On a function: the dtype of reductions over devices of gradients that are cast before they reach their updates."""

UPDATE = "train.update"
"""On an op that is not fused: it belongs to the update of the parameter of this name, or of several parameters."""

EACH_GRADIENT = "train.each_gradient"
"""On an op: every gradient has an equal op before the updates; `join-updates` turns them into one call."""

INITIAL = "train.initial"
"""On an argument that is a state: the value of its elements before the first step; zero where it is absent."""

TRANSIENT = "train.transient"
"""On an argument that is a buffer: the model's state dict omits it (`persistent=False`)."""

FOUND_INF = "found_inf"
"""The last operand of an update that may be skipped: a number; above 0, no value changes."""


class TrainOp(ComputeOp):
    """
    The base class of updates: every tensor has the sharding of the first result, scalars are replicated.

    An operand after the `OPERANDS` is FOUND_INF.
    """

    OPERANDS: ClassVar[tuple[str, ...]] = ()
    OPTIONAL: ClassVar[tuple[str, ...]] = ()
    """Operands that only some settings have; calls pass them by name."""

    def __init__(self, operands: Sequence[SSAValue], results: Sequence[Attribute], attributes: dict[str, Attribute]):
        super().__init__(operands=[operands], result_types=[results], attributes=attributes)

    @property
    def overload(self) -> str:
        """The op's own name."""
        return self.name

    def operand_names(self) -> tuple[str, ...]:
        """Return the names of the operands that are present."""
        return self._operand_names(self.absent())

    def _operand_names(self, absent: Collection[str]) -> tuple[str, ...]:
        names = tuple(name for name in self.OPERANDS if name not in absent)
        return (*names, FOUND_INF) if len(self.args) == len(names) + 1 else names

    def rule(self) -> Rule:
        """Return a rule that is elementwise in the parameter."""
        return _rule(tuple(map(shape_of, self.args)), tuple(map(shape_of, self.outs)))

    def verify_(self) -> None:
        self.verify_absent()
        names = self.operand_names()
        if len(names) != len(self.args):
            raise VerifyException(f"'{self.name}' has {len(self.args)} operands, expected ({', '.join(names)})")
        if problem := settings_problem(self.name, self.attributes, self.OPERANDS, self.absent()):
            raise VerifyException(f"'{self.name}' {problem}")
        if FOUND_INF in names and shape_of(self.args[-1]):
            raise VerifyException(f"'{self.name}' has ({', '.join(names)}), expected found_inf without dims")
        super().verify_()


@lru_cache(maxsize=4096)
def _rule(operands: tuple[tuple[int, ...], ...], results: tuple[tuple[int, ...], ...]) -> Rule:
    rule = update_rule(OpInstance("update", operands, results))
    if (problem := rule.misfit(operands, results)) is not None:
        raise ValueError(problem)
    return rule


@irdl_op_definition
class SgdOp(TrainOp):
    """SGD of one parameter: `(param, grad, momentum_buffer?, step, lr) -> (param', momentum_buffer'?)`."""

    name = "train.sgd"
    OPERANDS: ClassVar[tuple[str, ...]] = ("param", "grad", "momentum_buffer", "step", "lr")


class AdamBaseOp(TrainOp):
    """
    The common base class of Adam and AdamW.

    `(param, grad, *states, step, lr) -> (param', *states')`; the states are `exp_avg`, `exp_avg_sq` and, with
    `amsgrad`, `max_exp_avg_sq`.
    """

    OPERANDS: ClassVar[tuple[str, ...]] = ("param", "grad", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step", "lr")
    OPTIONAL: ClassVar[tuple[str, ...]] = ("max_exp_avg_sq",)

    def operand_names(self) -> tuple[str, ...]:
        """Return the names of the operands; `max_exp_avg_sq` is present only with `amsgrad`."""
        return self._operand_names(() if self.arguments().get("amsgrad") else self.OPTIONAL)


@irdl_op_definition
class AdamOp(AdamBaseOp):
    """Adam of one parameter, whose weight decay is added to the gradient."""

    name = "train.adam"


@irdl_op_definition
class AdamWOp(AdamBaseOp):
    """AdamW of one parameter, whose weight decay scales the parameter."""

    name = "train.adamw"


@irdl_op_definition
class IncrementOp(TrainOp):
    """The count of this step, computed from the last step's count and shared by all updates."""

    name = "train.increment"
    OPERANDS: ClassVar[tuple[str, ...]] = ("step",)


@irdl_op_definition
class AssignOp(TrainOp):
    """The new value of a parameter or state, written over the old one: `(old, new) -> old'`."""

    name = "train.assign"
    OPERANDS: ClassVar[tuple[str, ...]] = ("old", "new")


@dataclass(frozen=True)
class Member:
    """
    One of the uses of an op that a `train.foreach` stands for.

    Args:
        signature: the member's part of the op's signature, or None before it is decided.
        dtypes: names of the dtypes of the operands, then of the results.
        widths: bytes of an element of the operands, then of the results.
    """

    instance: OpInstance
    rule: Rule
    signature: Signature | None
    dtypes: tuple[str, ...]
    widths: tuple[int, ...]

    def verify_on(self, mesh: Mesh | None) -> None:
        """Raise VerifyException unless the member's rule allows its signature."""
        if mesh is not None and self.signature is not None:
            if (problem := signature_problem(self.rule, self.signature, mesh)) is not None:
                raise VerifyException(problem)


@irdl_op_definition
class ForeachOp(TrainOp):
    """
    The same elementwise op on the tensors of several parameters: one call of a multi-tensor function.

    `lists` names the operands of `target` that differ between members: the first operands of all members come first,
    then the second operands of all members. `shared` names the operands that follow, which are tensors without dims
    that all members use. Results are ordered like operands: the first results of all members, then the second. Plain
    arguments belong to `target`. With `in_place`, results are new values of parameters or states, written over the
    operands of the first list.
    """

    name = "train.foreach"

    target = prop_def(StringAttr)
    lists = prop_def(ArrayAttr[StringAttr])
    shared = opt_prop_def(ArrayAttr[StringAttr])
    in_place = opt_prop_def(UnitAttr)

    assembly_format = (
        "$target (`in_place` $in_place^)? `lists` `=` $lists (`shared` `=` $shared^)? $args attr-dict"
        " `:` functional-type($args, $outs)"
    )

    def __init__(
        self,
        target: str,
        lists: Mapping[str, Sequence[SSAValue]],
        shared: Mapping[str, SSAValue],
        results: Sequence[Attribute],
        attributes: dict[str, Attribute],
    ):
        IRDLOperation.__init__(
            self,
            operands=[[*(value for values in lists.values() for value in values), *shared.values()]],
            result_types=[results],
            attributes=attributes,
            properties={
                "target": StringAttr(target),
                "lists": ArrayAttr(map(StringAttr, lists)),
                "shared": ArrayAttr(map(StringAttr, shared)) if shared else None,
            },
        )

    @property
    def overload(self) -> str:
        """The op that runs on each member."""
        return self.target.data

    @property
    def list_names(self) -> tuple[str, ...]:
        """The names of the operands that differ between members."""
        return tuple(name.data for name in self.lists)

    @property
    def shared_names(self) -> tuple[str, ...]:
        """The names of the operands that all members share."""
        return tuple(name.data for name in self.shared) if self.shared is not None else ()

    @property
    def count(self) -> int:
        """The number of members."""
        return (len(self.args) - len(self.shared_names)) // max(len(self.lists), 1)

    @property
    def is_whole_update(self) -> bool:
        """Whether a member is the whole update of a parameter."""
        return self.overload in _FUSED_NAMES

    def operand_names(self) -> tuple[str, ...]:
        """Return the names of the operands in order; the name of a list repeats for every member."""
        count = self.count
        return (*(name for name in self.list_names for _ in range(count)), *self.shared_names)

    def operands_of(self, name: str) -> range:
        """Return the positions of the operands of a list, or of one shared operand."""
        if name in self.shared_names:
            at = len(self.lists) * self.count + self.shared_names.index(name)
            return range(at, at + 1)
        begin = self.list_names.index(name) * self.count
        return range(begin, begin + self.count)

    def use_key(self) -> tuple[object, ...]:
        """Return a key that equal uses share."""
        return (*super().use_key(), self.lists, self.shared)

    def rule(self) -> Rule:
        """Return the rules of all members as one rule; no two members share a factor."""
        shapes = tuple(tuple(map(shape_of, values)) for values in (self.args, self.outs))
        return _rule_of_members(*shapes, self.count)

    def members(self) -> Iterator[Member]:
        """Yield the members, with their parts of the op's signature."""
        return self.members_as(self.signature)

    def members_as(self, given: Signature | None) -> Iterator[Member]:
        """Yield the members, with their parts of the signature `given`."""
        names, plain = (*self.list_names, *self.shared_names), self.arguments()
        count, given_values, made_values = self.count, tuple(self.operands), tuple(self.results)
        shared = range(len(self.lists) * count, len(given_values))
        for number in range(count):
            places = (*range(number, len(self.lists) * count, count), *shared)
            result_places = range(number, len(made_values), count)
            operands, results = [given_values[at] for at in places], [made_values[at] for at in result_places]
            shapes = tuple(map(shape_of, operands)), tuple(map(shape_of, results))
            signature = None
            if given is not None:
                chosen = tuple(given.operands[at] for at in places), tuple(given.results[at] for at in result_places)
                signature = Signature(*chosen)
            values = (*operands, *results)
            yield Member(
                OpInstance(self.overload.removeprefix("aten."), *shapes, names, plain),
                _rule(*shapes),
                signature,
                tuple(map(dtype_of, values)),
                tuple(map(element_bytes, values)),
            )

    def verify_(self) -> None:
        names = ", ".join((*self.list_names, *self.shared_names))
        lists, kinds = len(self.lists), len(self.lists) - 1 if self.is_whole_update else 1
        if not lists or len(self.args) != lists * self.count + len(self.shared_names) or not self.count:
            raise VerifyException(
                f"'{self.name}' has {len(self.args)} operands, expected the same number of each of ({names})"
            )
        if len(self.outs) != kinds * self.count:
            raise VerifyException(f"'{self.name}' of {self.count} members has {len(self.outs)} results")
        if (problem := self._problem()) is not None:
            raise VerifyException(f"the multi-tensor form of '{self.overload}' {problem}")
        if problem := settings_problem(self.overload, self.attributes, (*self.list_names, *self.shared_names)):
            raise VerifyException(f"'{self.name}' of '{self.overload}' {problem}")
        attribute = self.attributes.get(SIGNATURE)
        mesh = find_mesh(self, attribute.data.mesh) if isinstance(attribute, SignatureAttr) else None
        if (given := self.signature) is not None:
            found, expected = (len(given.operands), len(given.results)), (len(self.args), len(self.outs))
            if found != expected:
                raise VerifyException(
                    f"'{self.name}' has a signature of {found[0]} operands and {found[1]} results, expected "
                    f"{expected[0]} and {expected[1]}"
                )
        for member in self.members():
            self._verify_member(member, mesh)

    def _problem(self) -> str | None:
        """Return why the operands do not match the target, or None if they do."""
        lists, shared = frozenset(self.list_names), frozenset(self.shared_names)
        if self.in_place is not None and self.overload not in FOREACH:
            return "always works in place; remove `in_place`"
        if (form := FOREACH.get(self.overload)) is not None:
            return foreach_problem(form, lists, shared, frozenset(self.arguments()))
        if self.overload == AssignOp.name:
            return None if self.list_names == AssignOp.OPERANDS else "takes lists of 'old' and 'new'"
        if self.overload not in _FUSED_NAMES:
            return "does not exist; members must be updates, or ops that torch has a multi-tensor function for"
        return None if shared == _SHARED else "takes 'step' and 'lr' for all members"

    def _verify_member(self, member: Member, mesh: Mesh | None) -> None:
        shape = member.instance.results[0]
        count = len(self.lists)
        tensors = (*member.instance.operands[:count], *member.instance.results)
        if any(other != shape for other in tensors) or any(member.instance.operands[count:]):
            listed = ", ".join(str(list(other)) for other in (*tensors, *member.instance.operands[count:]))
            raise VerifyException(
                f"'{self.name}' has a member of shapes {listed}, expected one shape, and [] for shared operands"
            )
        member.verify_on(mesh)


@irdl_op_definition
class SumOfSquaresOp(TrainOp):
    """
    The sum of the squares of all elements of several tensors in one call, as for the norm of gradients.

    The result is partial over the axes that split a member: all members are partial over an axis, or none. `sum_dtype`
    gives the dtype of the result.
    """

    name = "train.sum_of_squares"

    def operand_names(self) -> tuple[str, ...]:
        """Return one name for all operands."""
        return ("tensors",) * len(self.args)

    def rule(self) -> Rule:
        """Return the rules of all members as one rule; no two members share a factor."""
        return _rule_of_members(tuple(map(shape_of, self.args)), ((),), len(self.args))

    def members_as(self, given: Signature | None) -> Iterator[Member]:
        """Yield the sum of each tensor as a member, with its part of the signature `given`."""
        (out,) = self.outs
        for number, value in enumerate(self.args):
            shapes = (shape_of(value),), ((),)
            signature = Signature((given.operands[number],), given.results) if given is not None else None
            dtypes, widths = (dtype_of(value), dtype_of(out)), (element_bytes(value), element_bytes(out))
            yield Member(OpInstance("sum", *shapes, ("self",)), _rule_of_members(*shapes, 1), signature, dtypes, widths)

    def verify_(self) -> None:
        if not self.args or len(self.outs) != 1:
            raise VerifyException(f"'{self.name}' takes tensors and returns one number, found {len(self.outs)} results")
        dtypes, result_dtype = sorted({dtype_of(value) for value in self.args}), dtype_of(self.outs[0])
        if len(dtypes) > 1:
            raise VerifyException(f"'{self.name}' has operands of {' and '.join(dtypes)}, expected one dtype")
        expected = sum_dtype(dtypes[0])
        if shape_of(self.outs[0]) or result_dtype != expected:
            raise VerifyException(
                f"'{self.name}' of {dtypes[0]} returns {result_dtype}, expected a number of {expected}"
            )
        if not isinstance(attribute := self.attributes.get(SIGNATURE), SignatureAttr):
            return
        given, mesh = attribute.signature, find_mesh(self, attribute.data.mesh)
        if (len(given.operands), len(given.results)) != (len(self.args), 1):
            raise VerifyException(f"'{self.name}' has a signature of {len(given.operands)} operands")
        for member in self.members_as(given):
            member.verify_on(mesh)


@lru_cache(maxsize=4096)
def _rule_of_members(operands: tuple[tuple[int, ...], ...], results: tuple[tuple[int, ...], ...], count: int) -> Rule:
    sizes: dict[str, int] = {}

    def value(number: int, shape: tuple[int, ...]) -> Value:
        dims = tuple((f"m{number % count}d{dim}",) for dim in range(len(shape)))
        sizes.update({dim[0]: size for dim, size in zip(dims, shape, strict=True)})
        return dims

    operand_dims, result_dims = (
        tuple(value(at, shape) for at, shape in enumerate(shapes)) for shapes in (operands, results)
    )
    result_factors = {factor for dims in result_dims for dim in dims for factor in dim}
    return Rule(
        operand_dims, result_dims, sizes, {factor: Reduction.SUM for factor in sizes if factor not in result_factors}
    )


FusedOp: TypeAlias = SgdOp | AdamOp | AdamWOp
"""The update of a parameter as one op."""

FUSED: dict[str, type[FusedOp]] = {"sgd": SgdOp, "adam": AdamOp, "adamw": AdamWOp}
"""Maps the kind of an optimizer to its fused update."""

_FUSED_NAMES = frozenset(each.name for each in FUSED.values())
_SHARED = frozenset({"step", "lr"})

TRAIN = Dialect("train", [*FUSED.values(), IncrementOp, AssignOp, ForeachOp, SumOfSquaresOp])


def is_update(op: Operation) -> bool:
    """Whether an op belongs to the optimizer: a fused update, or a part of an update."""
    return isinstance(op, TrainOp) or UPDATE in op.attributes


def may_join(op: Operation) -> bool:
    """Whether `join-updates` may join an op with the same ops of other parameters: an op that is never skipped."""
    if isinstance(op, FusedOp | AssignOp):
        return FOUND_INF not in op.operand_names()
    return EACH_GRADIENT in op.attributes or (updated_parameter(op) is not None and op.name in FOREACH)


def updated_parameter(op: Operation) -> str | None:
    """Return the name of the parameter whose update contains an op that is not fused, or None."""
    name = op.attributes.get(UPDATE)
    return name.data if isinstance(name, StringAttr) else None


def gradients_of(op: Operation) -> list[int]:
    """
    Return the indices of the operands of an update that are gradients.

    Gradients are produced outside of the update, and are not parameters, states, rates or counts.
    """
    if isinstance(op, FusedOp):
        return [1]
    if not is_update(op):
        return []
    skips = isinstance(op, TrainOp) and FOUND_INF in op.operand_names()
    given = op.operands[:-1] if skips else op.operands
    return [index for index, value in enumerate(given) if _comes_from_outside(value)]


def _comes_from_outside(value: SSAValue) -> bool:
    if not isinstance(value, BlockArgument):
        return isinstance(value.owner, Operation) and not is_update(value.owner)
    return all(argument_attribute(value, role) is None for role in (PARAM, STATE, LEARNING_RATE, STEP_COUNT))


def overwritten_by_update(op: Operation) -> tuple[tuple[int, int], ...]:
    """
    Return the (operand, result) positions of values that an update overwrites; empty for other ops.

    `(param, grad, *states, step, lr) -> (param, *states)`, `(old, new) -> old`.
    """
    if isinstance(op, AssignOp):
        return ((0, 0),)
    if isinstance(op, FusedOp):
        return tuple((position + bool(position), position) for position in range(len(op.results)))
    if isinstance(op, ForeachOp) and op.is_whole_update:
        # All gradients lie between the parameters and the states.
        count = op.count
        return tuple((at + count * (at >= count), at) for at in range(len(op.results)))
    if isinstance(op, ForeachOp) and (op.in_place is not None or op.overload == AssignOp.name):
        return tuple((at, at) for at in range(op.count))
    return ()
