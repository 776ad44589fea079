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

    `masks` holds the positions of boolean operands.
    """

    name: str
    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    operand_names: tuple[str, ...] = ()
    arguments: PlainTable | None = None
    masks: frozenset[int] = frozenset()

    def argument(self, name: str, default: Plain = None) -> Any:
        """Return the value of the argument `name` if it is not a tensor; the op's schema gives its type."""
        return (self.arguments or {}).get(name, default)

    def operand(self, name: str) -> Shape:
        """Return the shape of the tensor operand `name`."""
        return self.operands[self.operand_names.index(name)]


RuleFunction = Callable[[OpInstance], Rule]

EACH = "each"
"""In a count of operations: the elements of the largest tensor that an op reads or writes."""


@dataclass(frozen=True)
class OpSpec:
    """
    One row of the table: the properties of an op.

    name       the overload, without `.default`
    operands   schema names of the tensor arguments, in order; `*name` for a list of tensors (one at most)
    rule       factor notation, or a function of the shapes
    linear     sets of operands in which the op is linear: `self+other` jointly, `self` alone, `*` all
               operands
    flops      floating-point operations: a product of factors (`2*i*j*k`), or a quotient (`2*s*k*n*e/g`); `each` is the
               number of elements of the largest tensor, and the default
    scale      multiplier of that number, by arguments: half under a causal mask
    reads      operands that are read in part -> the tensor with as many elements as are read; empty: nothing is read
    passes     number of passes over everything read and written, if the runtime has a function of several ops
    localize   arguments with global sizes -> the source of their local sizes: `result0`, `operand1`, `result0[1]`,
               `factor g` (the part of a factor) or `factor r*` (of r0, r1, ...); or arguments that only parts
               have -> the start of a part, or the shape of the whole: `result0.start`, `operand0.start[1]`,
               `result0.whole`
    decides    whether results jump where operands differ by rounding: comparisons of tensors, sorting, picking
    view       whether results alias the first operand (nothing is computed or moved)
    results    the number of results
    ordered    whether torch's kernel assumes operands in memory in the order of their dims
    arguments  for an op that torch lacks: its arguments other than operands, and operands that may be None, in torch's
               schema notation (`Tensor? attn_mask=None, bool is_causal=False`); None for torch ops (`schemas.txt`)
    family     the cost class: the name of the file that has the row (the table fills it in)
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
        """Return the sharding rule of one use of the op; raise ValueError if its shapes do not fit."""
        if isinstance(self.rule, str):
            rule = parse_rule(self.rule).bind(op.operands, op.results)
        else:
            rule = self.rule(op)
        if (problem := rule.misfit(op.operands, op.results)) is not None:
            raise ValueError(problem)
        return replace(rule, linear=self._linear(op)) if self.linear else rule

    def _linear(self, op: OpInstance) -> tuple[frozenset[int], ...]:
        """Return the linear sets of tensors; an operand that is None leaves its set, and a number removes the set."""
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
        """Whether the op does many operations per element: matrix products, attention, convolutions."""
        return bool(self.flops) and EACH not in self.flops.split("*")
