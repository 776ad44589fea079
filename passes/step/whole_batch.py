"""Why an op needs the whole batch at once, and what the user can do: the texts of `split-batch`'s errors."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import SSAValue

from ...dialects import train
from ...dialects.aten import AtenOp
from ...dialects.compute import ComputeOp, shape_of
from ...ir.ops.normalisation import BATCH_NORMS
from ...ir.rules import Dim, Rule
from ...ir.sharding import Sharding
from ..errors import describe
from .sorted_lists import FACTORIES, SORTS
from .step_view import value_label


def why_whole(op: ComputeOp, over_parts: Mapping[SSAValue, Sharding]) -> tuple[str, str]:
    """
    Return the reason why `op` cannot be micro-batched, by dim and value, and advice for the user.

    Args:
        over_parts: the sharding of each value over the axis of the micro-batches.
    """
    if op.overload in BATCH_NORMS:
        advice = (
            "synchronise its statistics, by decompose-batch-norm first, then split-batch{unrolled=true} and duplex; or"
            " let the model normalise each row by itself, as nn.GroupNorm does; or do not split the batch"
        )
        return f"its statistics are computed over {_first(op, over_parts)}", advice
    if op.overload in FACTORIES:
        cause = f"it takes {_shown(op.args[0])} but does not read its elements"
        return cause, "run detach-factories before search-strategy"
    if op.overload in SORTS:
        advice = (
            "run sort-within-rows before search-strategy or, where that was done, do not split the batch: later ops"
            " depend on which row each of the sorted elements is from"
        )
        return f"it sorts the elements of all rows together, along {_first(op, over_parts)}", advice
    cause, is_merged = _cause(op, over_parts)
    if not is_merged:
        return cause, "do not split the batch"
    advice = "run make-batch-major before search-strategy or, where that was done, do not split the batch"
    return f"{cause}, {_taken_by(op)}", advice


def _cause(op: ComputeOp, over_parts: Mapping[SSAValue, Sharding]) -> tuple[str, bool]:
    """Return the cause, and whether it is that the batch is merged into a dim behind another factor."""
    if train.is_update(op):
        return f"it belongs to the update, which runs once, and reads {_first(op, over_parts)}", False
    rule, split_dims = op.rule(), dict[str | None, str]()
    for value, dims in zip(op.args, rule.operands, strict=True):
        for index, (dim, spread) in enumerate(zip(dims, over_parts[value].dims, strict=True)):
            if spread.axes:
                split_dims.setdefault(rule.leading(dim), f"dim {index} of {_shown(value)}")
    if len(split_dims) > 1:
        return f"it combines rows with one another, by {' and '.join(split_dims.values())}", False
    ((factor, place),) = split_dims.items()
    if factor is not None and (merged := _merged(op, rule, factor)) is not None:
        return f"{place} is {merged}", True
    return f"it needs {place} whole", False


def _merged(op: ComputeOp, rule: Rule, factor: str) -> str | None:
    """Return the dim that has a factor behind another one, or None if the factor comes first in every dim."""
    for values, described in ((op.args, rule.operands), (op.outs, rule.results)):
        for value, dims in zip(values, described, strict=True):
            for index, dim in enumerate(dims):
                if factor in dim and rule.leading(dim) != factor:
                    return f"behind another factor, {_product(rule, dim)}, in dim {index} of {_shown(value)}"
    return None


def _taken_by(op: ComputeOp) -> str:
    user = next((use.operation for value in op.outs for use in value.uses), None)
    while isinstance(user, AtenOp) and (user.spec.view or user.overload == "clone"):
        user = next((use.operation for value in user.outs for use in value.uses), None)
    return f"as {describe(user)} takes it" if user is not None else "which nothing takes"


def _product(rule: Rule, dim: Dim) -> str:
    return " x ".join(str(rule.sizes[factor]) for factor in dim)


def _first(op: ComputeOp, over_parts: Mapping[SSAValue, Sharding]) -> str:
    value = next(value for value in op.args if over_parts[value].split_axes)
    dim = next(index for index, spread in enumerate(over_parts[value].dims) if spread.axes)
    return f"dim {dim} of {_shown(value)}"


def _shown(value: SSAValue) -> str:
    return f"{value_label(value)} {list(shape_of(value))}"
