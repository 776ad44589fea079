"""The dynamic program over contiguous layers, compared with all divisions."""

import itertools
import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
from launches import covering

from shardwright.passes.stages.partition import Partition, StageCost, partition

DATA = Path(__file__).parents[2] / "data" / "amp_layer_costs.json"
BATCH = 32


def by_brute_force(layers: int, stages: int, batches: int, compute: StageCost, communicate: StageCost) -> Partition:
    """Return the cheapest of all divisions."""
    found: list[tuple[float, tuple[int, ...]]] = []
    for cuts in itertools.combinations(range(1, layers), stages - 1):
        bounds = (0, *cuts, layers)
        pairs = list(enumerate(itertools.pairwise(bounds)))
        seconds = [compute(stage, a, b) for stage, (a, b) in pairs]
        sent = sum(communicate(stage, a, b) for stage, (a, b) in pairs)
        found.append(((batches - 1) * max(seconds) + sum(seconds) + sent, bounds))
    seconds, bounds = min(found)
    return Partition(bounds, seconds)


def random_costs(layers: int, stages: int, random: Random) -> tuple[StageCost, StageCost]:
    """Return costs with stages of different speeds and some expensive edges."""
    seconds = [random.choice([0.1, 1.0, 5.0]) * random.random() for _ in range(layers)]
    speeds = [random.choice([1.0, 2.0, 0.5]) for _ in range(stages)]
    keys = itertools.product(range(stages), range(layers), range(layers + 1))
    edges = {key: random.random() * random.choice([0, 1, 9]) for key in keys}
    return (lambda i, a, b: sum(seconds[a:b]) / speeds[i]), (lambda i, a, b: edges[i, a, b])


@pytest.mark.parametrize("seed", range(60))
def test_equals_brute_force_with_edges_and_speeds(seed: int):
    random = Random(seed)
    layers = random.randint(3, 9)
    stages, batches = random.randint(1, min(layers, 5)), random.randint(1, 9)
    costs = random_costs(layers, stages, random)
    found, best = (run(layers, stages, batches, *costs) for run in (partition, by_brute_force))
    assert found.seconds == pytest.approx(best.seconds, rel=1e-12)
    assert len(found.bounds) == stages + 1


def amp_costs(profile: str, tensor: str, micro_batch: int) -> tuple[int, StageCost, StageCost]:
    """
    Return AMP's layers and costs on P3.8xlarge: a layer takes three forwards, and values for the next stage cross a
    slow link between nodes, here after every second stage (supplement 6.2).
    """
    forward = json.loads(DATA.read_text())[profile]["forward_s"][tensor]
    sums = list(itertools.accumulate((3 * micro_batch * seconds for seconds in forward), initial=0.0))
    rates = (170e9 / 32, 10e9 / 32)
    volume = 1024 * (1024 if profile.startswith("gpt2") else 81)
    last = len(forward)

    def communicate(stage: int, first: int, end: int) -> float:
        if end == last:
            return 0.0
        vocabulary = profile.startswith("gpt2") and end == last - 1
        return micro_batch * (1024 * 52256 if vocabulary else volume) / rates[stage % 2]

    return last, lambda stage, first, end: sums[end] - sums[first], communicate


def least_of_all_cuts(layers: int, stages: int, batches: int, compute: StageCost, communicate: StageCost) -> float:
    """Return the least time of all contiguous cuts: 1.6 million for 8 stages of 30 layers."""
    cuts = np.array(list(itertools.combinations(range(1, layers), stages - 1)))
    ends = np.full((len(cuts), 1), layers)
    bounds = np.concatenate([np.zeros_like(ends), cuts, ends], axis=1)
    largest, total = np.zeros(len(cuts)), np.zeros(len(cuts))
    for stage in range(stages):
        table = np.array([[compute(stage, a, b) for b in range(layers + 1)] for a in range(layers + 1)])
        sent = np.array([communicate(stage, 0, b) for b in range(layers + 1)])
        seconds = table[bounds[:, stage], bounds[:, stage + 1]]
        largest = np.maximum(largest, seconds)
        total += seconds + sent[bounds[:, stage + 1]]
    return float((total + (batches - 1) * largest).min())


TENSORS = {"gpt2_G4": "1", "gpt2_P3": "4", "transgan_P3": "2"}
"""The degree of tensor parallelism of each profile."""


@pytest.mark.parametrize(("stages", "profile"), covering([2, 4, 8], TENSORS, every=3))
def test_equals_brute_force_on_amps_profiles(stages: int, profile: str):
    for micro_batch in (1, 8):
        layers, compute, communicate = amp_costs(profile, TENSORS[profile], micro_batch)
        found = partition(layers, stages, BATCH // micro_batch, compute, communicate)
        least = least_of_all_cuts(layers, stages, BATCH // micro_batch, compute, communicate)
        assert found.seconds == pytest.approx(least, rel=1e-9)


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ValueError, match="2 layers cannot be divided among 3 stages"):
        partition(2, 3, 1, lambda i, a, b: 1.0, lambda i, a, b: 0.0)
