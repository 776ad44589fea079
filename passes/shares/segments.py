"""Segments of a model: ranges of layers that have separate shares (HAP 5.2)."""

from __future__ import annotations

import itertools

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import BlockArgument, SSAValue

from ...dialects.compute import ComputeOp
from ...dialects.ratios import SEGMENT
from ...dialects.step import BACKWARD
from ...dialects.train import TrainOp, is_update
from ..analysis.durations import ComputeSeconds
from ..step.blocks import layer_of
from ..step.step_view import StepView


def mark_segments(view: StepView, count: int | None, seconds: ComputeSeconds) -> int:
    """
    Mark every op with its segment, and return the number of segments.

    Args:
        count: maximum number of segments, which take about equal time to compute; if None, each layer is a
            segment (`h.3` in a model with numbered layers, else a direct submodule).
    """
    times: dict[str, float] = {}
    for op in view.ops:
        if BACKWARD not in op.attributes and not is_update(op) and (layer := block_of(layer_of(op))):
            times.setdefault(layer, 0.0)
    for op in view.ops:
        if (layer := block_of(layer_of(op))) in times and op.signature is not None:
            times[layer] += seconds(op, op.signature)
    numbers = _numbered(times, count)
    by_value: dict[SSAValue, int] = {}
    for op in view.ops:
        segment = _segment(op, numbers, by_value)
        op.attributes.pop(SEGMENT, None)
        if segment:
            op.attributes[SEGMENT] = IntegerAttr(segment, i64)
        by_value |= dict.fromkeys(op.outs, segment)
        for value in op.args:
            by_value.setdefault(value, segment)
    return max(numbers.values(), default=0) + 1


def block_of(layer: str) -> str:
    """Return the layer's name up to its first number (`h.3` for `h.3.attn.c_proj`), or its first component."""
    parts = layer.split(".")
    at = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
    return ".".join(parts[: at + 1])


def _numbered(times: dict[str, float], count: int | None) -> dict[str, int]:
    """Map layers, in order, to segments."""
    if count is None:
        return {layer: number for number, layer in enumerate(times)}
    total = sum(times.values()) or 1.0
    ends = itertools.accumulate(times.values())
    middles = ((end - time / 2) / total for end, time in zip(ends, times.values(), strict=True))
    return {layer: min(int(middle * count), count - 1) for layer, middle in zip(times, middles, strict=True)}


def _segment(op: ComputeOp, numbers: dict[str, int], found: dict[SSAValue, int]) -> int:
    """Return the segment of the op's layer, or else of the parameter for an update, or of the last operand."""
    if isinstance(op, TrainOp):
        return found.get(op.args[0], 0)
    if (layer := block_of(layer_of(op))) in numbers:
        return numbers[layer]
    segments = [found[value] for value in op.args if value in found and not isinstance(value, BlockArgument)]
    return segments[-1] if segments else next((found[value] for value in op.args if value in found), 0)
