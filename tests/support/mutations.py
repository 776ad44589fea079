"""
Rules with a planted fault, and whether the proof of the rules detects it.

A mutant of a row is one edit of its rule, made in every sample of the row where it applies:

- a factor removed from one dim of an operand or result, which gets a new factor;
- the factors of two equal dims of one value exchanged;
- a reduction dropped or of another kind; a bias that is not added once; positions that are not declared as indices;
- the mark of a factor that must stay whole removed; one more operand declared linear.

An edit that only removes (a linear set dropped) makes a weaker rule, which is still true. So a mutant is a fault only
if it yields a signature that the row's rule does not. Some of these are true as well, since a row need not declare
every valid signature. An undetected mutant counts as true if more shapes of shards and other numbers confirm it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from ir_files import context, parse
from op_samples import UNDEFINED, OpSample
from xdsl.dialects.builtin import ModuleOp

from shardwright.dialects.compute import ComputeOp, dtype_of
from shardwright.ir.rules import Rule, Value
from shardwright.ir.sharding import Reduction
from shardwright.lowering.interpreter.interpreter import find_function
from shardwright.lowering.interpreter.random_inputs import random_inputs
from shardwright.lowering.probe.soundness import MESHES, check_op, spread_signatures

_OTHER = {Reduction.SUM: Reduction.MAX, Reduction.MAX: Reduction.MIN, Reduction.MIN: Reduction.MAX}
_CONTEXT = context()
_MORE_SEEDS = (11, 12, 13)


class Fate(StrEnum):
    """The outcome of a mutant."""

    NOTICED = "noticed"
    MISSED = "missed"
    WEAKER = "no new signature"
    TRUE = "true"


@dataclass(frozen=True)
class Use:
    module: ModuleOp
    inputs: Sequence[torch.Tensor]
    rule: Rule
    defined: bool

    @staticmethod
    def of(sample: OpSample) -> Use:
        module = parse(sample.module, _CONTEXT)
        op = the_op(module)
        inputs = random_inputs(find_function(module))
        return Use(module, inputs, op.rule(), sample.overload not in UNDEFINED)


def the_op(module: ModuleOp) -> ComputeOp:
    """Return the one op that computes."""
    return next(op for op in module.walk() if isinstance(op, ComputeOp))


def mutants(rule: Rule, floats: Sequence[bool]) -> Iterator[tuple[str, Rule]]:
    """
    Yield every mutant of a rule under a name.

    Args:
        floats: whether each operand is of floating point, so that it can be a partial sum.
    """
    for factor, kind in rule.reductions.items():
        rest = {f: k for f, k in rule.reductions.items() if f != factor}
        yield f"reduction of {factor} dropped", replace(rule, reductions=rest)
        yield f"reduction of {factor} changed", replace(rule, reductions={**rest, factor: _OTHER[kind]})
    for factor in sorted(rule.replicated):
        yield f"mark of {factor} removed", replace(rule, replicated=rule.replicated - {factor})
    for operand in sorted(rule.additive):
        yield f"operand {operand} added everywhere", replace(rule, additive=rule.additive - {operand})
    for factor in rule.indexed:
        yield f"{factor} not indexed", replace(rule, indexed={})
    for index, is_float in enumerate(floats):
        if is_float and frozenset({index}) not in rule.linear:
            yield f"linear in operand {index}", replace(rule, linear=(*rule.linear, frozenset({index})))
    for side, values in (("operands", rule.operands), ("results", rule.results)):
        for index, value in enumerate(values):
            for what, edited, sizes in _edits(value, rule):
                changed = (*values[:index], edited, *values[index + 1 :])
                whole = rule.replicated | (sizes.keys() - rule.sizes.keys())
                name = f"{what} in {side[:-1]} {index}"
                yield name, replace(rule, sizes=sizes, replicated=whole, **{side: changed})


def _edits(value: Value, rule: Rule) -> Iterator[tuple[str, Value, dict[str, int]]]:
    sizes = dict(rule.sizes)
    for d, dim in enumerate(value):
        if len(dim) == 1 and sizes[dim[0]] > 1:
            own = f"{dim[0]}_alone"
            yield f"dim {d} without {dim[0]}", (*value[:d], (own,), *value[d + 1 :]), {**sizes, own: sizes[dim[0]]}
        for e in range(d + 1, len(value)):
            other = value[e]
            if len(dim) == len(other) == 1 and dim != other and sizes[dim[0]] == sizes[other[0]] > 1:
                exchanged = [*value]
                exchanged[d], exchanged[e] = other, dim
                yield f"dims {d} and {e} exchanged", tuple(exchanged), sizes


def fates(
    samples: Sequence[OpSample],
    known: Collection[str] = (),
    tell: Callable[[str, Fate | None], None] = lambda name, fate: None,
) -> dict[str, Fate]:
    """
    Return the outcome of each mutant of one row, given all samples of the row.

    Args:
        known: mutants to leave out.
        tell: called with a mutant's name before it is tried, and with its outcome afterwards.
    """
    by_name: dict[str, list[tuple[Use, Rule]]] = {}
    for sample in samples:
        use = Use.of(sample)
        floats = ["float" in dtype_of(value) for value in the_op(use.module).args]
        for name, mutant in mutants(use.rule, floats):
            by_name.setdefault(name, []).append((use, mutant))
    outcomes: dict[str, Fate] = {}
    for name in [name for name in by_name if name not in known]:
        tell(name, None)
        outcomes[name] = Fate.WEAKER
        for use, mutant in by_name[name]:
            outcomes[name] = max(outcomes[name], fate_of(use, mutant), key=_BY_WEIGHT.index)
            if outcomes[name] is Fate.NOTICED:
                break
        tell(name, outcomes[name])
    return outcomes


_BY_WEIGHT = (Fate.WEAKER, Fate.TRUE, Fate.MISSED, Fate.NOTICED)


def fate_of(use: Use, mutant: Rule) -> Fate:
    """Return the outcome of a mutant on one sample."""
    # Declared indices change only the meaning of a signature.
    known = use.rule if mutant.indexed == use.rule.indexed else None
    if known is not None and not any(_new(known, mutant)):
        return Fate.WEAKER
    with ruled_by(use.module, mutant):
        if not check_op(use.module, use.inputs, thorough=False, defined=use.defined, known=known).holds:
            return Fate.NOTICED
        for seed in _MORE_SEEDS:
            inputs = random_inputs(find_function(use.module), seed)
            if not check_op(use.module, inputs, defined=use.defined, known=known).holds:
                return Fate.MISSED
    return Fate.TRUE


def _new(rule: Rule, mutant: Rule) -> Iterator[bool]:
    for mesh in MESHES:
        known = set(spread_signatures(rule, mesh, uneven=True))
        yield from (found not in known for found in spread_signatures(mutant, mesh, uneven=True))


@contextmanager
def ruled_by(module: ModuleOp, rule: Rule) -> Iterator[None]:
    """Replace the rule of the one op of a module, for the duration of the context."""
    kind = type(the_op(module))
    own = kind.rule
    kind.rule = lambda _: rule  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        kind.rule = own  # pyright: ignore[reportAttributeAccessIssue]
