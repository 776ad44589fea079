"""
The cost of an op on one device: a measured time, a fitted roofline of its family, or the plain roofline.

The plain roofline of a kind of device takes `max(flops / rate, bytes / bandwidth) + launch`. A fitted roofline
has the rates of a family of ops and a dtype, and the fraction of each rate that is reached at a number of FLOPs, or
bytes: a batch of 32 does not cost 32 batches of 1. Units are SI.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .cluster import Device
from .op_rate import OpRate

VIEWS = "views"
"""The cost class of ops that give the same elements another shape: they move and compute nothing."""

COPY = "copy"
"""The cost class of data movement within a device: sums in place, zeros for partial values."""

ELEMENTWISE = "elementwise"

MULTIPLYING = frozenset({"contractions", "attention", "windows", "linalg"})
"""Cost classes of ops with more operations per byte than others; rates of other classes do not apply to them."""


@dataclass(frozen=True)
class OpWork:
    """
    The work of one op on one device, which computes its part.

    family   the cost class: the file of `ir/ops` that has the op's row
    dtype    name of the dtype of the computation: the first floating-point dtype of the op's tensors
    flops    floating-point operations
    bytes    bytes read and written
    key      the op with its local shapes and arguments, for measured times: `mm(float32[64x32], float32[32x16])`;
             empty if no key was asked for
    joins    whether a kernel that another op launches computes this op too
    launches number of kernels that share the work
    """

    family: str
    dtype: str
    flops: float
    bytes: float
    key: str = ""
    joins: bool = False
    launches: int = 1


@dataclass(frozen=True)
class KernelPart:
    """
    The share of one op in a kernel that computes several.

    Args:
        moved: positions, operands first, of its operands and results that the kernel reads or writes for it.
        launches: whether this op pays for the launch of the kernel.
    """

    moved: frozenset[int]
    launches: bool


def op_seconds(device: Device, work: OpWork, *, joins: bool = False) -> float:
    """
    Return the seconds of `work` on a device: as measured, else by the fitted rate, else by the roofline.

    Empty work takes no time, except views with a measured time or a fitted launch.

    Args:
        joins: whether it is part of a larger op, so that it is priced at the best rates, without a launch.
    """
    if joins or work.joins:
        moves = bool(work.flops or work.bytes)
        return op_rate(device, work.family, work.dtype).least_seconds(work.flops, work.bytes) if moves else 0.0
    if work.key and (measured := device.measured(work.key)) is not None:
        return measured
    if not (work.flops or work.bytes):
        views = device.fitted(VIEWS, "") if work.family == VIEWS else None
        return views.launch if views is not None else 0.0
    rate = op_rate(device, work.family, work.dtype)
    return rate.seconds(work.flops, work.bytes) + (work.launches - 1) * rate.launch


def op_rate(device: Device, family: str, dtype: str) -> OpRate:
    """
    Return the fitted rate of a family and dtype, else the most specific fitted default, else the plain roofline.

    A memory-bound op without a rate for its dtype or family takes a fitted rate of another dtype.
    """
    rates = device.rates_by_use
    if (rate := rates.get((family, dtype))) is None:
        rate = rates[family, dtype] = next(_rates(device, family, dtype))
    return rate


def _rates(device: Device, family: str, dtype: str) -> Iterator[OpRate]:
    """Yield the rates that may stand for a family and dtype, best first."""
    asked = [(family, dtype), (family, ""), ("", dtype), ("", "")]
    if family not in MULTIPLYING:
        asked += [(name, rate.dtype) for name in (family, ELEMENTWISE) for rate in device.rates]
    yield from filter(None, (device.fitted(*key) for key in asked))
    yield OpRate(family, dtype, device.rate(dtype), device.memory_bandwidth, device.launch)
