"""Resampling of images: interpolation, grids, padding, and channels that become space."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..rules import Rule, Value
from ..sharding import Reduction
from .common import named, rows, together, windows
from .spec import OpInstance, OpSpec, Shape


def shuffled(op: OpInstance) -> Rule:
    """`pixel_shuffle`, [.., c*r*r, h, w] -> [.., c, h*r, w*r]."""
    channels, image, sizes = _pixels(op.operands[0], op.argument("upscale_factor"), op.results[0])
    return Rule((channels,), (image,), sizes, replicated=frozenset({"ra", "rb"}))


def unshuffled(op: OpInstance) -> Rule:
    """`pixel_unshuffle`, the inverse of `pixel_shuffle`."""
    channels, image, sizes = _pixels(op.results[0], op.argument("downscale_factor"), op.operands[0])
    return Rule((image,), (channels,), sizes, replicated=frozenset({"ra", "rb"}))


def _pixels(channels: Shape, times: int, image: Shape) -> tuple[Value, Value, dict[str, int]]:
    lead, sizes = named(channels[:-3])
    sizes |= {"c": image[-3], "ra": times, "rb": times, "h": channels[-2], "w": channels[-1]}
    return (*lead, ("c", "ra", "rb"), ("h",), ("w",)), (*lead, ("c",), ("h", "ra"), ("w", "rb")), sizes


def channels_shuffled(op: OpInstance) -> Rule:
    """`channel_shuffle`: groups of channels are interleaved, so the dim of channels is not split."""
    return together(op, (1,))


def columns(op: OpInstance) -> Rule:
    """`im2col`, [.., c, h, w] -> [.., c*k, l]: each window becomes a column."""
    image, column, sizes = _columns(op, op.operands[0], op.results[0])
    return Rule((image,), (column,), sizes, replicated=frozenset({"k", "h", "w", "l"}))


def from_columns(op: OpInstance) -> Rule:
    """`col2im`: columns are added at the places of their windows."""
    image, column, sizes = _columns(op, op.results[0], op.operands[0])
    return Rule((column,), (image,), sizes, replicated=frozenset({"k", "h", "w", "l"}))


def _columns(op: OpInstance, image: Shape, column: Shape) -> tuple[Value, Value, dict[str, int]]:
    lead, sizes = named(image[:-3])
    sizes |= {"c": image[-3], "h": image[-2], "w": image[-1], "l": column[-1]}
    sizes["k"] = math.prod(op.argument("kernel_size"))
    return (*lead, ("c",), ("h",), ("w",)), (*lead, ("c", "k"), ("l",)), sizes


_INTERPOLATED = {
    1: ("upsample_nearest1d", "upsample_linear1d", "_upsample_nearest_exact1d"),
    2: (
        "upsample_nearest2d",
        "upsample_bilinear2d",
        "upsample_bicubic2d",
        "_upsample_nearest_exact2d",
        "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa",
    ),
    3: ("upsample_nearest3d", "upsample_trilinear3d", "_upsample_nearest_exact3d"),
}


def _interpolation_rows() -> Iterator[OpSpec]:
    for dims, names in _INTERPOLATED.items():
        yield from rows(" ".join(names), "self", windows(dims), linear="self")
        yield from rows(
            " ".join(f"{name}_backward" for name in names),
            "grad_output",
            windows(dims),
            linear="grad_output",
            localize={"input_size": "result0"},
        )


def _padding_rows() -> Iterator[OpSpec]:
    for dims in (1, 2, 3):
        pads = [f"{kind}_pad{dims}d" for kind in ("reflection", "replication")]
        yield from rows(" ".join(pads), "self", windows(dims), linear="self")
        yield from rows(
            " ".join(f"{pad}_backward" for pad in pads),
            "grad_output self",
            windows(dims),
            linear="grad_output",
        )


def grid_sampler(op: OpInstance) -> Rule:
    """(input [n, c, ..h], grid [n, ..y, p]) -> [n, c, ..y]: grid points may refer to any place in the image."""
    image, grid, sampled, sizes = _grid(op.operands[0], op.operands[1])
    return Rule((image, grid), (sampled,), sizes, replicated=_places(image))


def grid_sampler_backward(op: OpInstance) -> Rule:
    """(grad_output, input, grid) -> (grad_input, grad_grid); one of the results may be an empty placeholder."""
    image, grid, sampled, sizes = _grid(op.operands[1], op.operands[2])
    results = tuple(value if shape else () for value, shape in zip((image, grid), op.results, strict=True))
    reductions = dict.fromkeys(["c", *(dim[0] for dim in grid[1:-1])], Reduction.SUM)
    return Rule((sampled, image, grid), results, sizes, reductions, _places(image))


def _grid(image: Shape, grid: Shape) -> tuple[Value, Value, Value, dict[str, int]]:
    """Return the dims of image, grid and result, and the sizes of the factors."""
    space, before = named(image[2:], "h")
    places, after = named(grid[1:-1], "y")
    sizes = {"n": image[0], "c": image[1], "p": grid[-1], **before, **after}
    return (("n",), ("c",), *space), (("n",), *places, ("p",)), (("n",), ("c",), *places), sizes


def _places(image: Value) -> frozenset[str]:
    return frozenset({"p", *(dim[0] for dim in image[2:])})


def _grid_rows() -> Iterator[OpSpec]:
    names = "grid_sampler_2d grid_sampler_3d"
    yield from rows(names, "input grid", grid_sampler, linear="input")
    yield from rows(
        " ".join(f"{name}_backward" for name in names.split()),
        "grad_output input grid",
        grid_sampler_backward,
        linear="grad_output",
        results=2,
    )


def resampling_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from _interpolation_rows()
    yield from _padding_rows()
    yield from _grid_rows()
    yield from rows("pixel_shuffle", "self", shuffled, linear="self")
    yield from rows("pixel_unshuffle", "self", unshuffled, linear="self")
    yield from rows("channel_shuffle", "self", channels_shuffled, linear="self")
    yield from rows("im2col", "self", columns, linear="self")
    yield from rows("col2im", "self", from_columns, linear="self")
