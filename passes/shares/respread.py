"""Apply other ratios to a strategy: the same axes on the same dims, with other boundaries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from xdsl.ir import Attribute, SSAValue

from ...dialects.compute import SIGNATURE, ComputeOp
from ...dialects.sharding_attrs import ShardingAttr, SignatureAttr
from ...dialects.step import (
    SHARDING,
    argument_attribute,
    is_regathered,
    merge_argument_attributes,
    set_working_copies,
    working_of,
)
from ...ir.ratios import Ratios, Splits
from ...ir.rules import Rule
from ...ir.sharding import Sharding
from ...ir.signatures import Signature, Split, choices_of, factor_offsets, needs_all_parts, signature
from ..errors import describe
from ..step.factors import Factors
from ..step.step_view import StepView


def respread(view: StepView, ratios: Mapping[int, Ratios]) -> list[str]:
    """
    Divide every signature, home and working copy of a step by `ratios` (by segment).

    An op that needs a part on every device runs replicated on the axes that would leave a device without one; the
    returned reasons name these ops.
    """
    factors, mesh = Factors(view, ratios), view.mesh
    cache: dict[tuple[Rule, Signature, Splits], tuple[Signature, str]] = {}
    reasons: list[str] = []
    for op in view.ops:
        if (given := op.signature) is None:
            continue
        key = (op.rule(), given, factors.of_op(op))
        if key not in cache:
            cache[key] = _divided(op, given, key[2], view)
        divided, reason = cache[key]
        op.attributes[SIGNATURE] = SignatureAttr.of(mesh.name, divided)
        reasons += [f"{describe(op)}: {reason}"] if reason else []
    homes: dict[int, dict[str, Attribute | None]] = {}
    copies: dict[SSAValue, tuple[Sharding, bool]] = {}
    for value in _values(view):
        splits = factors.of_value(value)
        if (working := working_of(value)) is not None:
            copies[value] = splits.sharding(working, mesh), is_regathered(value)
    for given in view.inputs:
        home = argument_attribute(given.argument, SHARDING)
        if isinstance(home, ShardingAttr):
            spread = factors.of_value(given.argument).sharding(home.sharding, mesh)
            homes[given.argument.index] = {SHARDING: ShardingAttr.of(mesh.name, spread)}
    for transfer in view.arrivals:
        if transfer.out_sharding is not None:
            spread = factors.of_value(transfer.result).sharding(transfer.out_sharding.sharding, mesh)
            transfer.out_sharding = ShardingAttr.of(mesh.name, spread)
    merge_argument_attributes(view.func, homes)
    set_working_copies(view.func, mesh.name, copies)
    return reasons


def _values(view: StepView) -> Iterator[SSAValue]:
    yield from (step_input.argument for step_input in view.inputs)
    for op in view.ops:
        yield from op.outs


def _divided(op: ComputeOp, given: Signature, splits: Splits, view: StepView) -> tuple[Signature, str]:
    """Return a signature with the same choices, and the reason why a choice was dropped (empty if none was)."""
    rule, mesh = op.rule(), view.mesh
    chosen = choices_of(rule, given, mesh)[0]
    reason = ""
    while (divided := signature(rule, mesh, chosen, factor_offsets(rule, mesh, chosen, splits))) is None:
        split = [choice.factor for choice in chosen if isinstance(choice, Split)]
        offsets = factor_offsets(rule, mesh, chosen, splits) or {}
        strict = (
            f for f in split if needs_all_parts(rule, f) and len(set(offsets.get(f, ()))) < len(offsets.get(f, ()))
        )
        factor = next(strict, split[0])
        reason = f"is replicated along factor {factor}: every device needs a part of it, and some would get none"
        chosen = [None if isinstance(choice, Split) and choice.factor == factor else choice for choice in chosen]
    return divided, reason
