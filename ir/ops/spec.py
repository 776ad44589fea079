"""The columns of the op table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..plain import Plain, PlainTable
from ..rules import Rule, parse_rule

Shape = tuple[int, ...]


@dataclass(frozen=True)
class OpInstance:
    """
    One use of an op: the shapes of its tensor operands and results, and its other arguments as Python values.

    `masks` are the positions of the operands that are boolean.
    """

    name: str
    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    operand_names: tuple[str, ...] = ()
    arguments: PlainTable | None = None
    masks: frozenset[int] = frozenset()

    def argument(self, name: str, default: Plain = None) -> Any:
        """The value of the argument `name`, where it is not a tensor; the op's schema decides its type."""
        return (self.arguments or {}).get(name, default)

    def operand(self, name: str) -> Shape:
        """The shape of the tensor operand `name`."""
        return self.operands[self.operand_names.index(name)]


RuleFunction = Callable[[OpInstance], Rule]

EACH = "each"
"""In a number of operations: the elements of the largest tensor that an op reads or writes."""


@dataclass(frozen=True)
class OpSpec:
    """
    One row: everything that passes ask about an op.

    name       the overload, without `.default`
    operands   schema names of the tensor arguments, in order; `*name` for a list of tensors (one at most)
    rule       factor notation, or a function of the shapes
    linear     sets of operands in which the op is linear: `self+other` jointly, `self` alone, `*` all
               operands
    flops      floating-point operations as a product over factors (`2*i*j*k`), perhaps over one (`2*s*k*n*e/g`); `each`
               is the number of elements of the largest tensor, and the default
    scale      what its arguments make of that number: half of it under a causal mask
    reads      operands that are read in part -> the tensor that has as many elements as are read; empty: none are
    passes     how often what is read and written is gone over, where the runtime has a function of several ops
    localize   arguments that carry global sizes -> where the local ones are read: `result0`, `operand1`,
               `result0[1]`, `factor g` (the part of a factor) or `factor r*` (of r0, r1, ...); or arguments
               that only a part has -> where it starts, and the shape of what it is a part of: `result0.start`,
               `operand0.start[1]`, `result0.whole`
    decides    whether results jump where operands differ by rounding alone: comparisons of tensors, what sorts or picks
    view       whether results alias the first operand (nothing is computed or moved)
    results    the number of results
    ordered    torch's kernel takes it for granted that its operands lie in memory in the order of their dims
    arguments  of an op that is none of torch's: its arguments beside the operands, and operands that may be None, as
               torch writes a schema (`Tensor? attn_mask=None, bool is_causal=False`); None for torch's (`schemas.txt`)
    family     the class of cost: the name of the file that has the row (the table fills it in)
    """

    name: str
    operands: tuple[str, ...]
    rule: str | RuleFunction
    linear: tuple[str, ...] = ()
    flops: str = ""
    scale: Callable[[OpInstance], float] | None = None
    reads: Mapping[str, str] | None = None
    passes: float = 1.0
    localize: Mapping[str, str] | None = None
    decides: bool = False
    view: bool = False
    results: int = 1
    ordered: bool = False
    arguments: str | None = None
    family: str = ""

    def bind(self, op: OpInstance) -> Rule:
        """The sharding rule of one use of the op; ValueError where its shapes do not go together."""
        if isinstance(self.rule, str):
            rule = parse_rule(self.rule).bind(op.operands, op.results)
        else:
            rule = self.rule(op)
        if (problem := rule.misfit(op.operands, op.results)) is not None:
            raise ValueError(problem)
        return replace(rule, linear=self._linear(op)) if self.linear else rule

    def _linear(self, op: OpInstance) -> tuple[frozenset[int], ...]:
        """
        The linear sets in which every tensor is present; an operand that is None drops out, a number blocks.
        """
        groups: list[frozenset[int]] = []
        for text in self.linear:
            names = [name for name in op.operand_names if text == "*"] or text.split("+")
            members = [i for i, name in enumerate(op.operand_names) if name in names]
            given_otherwise = [name for name in names if op.argument(name) is not None]
            if members and not given_otherwise:
                groups.append(frozenset(members))
        return tuple(groups)

    @property
    def contracts(self) -> bool:
        """Whether the op does many operations per element: products of matrices, attention, convolutions."""
        return bool(self.flops) and EACH not in self.flops.split("*")
