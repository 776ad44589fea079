"""Rates are recovered from measurements with outliers."""

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.ir.cluster_fields import SECONDS
from shardwright.ir.op_cost import OpWork
from shardwright.ir.op_rate import OpRate
from shardwright.runtime.profile.op_fit import Sample, fit_rate, fit_rates

Work = tuple[float, float]

PRODUCTS: list[Work] = [
    (2.0 * m * k * n, 4.0 * (m * k + k * n + m * n))
    for m in (8, 32, 128, 512, 2048)
    for k in (16, 64, 256, 1024)
    for n in (16, 64, 256, 1024)
]
"""Matrix products from launch-bound to large ones, some bound by operations and some by bytes."""

STREAMS: list[Work] = [(10.0**e, 10.0**e * b) for e in (2, 3, 4, 5, 6, 7) for b in (8, 12, 16) for _ in range(3)]
"""Elementwise ops."""

STEADY = OpRate("x", "float32", 5e10, 1e10, 5e-6)
RISING = OpRate("x", "float32", 5e10, 1e10, 5e-6, ((1e3, 0.1), (1e6, 0.6), (1e8, 1.0)))
CACHED = OpRate("x", "float32", 5e10, 1e10, 4e-6, (), ((1e3, 0.7), (1e6, 3.0), (1e7, 1.0)))
BOTH = OpRate("x", "float32", 5e10, 1e10, 5e-6, RISING.curve, ((1e4, 0.5), (1e7, 1.0)))


def measured(truth: OpRate, works: Sequence[Work], seed: int, outliers: float = 0.1) -> list[Sample]:
    """Return times with noise of 3 %, some of them 2 to 20 times too long."""
    drawn = random.Random(seed)

    def seconds(flops: float, moved: float) -> float:
        late = drawn.uniform(2, 20) if drawn.random() < outliers else 1.0
        return truth.seconds(flops, moved) * drawn.gauss(1, 0.03) * late

    return [(flops, moved, seconds(flops, moved)) for flops, moved in works]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("truth", "works"),
    [(STEADY, PRODUCTS), (RISING, PRODUCTS), (BOTH, PRODUCTS), (STEADY, STREAMS), (CACHED, STREAMS)],
    ids=["steady products", "rising products", "products and bytes", "steady streams", "cached streams"],
)
def test_times_are_recovered_from_measurements_with_outliers(truth: OpRate, works: list[Work], seed: int):
    rate, errors = fit_rate("x", "float32", measured(truth, works, seed))
    missed = [abs(rate.seconds(*work) / truth.seconds(*work) - 1) for work in works]
    assert statistics.median(missed) < 0.03
    assert statistics.quantiles(missed, n=10)[-1] < 0.12
    assert len(errors) == len(works)


def test_a_roofline_without_a_curve_is_recovered_as_such():
    rate, _ = fit_rate("x", "float32", measured(STEADY, PRODUCTS, 0))
    assert (rate.flops, rate.bandwidth, rate.launch) == pytest.approx((5e10, 1e10, 5e-6), rel=0.05)
    assert rate.curve == rate.moving_curve == ()


def test_the_largest_ops_reach_the_rates():
    rate, _ = fit_rate("x", "float32", measured(RISING, PRODUCTS, 1))
    assert rate.curve[-1][1] == 1.0
    # The last knot depends on one sample, which is slightly off.
    assert rate.flops == pytest.approx(5e10, rel=0.12)
    assert [size for size, _ in rate.curve] == sorted({size for size, _ in rate.curve})


def test_errors_are_predicted_over_measured_minus_one():
    samples = measured(STEADY, PRODUCTS, 2)
    rate, errors = fit_rate("x", "float32", samples)
    assert errors == pytest.approx([rate.seconds(f, b) / t - 1 for f, b, t in samples])


@pytest.mark.parametrize(
    ("work", "flops", "bandwidth"),
    [
        # Nothing is bound by operations: their rate is the highest observed, 1 for every 8 bytes at 1e10 bytes/s.
        (lambda e: (e, 8 * e), 1.25e9, 1e10),
        # There are no operations: their rate is only known to be at least the rate of the bytes.
        (lambda e: (0.0, 8 * e), 1e10, 1e10),
        # Nothing is bound by bytes.
        (lambda e: (1000 * e, e), 5e10, 5e7),
    ],
    ids=["no op is bound by operations", "no operations", "no op is bound by bytes"],
)
def test_a_rate_without_effect_is_the_highest_observed(work: Callable[[float], Work], flops: float, bandwidth: float):
    works = [work(10.0**e) for e in (4, 5, 6, 7)]
    rate, _ = fit_rate("x", "", [(f, b, STEADY.seconds(f, b)) for f, b in works])
    assert (rate.flops, rate.bandwidth) == pytest.approx((flops, bandwidth), rel=0.05)


@given(
    st.lists(
        st.tuples(st.floats(1, 1e12), st.just(0.0) | st.floats(1, 1e10), st.floats(1e-7, 1e2)), min_size=1, max_size=12
    )
)
def test_fitted_rates_are_positive_and_finite(samples: list[Sample]):
    rate, errors = fit_rate("x", "", samples)
    assert all(0 < value < math.inf for value in (rate.flops, rate.bandwidth))
    assert SECONDS.least <= rate.launch < math.inf
    assert all(math.isfinite(error) for error in errors)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "no measurements of softmaxes in float32"),
        ([(1.0, 1.0, 0.0)], r"a measurement of softmaxes in float32 has .* = \(1.0, 1.0, 0.0\)"),
        ([(0.0, 0.0, 1.0)], "expected some work in a time above 0"),
    ],
)
def test_empty_measurements_are_refused(samples: list[Sample], message: str):
    with pytest.raises(ValueError, match=message):
        fit_rate("softmaxes", "float32", samples)


def test_each_family_has_its_rate_and_others_share_one_of_memory_bound_ops():
    rates = {
        "elementwise": OpRate("elementwise", "float32", 5e10, 2e10, 3e-6),
        "contractions": OpRate("contractions", "float32", 1e11, 1e10, 3e-6),
    }
    works = [OpWork("elementwise", "float32", n, 8 * n) for n in (1e3, 1e5, 1e6, 1e7)]
    works += [OpWork("contractions", "float32", 1e3 * n, n) for n in (1e3, 1e5, 1e6, 1e7)]
    fitted = fit_rates([(work, rates[work.family].seconds(work.flops, work.bytes)) for work in works])
    by_family = {rate.family: rate for rate, _ in fitted}
    assert by_family["elementwise"].bandwidth == pytest.approx(2e10, rel=0.02)
    assert by_family["contractions"].flops == pytest.approx(1e11, rel=0.02)
    assert by_family[""] == replace(by_family["elementwise"], family="")
    assert max(abs(error) for _, errors in fitted for error in errors) < 0.02


def test_views_cost_a_launch():
    work, other = OpWork("views", "float32", 0.0, 0.0), OpWork("copy", "float32", 0.0, 4.0)
    fitted = {rate.family: rate for rate, _ in fit_rates([(work, 1e-6), (work, 2e-6), (work, 2e-6), (other, 1e-5)])}
    assert fitted["views"].launch == 2e-6
    assert fitted.keys() == {"views", "copy", ""}


def test_a_given_bandwidth_is_a_lower_bound():
    slow_where_small = [(2e3, 1e3, 2e-5), (2e6, 1e5, 8e-5), (2e9, 1e7, 2e-2), (2e8, 2e6, 2.2e-3)] * 2
    assert fit_rate("x", "", slow_where_small)[0].bandwidth < 5e9
    assert fit_rate("x", "", slow_where_small, 2e10)[0].bandwidth >= 2e10 * 0.999
