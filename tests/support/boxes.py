"""Boxes of tensors that are spread over ranks."""

from shardwright.ir.state_moves import Box


def relative(box: Box, whole: Box) -> tuple[slice, ...]:
    """Return the slices of a box within a tensor that holds the box `whole`."""
    return tuple(slice(b - start, e - start) for (b, e), (start, _) in zip(box, whole, strict=True))
