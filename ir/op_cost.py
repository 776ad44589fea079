"""
What an op costs on one device: a measured time, a fitted roofline of its family, or the plain roofline.

The plain roofline of a kind of device takes `max(flops / rate, bytes / bandwidth) + launch`. A fitted one has rates of
its own for a family of ops and a dtype, and says what part of each is reached at which number of FLOPs, or bytes: a
batch of 32 does not cost 32 batches of 1. Units are SI.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .cluster import Device
from .op_rate import OpRate

VIEWS = "views"
"""The class of cost of ops that give the same elements another shape: they move and compute nothing."""

COPY = "copy"
"""The class of cost of what moves within a device: sums in place, zeros for partial values."""

ELEMENTWISE = "elementwise"

MULTIPLYING = frozenset({"contractions", "attention", "windows", "linalg"})
"""Classes of cost whose ops do more per byte than others, so that the rates of these say nothing of them."""


@dataclass(frozen=True)
class OpWork:
    """
    What one op does on one device, with its own part.

    family   the file of `ir/ops` that the op has its row in, which is its class of cost
    dtype    that it computes in, by name: the first floating-point one of its tensors
    flops    floating-point operations
    bytes    read and written
    key      the op with its local shapes and arguments, for measured times: `mm(float32[64x32], float32[32x16])`;
             empty where nobody asks
    joins    whether it is done by a kernel of several ops that another of them launches
    """

    family: str
    dtype: str
    flops: float
    bytes: float
    key: str = ""
    joins: bool = False


@dataclass(frozen=True)
class KernelPart:
    """
    What one op does of a kernel that computes several.

    Args:
        moved: by position, operands first, which of its operands and results the kernel reads or writes for it.
        launches: whether the launch of the kernel counts as its own.
    """

    moved: frozenset[int]
    launches: bool


def op_seconds(device: Device, work: OpWork, *, joins: bool = False) -> float:
    """
    The time of `work` on a device: as measured, else by the fitted rate, else the roofline.

    Nothing takes no time, but for views where they were measured or their launch was fitted.

    Args:
        joins: whether it is part of a larger op, so that its launch does not count, nor that it is small.
    """
    if joins or work.joins:
        moves = bool(work.flops or work.bytes)
        return op_rate(device, work.family, work.dtype).least_seconds(work.flops, work.bytes) if moves else 0.0
    if work.key and (measured := device.measured(work.key)) is not None:
        return measured
    if not (work.flops or work.bytes):
        views = device.fitted(VIEWS, "") if work.family == VIEWS else None
        return views.launch if views is not None else 0.0
    return op_rate(device, work.family, work.dtype).seconds(work.flops, work.bytes)


def op_rate(device: Device, family: str, dtype: str) -> OpRate:
    """
    The fitted rate of a family and dtype, else of all others, else the plain roofline of the device.

    What goes over memory, and has no rate of its own dtype or family, goes as the next best that was fitted does.
    """
    known = device.rates_by_use
    if (rate := known.get((family, dtype))) is None:
        rate = known[family, dtype] = next(_rates(device, family, dtype))
    return rate


def _rates(device: Device, family: str, dtype: str) -> Iterator[OpRate]:
    """The rates that may stand for a family and dtype, the best first."""
    asked = [(family, dtype), (family, ""), ("", dtype), ("", "")]
    if family not in MULTIPLYING:
        asked += [(each, rate.dtype) for each in (family, ELEMENTWISE) for rate in device.rates]
    yield from filter(None, (device.fitted(*each) for each in asked))
    yield OpRate(family, dtype, device.rate(dtype), device.memory_bandwidth, device.launch)
