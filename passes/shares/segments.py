"""Segments of a model: runs of layers that have ratios of their own (HAP 5.2)."""

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
    Mark every op with its segment, and return how many there are.

    Args:
        count: at most so many, of about equal time to compute; None: one for each layer (`h.3` of a model whose
            layers are numbered, else its direct submodules).
    """
    times: dict[str, float] = {}
    for op in view.ops:
        if BACKWARD not in op.attributes and not is_update(op) and (layer := block_of(layer_of(op))):
            times.setdefault(layer, 0.0)
    for op in view.ops:
        if (layer := block_of(layer_of(op))) in times and op.signature is not None:
            times[layer] += seconds(op, op.signature)
    numbers = _numbered(times, count)
    found: dict[SSAValue, int] = {}
    for op in view.ops:
        segment = _segment(op, numbers, found)
        op.attributes.pop(SEGMENT, None)
        if segment:
            op.attributes[SEGMENT] = IntegerAttr(segment, i64)
        found |= dict.fromkeys(op.outs, segment)
        for value in op.args:
            found.setdefault(value, segment)
    return max(numbers.values(), default=0) + 1


def block_of(layer: str) -> str:
    """The layer up to its first number (`h.3` of `h.3.attn.c_proj`), or its first component."""
    parts = layer.split(".")
    at = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
    return ".".join(parts[: at + 1])


def _numbered(times: dict[str, float], count: int | None) -> dict[str, int]:
    """Layers, in order, to segments."""
    if count is None:
        return {layer: number for number, layer in enumerate(times)}
    total = sum(times.values()) or 1.0
    ends = itertools.accumulate(times.values())
    middles = ((end - time / 2) / total for end, time in zip(ends, times.values(), strict=True))
    return {layer: min(int(middle * count), count - 1) for layer, middle in zip(times, middles, strict=True)}


def _segment(op: ComputeOp, numbers: dict[str, int], found: dict[SSAValue, int]) -> int:
    """That of its layer; else an update's is its parameter's, another op's that of what it reads last."""
    if isinstance(op, TrainOp):
        return found.get(op.args[0], 0)
    if (layer := block_of(layer_of(op))) in numbers:
        return numbers[layer]
    made = [found[value] for value in op.args if value in found and not isinstance(value, BlockArgument)]
    return made[-1] if made else next((found[value] for value in op.args if value in found), 0)
