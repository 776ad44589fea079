"""
Sharding rules: the dims of an op's operands and results that are split together.

A rule names *factors*: `([i, k], [k, j]) -> ([i, j]) reduction={k}` is a matrix product. Splitting a factor
over a mesh axis splits every dim with that factor and replicates operands without it; a result without it is partial
if the factor is in `reductions`, and else does not depend on it. A dim may be a product of factors, major to minor
(`b*s`); only its leading factor can be split, since splits of the others are not contiguous.

A factor may be *indexed*: its positions are the values of an integer operand, as the rows of an embedding in
`([v, e], [b]) -> ([b, e]) reduction={v} indexed={v: 1}`. If it is split, a device looks up the rows that it holds
and takes zero for all others, so the result is partial; if the result has the factor (a scatter), a device keeps the
values of its part.

A rule also states in which operands the op is *linear* (so that partial operands give partial results), which operands
are *additive* (a bias: if a reduction factor is split, it must be partial too, so that it is added once), and which
factors must not be split (`replicated`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .sharding import Reduction

Dim = tuple[str, ...]
"""The factors of one dim, major to minor; empty for a dim of size 1 that is never split."""

Value = tuple[Dim, ...]


@dataclass(frozen=True, eq=False)
class Rule:
    """The sharding rule of one op on operands and results of known sizes."""

    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    sizes: Mapping[str, int]
    reductions: Mapping[str, Reduction] = field(default_factory=dict[str, Reduction])
    replicated: frozenset[str] = frozenset()
    linear: tuple[frozenset[int], ...] = ()
    """
    Sets of operands: if all operands of one set are partial sums and the others are replicated, the results are partial
    sums. Zeros are linear in the empty set: they are a sum of zeros.
    """
    additive: frozenset[int] = frozenset()
    indexed: Mapping[str, int] = field(default_factory=dict[str, int])
    """The factor whose positions are the values of an operand, and the operand's number; at most one entry."""

    @property
    def factors(self) -> tuple[str, ...]:
        """All factors in order of first appearance."""
        values = (*self.operands, *self.results)
        return tuple(dict.fromkeys(factor for value in values for dim in value for factor in dim))

    def splittable(self) -> tuple[str, ...]:
        """Return the factors that a mesh axis may split."""
        blocked = set(self.replicated)
        for value in (*self.operands, *self.results):
            for dim in value:
                lead = self.leading(dim)
                blocked.update(factor for factor in dim if factor != lead)
        return tuple(f for f in self.factors if f not in blocked and self.sizes[f] > 1)

    def leading(self, dim: Dim) -> str | None:
        """Return the factor of `dim` along which it can be split: the first factor with more than one element."""
        return next((factor for factor in dim if self.sizes[factor] > 1), None)

    def misfit(self, operands: Sequence[Sequence[int]], results: Sequence[Sequence[int]]) -> str | None:
        """Return why operands and results of these shapes do not fit this rule, or None if they fit."""
        for side, values, shapes in (("operand", self.operands, operands), ("result", self.results, results)):
            if len(values) != len(shapes):
                return f"{len(shapes)} {side}s, the op's rule {self} has {len(values)}"
            for index, (value, shape) in enumerate(zip(values, shapes, strict=True)):
                sizes = [math.prod(self.sizes[factor] for factor in dim) for dim in value]
                if sizes != list(shape):
                    return f"{side} {index} has shape {list(shape)}, the op's rule {self} expects {sizes}"
        return None

    def __str__(self) -> str:
        sizes = {factor: self.sizes[factor] for factor in self.factors}
        reduced = (f if r is Reduction.SUM else f"{r} {f}" for f, r in self.reductions.items())
        sets: list[tuple[str, list[str]]] = [
            ("reduction", list(reduced)),
            ("replicated", sorted(self.replicated)),
            ("linear", ["+".join(map(str, sorted(group))) for group in self.linear]),
            ("additive", list(map(str, sorted(self.additive)))),
            ("indexed", [f"{factor}: {operand}" for factor, operand in self.indexed.items()]),
        ]
        return _rule_text(self.operands, self.results, sizes, sets)


def _rule_text(
    operands: Sequence[Value],
    results: Sequence[Value],
    sizes: Mapping[str, int],
    sets: Iterable[tuple[str, Sequence[str]]],
) -> str:
    """Return the notation of a rule, without its empty sets."""
    text = f"({_values_text(operands)}) -> ({_values_text(results)})"
    text += f" {{{', '.join(f'{factor}={size}' for factor, size in sizes.items())}}}" if sizes else ""
    return text + "".join(f" {name}={{{', '.join(items)}}}" for name, items in sets if items)


def _values_text(values: Iterable[Value]) -> str:
    return ", ".join("[" + ", ".join("*".join(dim) or "1" for dim in value) + "]" for value in values)


@dataclass(frozen=True)
class Notation:
    """The parsed text of a rule, whose sizes are bound to shapes later."""

    text: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    sizes: Mapping[str, int]
    sets: Mapping[str, tuple[str, ...]]

    @property
    def ranks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The number of dims of each operand and each result."""
        return tuple(map(len, self.operands)), tuple(map(len, self.results))

    def bind(self, operands: Sequence[Sequence[int]], results: Sequence[Sequence[int]]) -> Rule:
        """Return the rule for operands and results of these shapes; raise ValueError if the shapes do not fit."""
        if (len(operands), len(results)) != (len(self.operands), len(self.results)):
            raise ValueError(
                f"rule '{self.text}' has {len(self.operands)} operands and {len(self.results)} results,"
                f" the op has {len(operands)} and {len(results)}"
            )
        sizes = dict(self.sizes)
        for value, shape in zip((*self.operands, *self.results), (*operands, *results), strict=True):
            if len(value) != len(shape):
                raise ValueError(f"rule '{self.text}': [{_values_text([value])}] does not fit shape {list(shape)}")
            for dim, size in zip(value, shape, strict=True):
                self._bind_dim(dim, size, sizes)
        linear = tuple(frozenset(map(int, group.split("+"))) for group in self.sets.get("linear", ()))
        return Rule(
            self.operands,
            self.results,
            sizes,
            dict(map(_reduction, self.sets.get("reduction", ()))),
            frozenset(self.sets.get("replicated", ())),
            linear,
            frozenset(map(int, self.sets.get("additive", ()))),
            dict(map(_indexed, self.sets.get("indexed", ()))),
        )

    def without(self, factors: Collection[str], linear: Collection[frozenset[int]]) -> str:
        """Return the text of this rule with these factors whole, and without these linear sets."""
        groups = self.sets.get("linear", ())
        linear_groups = tuple(group for group in groups if frozenset(map(int, group.split("+"))) not in linear)
        whole = tuple(dict.fromkeys((*self.sets.get("replicated", ()), *sorted(factors))))
        sets = {**self.sets, "replicated": whole, "linear": linear_groups}
        return _rule_text(self.operands, self.results, self.sizes, sets.items())

    def _bind_dim(self, dim: Dim, size: int, sizes: dict[str, int]) -> None:
        if len(dim) == 1:
            if sizes.setdefault(dim[0], size) != size:
                raise ValueError(
                    f"rule '{self.text}': factor {dim[0]} is {sizes[dim[0]]} in one dim, {size} in another"
                )
            return
        product = 1
        for factor in dim:
            if factor not in sizes:
                raise ValueError(f"rule '{self.text}': give the size of factor {factor}, as {{{factor}=4}}")
            product *= sizes[factor]
        if product != size:
            raise ValueError(f"rule '{self.text}': dim {'*'.join(dim) or '1'} is {product}, the value's is {size}")


def _reduction(text: str) -> tuple[str, Reduction]:
    kind, _, factor = text.rpartition(" ")
    return factor, Reduction(kind or "sum")


def _indexed(text: str) -> tuple[str, int]:
    factor, _, operand = text.partition(":")
    return factor.strip(), int(operand)


_RULE = re.compile(r"^\s*\((?P<operands>.*?)\)\s*->\s*\((?P<results>.*?)\)\s*(?P<rest>.*)$")
_SET = re.compile(r"(?:(reduction|replicated|linear|additive|indexed)\s*=\s*)?\{([^{}]*)\}\s*")


def parse_rule(text: str) -> Notation:
    """Read factor notation; ValueError describes the fault."""
    if (match := _RULE.match(text)) is None:
        raise ValueError(f"rule '{text}' is not of the form ([i, k], [k, j]) -> ([i, j]) reduction={{k}}")
    sizes: dict[str, int] = {}
    sets: dict[str, tuple[str, ...]] = {}
    rest = match["rest"]
    while rest:
        if (entry := _SET.match(rest)) is None:
            raise ValueError(
                f"rule '{text}': found '{rest}', expected {{i=4}} or one of reduction, replicated, linear, additive,"
                " indexed"
            )
        items = tuple(item.strip() for item in entry[2].split(",") if item.strip())
        if entry[1]:
            sets[entry[1]] = items
        else:
            sizes |= {name.strip(): int(size) for name, size in (item.split("=") for item in items)}
        rest = rest[entry.end() :]
    operands, results = _parse_values(match["operands"]), _parse_values(match["results"])
    known = {factor for value in (*operands, *results) for dim in value for factor in dim}
    for item in (*sets.get("reduction", ()), *sets.get("replicated", ())):
        if (factor := item.split()[-1]) not in known:
            raise ValueError(f"rule '{text}' refers to factor {factor}, which no operand or result has")
    _check_sets(text, sets, len(operands))
    for value in (*operands, *results):
        named = [factor for dim in value for factor in dim]
        if twice := [factor for factor in named if named.count(factor) > 1]:
            raise ValueError(f"rule '{text}': factor {twice[0]} is twice in {_values_text([value])}, expected once")
    if (problem := _index_problem(sets.get("indexed", ()), operands, known)) is not None:
        raise ValueError(f"rule '{text}': {problem}")
    return Notation(text, operands, results, sizes, sets)


def _check_sets(text: str, sets: Mapping[str, tuple[str, ...]], operands: int) -> None:
    for item in sets.get("reduction", ()):
        kind = item.rpartition(" ")[0]
        if kind not in ("", *Reduction):
            raise ValueError(f"rule '{text}': unknown reduction '{kind}', expected one of {', '.join(Reduction)}")
    for name in ("linear", "additive"):
        for number in (part.strip() for item in sets.get(name, ()) for part in item.split("+")):
            if not number.isdigit() or int(number) >= operands:
                raise ValueError(f"rule '{text}': {name} operand {number}, expected a number from 0 to {operands - 1}")


def _index_problem(items: Sequence[str], operands: Sequence[Value], known: Collection[str]) -> str | None:
    """Return the fault of the set of indexed factors, or None; the set may hold one factor."""
    if not items:
        return None
    if len(items) > 1 or re.fullmatch(r"\w+\s*:\s*\d+", items[0]) is None:
        return f"found indexed={{{', '.join(items)}}}, expected one factor and an operand's number, as {{v: 1}}"
    factor, operand = _indexed(items[0])
    if factor not in known:
        return f"refers to factor {factor}, which no operand or result has"
    if operand >= len(operands):
        return f"the positions of factor {factor} are in operand {operand}, there are {len(operands)} operands"
    if any(factor in dim for dim in operands[operand]):
        return f"operand {operand} holds positions of factor {factor} and has a dim of it"
    return None


_VALUES = re.compile(r"\s*(\[[^\[\]]*\]\s*(,\s*\[[^\[\]]*\]\s*)*)?")


def _parse_values(text: str) -> tuple[Value, ...]:
    if _VALUES.fullmatch(text) is None:
        raise ValueError(f"'{text}' is not a list of values like [i, k], [k, j]")
    values: list[Value] = []
    for inside in re.findall(r"\[([^\]]*)\]", text):
        dims = [dim.strip() for dim in inside.split(",") if dim.strip()]
        values.append(tuple(() if dim == "1" else tuple(f.strip() for f in dim.split("*")) for dim in dims))
    return tuple(values)


def replicated_rule(operands: Sequence[Sequence[int]], results: Sequence[Sequence[int]]) -> Rule:
    """Return the rule of an unknown op: every operand and result is replicated."""
    sizes: dict[str, int] = {}

    def value(prefix: str, shape: Sequence[int]) -> Value:
        dims = tuple((f"{prefix}{d}",) for d in range(len(shape)))
        sizes.update({dim[0]: size for dim, size in zip(dims, shape, strict=True)})
        return dims

    operand_values = tuple(value(f"o{i}_", shape) for i, shape in enumerate(operands))
    result_values = tuple(value(f"r{i}_", shape) for i, shape in enumerate(results))
    return Rule(operand_values, result_values, sizes, replicated=frozenset(sizes))
