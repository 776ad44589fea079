"""Fitting constants to measured times recovers known constants, also with outliers and expected values."""

import math
import random

import pytest
from _fit_constants import Constant, fit_constants

from shardwright.ir.topology import Host, Level, Topology
from shardwright.ir.topology_cost import topology_costs

SIZES = [4.0**i for i in range(6, 14)]
SETTINGS = [(2, 1), (2, 4), (4, 2), (8, 1), (8, 4)]
TRUE = {"start": 6e-6, "hop": 2e-6, "step": 9e-6, "inside": 200e9, "nic": 20e9}


def ring_seconds(constants):
    """Return the seconds of all-gathers of all sizes in all settings."""
    found = []
    for hosts, devices in SETTINGS:
        inside = Level("inside", constants["hop"], constants["inside"])
        nic = Level("nic", constants["step"], constants["nic"], constants["start"])
        topology = Topology((inside, nic), (Host(devices, "inside", "nic", count=hosts),))
        alpha, beta = topology_costs(topology, "all_gather", (tuple(range(hosts * devices)),))
        found += [alpha + beta * size for size in SIZES]
    return found


def expected(factor: float = 10.0):
    return [Constant(name, value * 2.5, factor) for name, value in TRUE.items()]


def test_known_constants_of_a_topology_are_recovered():
    fitted = fit_constants(ring_seconds, ring_seconds(TRUE), expected())
    for name in ("start", "hop", "step", "nic"):
        assert fitted.constants[name] == pytest.approx(TRUE[name], rel=0.05), name
    assert max(map(abs, fitted.errors)) < 0.01


def test_outliers_count_less():
    generator = random.Random(0)
    measured = [seconds * math.exp(generator.gauss(0.0, 0.02)) for seconds in ring_seconds(TRUE)]
    for index in range(0, len(measured), 9):
        measured[index] *= 5.0
    fitted = fit_constants(ring_seconds, measured, expected())
    assert fitted.constants["nic"] == pytest.approx(TRUE["nic"], rel=0.1)
    assert fitted.constants["step"] == pytest.approx(TRUE["step"], rel=0.1)
    assert sum(error < -1.0 for error in fitted.errors) == len(range(0, len(measured), 9))


def test_a_constant_without_measurements_keeps_its_expected_value():
    constants = [Constant("rate", 1.0), Constant("other", 7.0), Constant("held", 2.0, 1.0)]
    fitted = fit_constants(lambda c: [c["held"] / c["rate"]] * 4, [8.0] * 4, constants, noise=0.01)
    assert fitted.constants["rate"] == pytest.approx(0.25, rel=0.01)
    assert fitted.constants["other"] == pytest.approx(7.0)
    assert fitted.constants["held"] == 2.0


def test_times_must_be_above_zero():
    with pytest.raises(ValueError, match="expected measured times above 0 s, found 0"):
        fit_constants(lambda c: [1.0], [0.0], [Constant("rate", 1.0)])
