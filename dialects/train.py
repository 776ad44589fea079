"""
The `train` dialect: the optimizer's updates, and the roles of a step function's arguments and results.

The update of a parameter is one fused op (`train.sgd`, `train.adam`, `train.adamw`), or ordinary ops that carry
`train.update`, the last of which write the new parameter and states over the old ones (`train.assign`). Of several
parameters together it is multi-tensor ops (`train.foreach`).

A step is `(parameters, optimizer states, buffers, batch, learning rate, seed) -> (loss, updated values, ...)`.
Arguments carry one of the role attributes below; the new value of an argument carries `train.updates`, its index.
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
Role attributes of arguments. PARAM, BUFFER, CONSTANT and BATCH hold a name, STATE holds `[parameter, state]`,
LEARNING_RATE the number of a group of parameters where there are several; the others hold nothing. SEED is that of the
random numbers of this step, another one for each step.
"""

UPDATES, LOSS, GRAD, METRIC, OUTPUT = "train.updates", "train.loss", "train.grad", "train.metric", "train.output"
"""
Role attributes of results: the index of the argument that it replaces, nothing, a parameter's name, a name, and which
of the tensors that the model returns.
"""

LOSS_GRADIENT = "train.loss_gradient"
"""On an op: it is the one that backward begins with, the gradient of the loss, 1."""

FORWARD = "train.forward"
"""On a function: it is the forward pass of a model alone, in eval mode."""

REDUCE_DTYPE = "train.reduce_dtype"
"""On a function: the dtype in which gradients are reduced over devices that are cast on their way to the updates."""

UPDATE = "train.update"
"""
On an op that is not fused: it belongs to the optimizer's update, of the parameter of this name, or of several of them.
"""

EACH_GRADIENT = "train.each_gradient"
"""On an op: the same is done with every gradient before the updates, which `join-updates` makes one call of."""

INITIAL = "train.initial"
"""On an argument that is a state: what its elements are before the first step; zero where it is not there."""

TRANSIENT = "train.transient"
"""On an argument that is a buffer: the state dict of the model does not have it (`persistent=False`)."""

FOUND_INF = "found_inf"
"""The last operand of an update that may be skipped: a number, above 0 where all is to stay as it was."""


class TrainOp(ComputeOp):
    """
    The base of the updates: every tensor is spread like the first result, scalars are replicated.

    One more operand than `OPERANDS` is FOUND_INF.
    """

    OPERANDS: ClassVar[tuple[str, ...]] = ()
    OPTIONAL: ClassVar[tuple[str, ...]] = ()
    """Those that only some settings have; calls name them."""

    def __init__(self, operands: Sequence[SSAValue], results: Sequence[Attribute], attributes: dict[str, Attribute]):
        super().__init__(operands=[operands], result_types=[results], attributes=attributes)

    @property
    def overload(self) -> str:
        """The op's own name."""
        return self.name

    def operand_names(self) -> tuple[str, ...]:
        """The operands' names, less those that are absent."""
        return self._operand_names(self.absent())

    def _operand_names(self, absent: Collection[str]) -> tuple[str, ...]:
        names = tuple(name for name in self.OPERANDS if name not in absent)
        return (*names, FOUND_INF) if len(self.args) == len(names) + 1 else names

    def rule(self) -> Rule:
        """Element by element in the parameter."""
        return _rule(tuple(map(shape_of, self.args)), tuple(map(shape_of, self.outs)))

    def verify_(self) -> None:
        self.verify_absent()
        names = self.operand_names()
        if len(names) != len(self.args):
            raise VerifyException(f"'{self.name}' has {len(self.args)} operands, expected ({', '.join(names)})")
        if problem := settings_problem(self.name, self.attributes, self.OPERANDS, self.absent()):
            raise VerifyException(f"'{self.name}' {problem}")
        if FOUND_INF in names and shape_of(self.args[-1]):
            raise VerifyException(f"'{self.name}' has ({', '.join(names)}), but found_inf is not a tensor without dims")
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
    What Adam and AdamW have in common.

    `(param, grad, *states, step, lr) -> (param', *states')`; the states are `exp_avg`, `exp_avg_sq` and, with
    `amsgrad`, `max_exp_avg_sq`.
    """

    OPERANDS: ClassVar[tuple[str, ...]] = ("param", "grad", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step", "lr")
    OPTIONAL: ClassVar[tuple[str, ...]] = ("max_exp_avg_sq",)

    def operand_names(self) -> tuple[str, ...]:
        """The operands' names, less the maximum where none is kept."""
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
    """The count of this step, from that of the last: shared by all updates."""

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
    One of the uses that a `train.foreach` stands for.

    Args:
        signature: its part of that of the op; None where nothing is decided.
        dtypes: of operands and then results, by name.
        widths: the bytes of an element of each.
    """

    instance: OpInstance
    rule: Rule
    signature: Signature | None
    dtypes: tuple[str, ...]
    widths: tuple[int, ...]

    def verify_on(self, mesh: Mesh | None) -> None:
        """Raise VerifyException where its signature does not follow from its rule."""
        if mesh is not None and self.signature is not None:
            if (problem := signature_problem(self.rule, self.signature, mesh)) is not None:
                raise VerifyException(problem)


@irdl_op_definition
class ForeachOp(TrainOp):
    """
    The same op on the tensors of several parameters, element by element: one call of a multi-tensor function.

    `lists` are the operands of `target` that are another tensor for each member, all members' first operands coming
    first; `shared`, which follow them, are one tensor of no dims for all. Results come as operands do: those of the
    first kind of all members, then those of the second. Plain arguments are those of `target`. `in_place` where results
    are the new values of parameters or states, written over the first list.
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
        """The op that is done to each member."""
        return self.target.data

    @property
    def list_names(self) -> tuple[str, ...]:
        """The operands that are another tensor for each member."""
        return tuple(name.data for name in self.lists)

    @property
    def shared_names(self) -> tuple[str, ...]:
        """The operands that are one tensor for all."""
        return tuple(name.data for name in self.shared) if self.shared is not None else ()

    @property
    def count(self) -> int:
        """The number of members."""
        return (len(self.args) - len(self.shared_names)) // max(len(self.lists), 1)

    @property
    def is_whole_update(self) -> bool:
        """Whether a member is all of a parameter's update."""
        return self.overload in _FUSED_NAMES

    def operand_names(self) -> tuple[str, ...]:
        """The names of the operands in order, each list's as often as there are members."""
        count = self.count
        return (*(name for name in self.list_names for _ in range(count)), *self.shared_names)

    def operands_of(self, name: str) -> range:
        """Where the operands of a list are, or the one that is shared."""
        if name in self.shared_names:
            at = len(self.lists) * self.count + self.shared_names.index(name)
            return range(at, at + 1)
        begin = self.list_names.index(name) * self.count
        return range(begin, begin + self.count)

    def use_key(self) -> tuple[object, ...]:
        """What equal uses have in common."""
        return (*super().use_key(), self.lists, self.shared)

    def rule(self) -> Rule:
        """Those of all members, whose factors have nothing to do with one another."""
        shapes = tuple(tuple(map(shape_of, values)) for values in (self.args, self.outs))
        return _rule_of_members(*shapes, self.count)

    def members(self) -> Iterator[Member]:
        """What is done to each."""
        return self.members_as(self.signature)

    def members_as(self, given: Signature | None) -> Iterator[Member]:
        """What is done to each, with a signature of them all."""
        names, plain = (*self.list_names, *self.shared_names), self.arguments()
        count, given_values, made_values = self.count, tuple(self.operands), tuple(self.results)
        shared = range(len(self.lists) * count, len(given_values))
        for number in range(count):
            places = (*range(number, len(self.lists) * count, count), *shared)
            made = range(number, len(made_values), count)
            operands, results = [given_values[at] for at in places], [made_values[at] for at in made]
            shapes = tuple(map(shape_of, operands)), tuple(map(shape_of, results))
            signature = None
            if given is not None:
                chosen = tuple(given.operands[at] for at in places), tuple(given.results[at] for at in made)
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
            raise VerifyException(f"'{self.name}' has {len(self.args)} operands, expected as many of each of ({names})")
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
        """Why its operands are not those of its target; None where they are."""
        lists, shared = frozenset(self.list_names), frozenset(self.shared_names)
        if self.in_place is not None and self.overload not in FOREACH:
            return "is in place in any case"
        if (form := FOREACH.get(self.overload)) is not None:
            return foreach_problem(form, lists, shared, frozenset(self.arguments()))
        if self.overload == AssignOp.name:
            return None if self.list_names == AssignOp.OPERANDS else "takes lists of 'old' and 'new'"
        if self.overload not in _FUSED_NAMES:
            return "does not exist; members have to be updates, or ops that torch has a function for"
        return None if shared == _SHARED else "takes 'step' and 'lr' for all members"

    def _verify_member(self, member: Member, mesh: Mesh | None) -> None:
        shape = member.instance.results[0]
        count = len(self.lists)
        tensors = (*member.instance.operands[:count], *member.instance.results)
        if any(other != shape for other in tensors) or any(member.instance.operands[count:]):
            listed = ", ".join(str(list(other)) for other in (*tensors, *member.instance.operands[count:]))
            raise VerifyException(f"'{self.name}' has a member of shapes {listed}, expected one for unshared operands")
        member.verify_on(mesh)


@irdl_op_definition
class SumOfSquaresOp(TrainOp):
    """
    The sum of the squares of all elements of several tensors, as of gradients for their norm: one call for all.

    What is spread over devices gives each a part of it: all members are partial over an axis, or none. See `sum_dtype`.
    """

    name = "train.sum_of_squares"

    def operand_names(self) -> tuple[str, ...]:
        """The same for all."""
        return ("tensors",) * len(self.args)

    def rule(self) -> Rule:
        """Those of all members, whose factors have nothing to do with one another."""
        return _rule_of_members(tuple(map(shape_of, self.args)), ((),), len(self.args))

    def members_as(self, given: Signature | None) -> Iterator[Member]:
        """What each tensor adds, with a signature of all."""
        (out,) = self.outs
        for number, value in enumerate(self.args):
            shapes = (shape_of(value),), ((),)
            signature = Signature((given.operands[number],), given.results) if given is not None else None
            dtypes, widths = (dtype_of(value), dtype_of(out)), (element_bytes(value), element_bytes(out))
            yield Member(OpInstance("sum", *shapes, ("self",)), _rule_of_members(*shapes, 1), signature, dtypes, widths)

    def verify_(self) -> None:
        if not self.args or len(self.outs) != 1:
            raise VerifyException(f"'{self.name}' takes tensors and returns one number, found {len(self.outs)} results")
        dtypes, made = sorted({dtype_of(value) for value in self.args}), dtype_of(self.outs[0])
        if len(dtypes) > 1:
            raise VerifyException(f"'{self.name}' has operands of {' and '.join(dtypes)}, expected one dtype")
        expected = sum_dtype(dtypes[0])
        if shape_of(self.outs[0]) or made != expected:
            raise VerifyException(f"'{self.name}' of {dtypes[0]} returns {made}, expected a number of {expected}")
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

    given, made = (tuple(value(at, shape) for at, shape in enumerate(each)) for each in (operands, results))
    kept = {factor for dims in made for dim in dims for factor in dim}
    return Rule(given, made, sizes, {factor: Reduction.SUM for factor in sizes if factor not in kept})


FusedOp: TypeAlias = SgdOp | AdamOp | AdamWOp
"""The update of a parameter as one op."""

FUSED: dict[str, type[FusedOp]] = {"sgd": SgdOp, "adam": AdamOp, "adamw": AdamWOp}
"""By the kind of an optimizer."""

_FUSED_NAMES = frozenset(each.name for each in FUSED.values())
_SHARED = frozenset({"step", "lr"})

TRAIN = Dialect("train", [*FUSED.values(), IncrementOp, AssignOp, ForeachOp, SumOfSquaresOp])


def is_update(op: Operation) -> bool:
    """Whether an op is one of the optimizer's: fused, or a part of an update."""
    return isinstance(op, TrainOp) or UPDATE in op.attributes


def may_join(op: Operation) -> bool:
    """Whether an op is of the kind that `join-updates` joins with those of other parameters; it is never skipped."""
    if isinstance(op, FusedOp | AssignOp):
        return FOUND_INF not in op.operand_names()
    return EACH_GRADIENT in op.attributes or (updated_parameter(op) is not None and op.name in FOREACH)


def updated_parameter(op: Operation) -> str | None:
    """The name of the parameter whose update an op that is not fused belongs to."""
    name = op.attributes.get(UPDATE)
    return name.data if isinstance(name, StringAttr) else None


def gradients_of(op: Operation) -> list[int]:
    """
    The operands of an update by which it takes gradients.

    Operands of an update's ops that are neither results of these nor a parameter, state, rate or count.
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
    The (operand, result) positions of what an update writes in place; none for an op of another kind.

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
