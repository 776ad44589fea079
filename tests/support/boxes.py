"""Boxes of tensors, in tests of state that moves."""

from shardwright.ir.state_moves import Box


def relative(box: Box, whole: Box) -> tuple[slice, ...]:
    """Where a box is in a tensor that has the part `whole`."""
    return tuple(slice(b - start, e - start) for (b, e), (start, _) in zip(box, whole, strict=True))
