"""
The FLOPs and bytes of one use of an op, from its row and the sizes of its rule's factors.

A signature divides factors, so one count serves any signature: with the sizes of the largest part, of one rank's part,
or of a fractional share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..op_cost import VIEWS, KernelPart, OpWork
from ..plain import Plain, PlainTable
from ..rules import Rule, Value
from .spec import EACH, OpInstance, OpSpec

Sizes = Mapping[str, float]
"""The elements of each factor on a device."""

_FLOATING = ("float", "bfloat", "complex")

_PLACES = frozenset({"stream", "independent", "start", "first", "part", "device", "layout", "pin_memory"})
"""Arguments that say where numbers come from or where tensors are; they do not change the work."""


@dataclass(frozen=True)
class OpCounts:
    """
    The counts of one use of an op.

    name       the overload
    family     the cost class; `views` for every op that makes views
    dtype      name of the dtype of the computation: the first floating-point dtype of the op's tensors
    dtypes     names of the dtypes of operands and results
    moved      for each operand and result that is read or written: its position among them, the factors of its
               elements, and the bytes of an element times the number of passes over it
    above      factors whose sizes multiply to the operations; `each` is the elements of the largest tensor
    below      factors whose sizes divide that product
    times      the constant part of that product
    operands   dims of the operands
    results    dims of the results, if they do not follow from operands and arguments
    arguments  arguments of the op that change its work, as text
    rule       the rule whose factors are counted
    """

    name: str
    family: str
    dtype: str
    dtypes: tuple[str, ...]
    moved: tuple[tuple[int, tuple[str, ...], float], ...]
    above: tuple[str, ...]
    below: tuple[str, ...]
    times: float
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    arguments: str
    rule: Rule

    @staticmethod
    def of(spec: OpSpec, op: OpInstance, rule: Rule, dtypes: Sequence[str], widths: Sequence[int]) -> OpCounts:
        """
        Return the counts of a use of the op whose row is `spec`.

        Args:
            dtypes: names of the dtypes of its operands, then of its results.
            widths: bytes of an element of its operands, then of its results.
        """
        moved = () if spec.view else tuple(_moved(spec, op, rule, widths))
        above, _, below = (spec.flops or EACH).partition("/")
        terms = [term for term in above.split("*") if not term[0].isdigit()]
        times = math.prod(float(term) for term in above.split("*") if term[0].isdigit())
        divisors = [term for term in below.split("*") if term]
        times /= math.prod(float(term) for term in divisors if term[0].isdigit())
        shown = not rule.operands or spec.localize is not None
        return OpCounts(
            op.name,
            VIEWS if spec.view else spec.family,
            next((dtype for dtype in dtypes if dtype.startswith(_FLOATING)), dtypes[0]),
            tuple(dtypes),
            moved,
            tuple(terms),
            tuple(term for term in divisors if not term[0].isdigit()),
            times * (spec.scale(op) if spec.scale else 1.0),
            rule.operands,
            rule.results if shown else (),
            _arguments_text(op.arguments or {}, spec),
            rule,
        )

    def work(self, sizes: Sizes, *, keyed: bool = True, part: KernelPart | None = None) -> OpWork:
        """
        Return the work of the op on a device with these sizes of factors; the key is made only if `keyed`.

        Args:
            part: share of the op in a kernel of several ops, without a measured time, or None for a separate kernel.
        """
        if not self.moved:
            return OpWork(self.family, self.dtype, 0.0, 0.0, self.key(sizes) if keyed else "")
        counts = [math.prod(map(sizes.__getitem__, factors)) for _, factors, _ in self.moved]
        of_kernel = zip(counts, self.moved, strict=True)
        moved = sum(count * width for count, (at, _, width) in of_kernel if part is None or at in part.moved)
        largest = max(counts)
        flops = self.times
        for term in self.above:
            flops *= largest if term == EACH else sizes.get(term, 1)
        for term in self.below:
            flops /= sizes[term]
        if part is not None:
            return OpWork(self.family, self.dtype, flops, float(moved), joins=not part.launches)
        return OpWork(self.family, self.dtype, flops, float(moved), self.key(sizes) if keyed else "")

    def key(self, sizes: Sizes) -> str:
        """Return the op with its local shapes and arguments: `mm(float32[64x32], float32[32x16])`."""
        count = len(self.operands)
        operands = _tensors(self.dtypes[:count], self.operands, sizes)
        inputs = ", ".join([*operands, *([self.arguments] if self.arguments else [])])
        results = ", ".join(_tensors(self.dtypes[count:], self.results, sizes))
        return f"{self.name}({inputs})" + (f" -> {results}" if results else "")


def _moved(spec: OpSpec, op: OpInstance, rule: Rule, widths: Sequence[int]) -> list[tuple[int, tuple[str, ...], float]]:
    """Return, for each value read or written, its position, the factors of its elements and the bytes of an element."""
    values = [tuple(factor for dim in value for factor in dim) for value in (*rule.operands, *rule.results)]
    names = [*op.operand_names, *(f"result{i}" for i in range(len(rule.results)))]
    moved: list[tuple[int, tuple[str, ...], float]] = []
    for at, (factors, width, name) in enumerate(zip(values, widths, names, strict=True)):
        read = (spec.reads or {}).get(name)
        if read != "":
            moved.append((at, values[names.index(read)] if read else factors, spec.passes * width))
    return moved


def _tensors(dtypes: Sequence[str], values: Sequence[Value], sizes: Sizes) -> list[str]:
    shapes = ("x".join(str(round(math.prod(sizes[factor] for factor in dim))) for dim in value) for value in values)
    return [f"{dtype}[{shape}]" for dtype, shape in zip(dtypes, shapes, strict=False)]


def _arguments_text(arguments: PlainTable, spec: OpSpec) -> str:
    """Return the arguments that change the work, by name; global sizes are left out, as result shapes imply them."""
    left_out = {*_PLACES, *(spec.localize or ())}
    shown = sorted((name, value) for name, value in arguments.items() if name not in left_out)
    return ", ".join(f"{name}={_text(value)}" for name, value in shown)


def _text(value: Plain) -> str:
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
