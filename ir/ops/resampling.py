"""Images at other sizes or places: interpolation, grids, padding, and channels that become space."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..rules import Rule, Value
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
    """`channel_shuffle`: groups of channels take turns, so that the dim of channels stays whole."""
    return together(op, (1,))


def columns(op: OpInstance) -> Rule:
    """`im2col`, [.., c, h, w] -> [.., c*k, l]: each window as a column."""
    image, column, sizes = _columns(op, op.operands[0], op.results[0])
    return Rule((image,), (column,), sizes, replicated=frozenset({"k", "h", "w", "l"}))


def from_columns(op: OpInstance) -> Rule:
    """`col2im`: columns added where their windows are."""
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


def _grid_rows() -> Iterator[OpSpec]:
    for dims, (source, target) in {2: ("h, w", "y, x"), 3: ("d, h, w", "z, y, x")}.items():
        image, grid, result = f"[n, c, {source}]", f"[n, {target}, p]", f"[n, c, {target}]"
        fixed = f"replicated={{{source}, p}}"
        yield from rows(
            f"grid_sampler_{dims}d", "input grid", f"({image}, {grid}) -> ({result}) {fixed}", linear="input"
        )
        yield from rows(
            f"grid_sampler_{dims}d_backward",
            "grad_output input grid",
            f"({result}, {image}, {grid}) -> ({image}, {grid}) reduction={{c, {target}}} {fixed}",
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
