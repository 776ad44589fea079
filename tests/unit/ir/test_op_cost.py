"""Costs of ops on a device: from a table, by a fitted rate with its curve, or by the plain roofline."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.ir.cluster import Device
from shardwright.ir.op_cost import OpWork, op_rate, op_seconds
from shardwright.ir.op_rate import OpRate, efficiency

PLAIN = Device("x", (("float32", 1e12), ("float64", 5e11)), 1e11, 1e9, launch=1e-6)
FITTED = Device(
    "y",
    (("float32", 1e12),),
    1e11,
    1e9,
    launch=1e-6,
    rates=(
        OpRate("contractions", "float32", 2e12, 1e11, 0.0, ((1e6, 0.25), (1e10, 1.0))),
        OpRate("elementwise", "", 1e12, 5e10, 3e-6),
    ),
    table=(("mm(float32[2x2], float32[2x2])", 7.0),),
)


def work(family: str, flops: float, moved: float, dtype: str = "float32", key: str = "") -> OpWork:
    return OpWork(family, dtype, flops, moved, key)


@pytest.mark.parametrize(
    ("device", "of", "seconds"),
    [
        (PLAIN, work("contractions", 1e9, 1e7), 1e-3 + 1e-6),
        (PLAIN, work("contractions", 1e9, 1e9), 1e-2 + 1e-6),
        (PLAIN, work("contractions", 1e9, 1e7, "float64"), 2e-3 + 1e-6),
        (PLAIN, work("views", 0, 0), 0.0),
        (FITTED, work("contractions", 1e10, 1e7), 5e-3),
        (FITTED, work("contractions", 1e8, 1e5), 5e-5 / 0.625),
        (FITTED, work("contractions", 1e8, 1e5, "float64"), 1e-4 + 1e-6),
        (FITTED, work("elementwise", 1e6, 5e7, "int64"), 1e-3 + 3e-6),
        (FITTED, work("reductions", 1e6, 1e7), 2e-4 + 3e-6),
        (FITTED, work("attention", 1e6, 1e7), 1e-4 + 1e-6),
        (FITTED, work("contractions", 16, 48, key="mm(float32[2x2], float32[2x2])"), 7.0),
        (FITTED, work("contractions", 1e10, 1e7, key="mm(float32[9x9], float32[9x9])"), 5e-3),
    ],
)
def test_table_then_fitted_rate_then_roofline(device: Device, of: OpWork, seconds: float):
    assert op_seconds(device, of) == pytest.approx(seconds)


def test_a_curve_is_linear_in_the_logarithm_of_the_size_and_constant_beyond():
    curve = ((1e2, 0.2), (1e4, 0.6), (1e5, 1.2))
    sizes = (1.0, 1e2, 1e3, 1e4, 10**4.5, 1e5, 1e9)
    assert [efficiency(curve, size) for size in sizes] == pytest.approx([0.2, 0.2, 0.4, 0.6, 0.9, 1.2, 1.2])


def test_the_rate_of_all_other_families_comes_before_the_roofline():
    others = Device("z", (("float32", 1e12),), 1e11, 1e9, rates=(OpRate("", "", 1e10, 1e9, 0.0),))
    assert op_seconds(others, work("attention", 1e10, 0)) == pytest.approx(1.0)


def test_memory_bound_families_fall_back_to_another_fitted_rate():
    own = OpRate("reductions", "float32", 1e12, 2e10, 0.0)
    others = OpRate("elementwise", "float32", 1e12, 1e10, 0.0)
    device = Device("z", (("float32", 1e12),), 1e11, 1e9, rates=(others, own))
    assert op_rate(device, "reductions", "int64") == own
    assert op_rate(device, "copy", "int64").bandwidth == 1e10
    assert op_rate(device, "windows", "float32").bandwidth == 1e11


def test_a_view_costs_its_fitted_launch_time():
    device = Device("z", (("float32", 1e12),), 1e11, 1e9, rates=(OpRate("views", "", 1e12, 1e10, 2e-6),))
    assert op_seconds(device, work("views", 0, 0)) == 2e-6
    assert op_seconds(device, work("contractions", 0, 0)) == 0.0


CURVED = OpRate("contractions", "", 1e12, 1e11, 1e-6, ((1e6, 0.1), (1e9, 1.0)), ((1e4, 0.5), (1e7, 1.0)))


@pytest.mark.parametrize(
    ("flops", "moved", "seconds"),
    [
        (1e9, 1e7, 1e-3),
        (1e6, 1e4, 1e-5),
        (1e9, 1e9, 1e-2),
        (1e6, 1e7, 1e-4),
        (1e5, 1e4, 1e-6),
    ],
    ids=["large product", "small product", "large and thin", "thin, of few FLOPs", "on the ridge of both curves"],
)
def test_flops_and_bytes_have_separate_curves(flops: float, moved: float, seconds: float):
    assert CURVED.seconds(flops, moved) == pytest.approx(seconds + 1e-6)


def test_a_thin_product_moves_its_bytes_at_the_full_bandwidth():
    rate = OpRate("contractions", "float16", 30e12, 240e9, 1e-5, ((8e6, 0.004), (2e9, 0.5), (2e12, 0.999)))
    rows, inner, columns = 65536, 4096, 16
    moved = 2.0 * (rows * inner + inner * columns + rows * columns)
    assert rate.seconds(2.0 * rows * inner * columns, moved) == pytest.approx(moved / 240e9 + 1e-5)


_AMOUNTS = st.floats(0.0, 1e12)
_CURVES = st.dictionaries(st.floats(1.0, 1e12), st.floats(0.001, 10.0), max_size=4).map(
    lambda curve: tuple(sorted(curve.items()))
)


@given(_CURVES, _CURVES, _AMOUNTS, _AMOUNTS, st.floats(1.0, 2.0), st.booleans())
def test_more_work_never_takes_less(
    curve: tuple[tuple[float, float], ...],
    moving: tuple[tuple[float, float], ...],
    flops: float,
    moved: float,
    factor: float,
    computes: bool,
):
    rate = OpRate("x", "", 1e10, 1e9, 0.0, curve, moving)
    more = (flops * factor, moved) if computes else (flops, moved * factor)
    assert rate.seconds(*more) >= rate.seconds(flops, moved) * (1 - 1e-9)


@given(_CURVES, st.floats(1.0, 1e12))
def test_a_little_more_work_takes_a_little_longer(curve: tuple[tuple[float, float], ...], flops: float):
    rate = OpRate("x", "", 1e10, 1e9, 0.0, curve)
    steepest = max([1.0, *(10.0 / part for _, part in curve)])
    growth = rate.seconds(flops * (1 + 1e-9), 0.0) / rate.seconds(flops, 0.0) - 1.0
    assert growth <= 1e-3 * steepest
