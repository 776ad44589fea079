"""
Random tensors by position: parts are slices of the whole, bits follow the definition, and statistics look random.

Seeds are fixed, so the statistics are deterministic; a good generator exceeds their limits once in a million.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.ir.counter import Stream, limit_of, step_seed
from shardwright.ir.mesh import Mesh
from shardwright.ir.sharding import DimSharding, Sharding, local_slices
from shardwright.lowering.fused import random_ops
from shardwright.runtime import counter_random as fast
from shardwright.runtime.counter_random import SeedTable

SEED = torch.tensor(step_seed(11, 4))
SIGMAS = 5.0

DRAWS: dict[str, tuple[str, dict[str, Any]]] = {
    "mask": ("random_bernoulli", {"p": 0.3, "dtype": torch.bool}),
    "always": ("random_bernoulli", {"p": 1.0, "dtype": torch.float32}),
    "uniform": ("random_uniform", {"low": -1.0, "high": 2.0, "dtype": torch.float32}),
    "uniform64": ("random_uniform", {"low": 0.0, "high": 1.0, "dtype": torch.float64}),
    "uniform16": ("random_uniform", {"low": 0.0, "high": 1.0, "dtype": torch.bfloat16}),
    "normal": ("random_normal", {"mean": 1.0, "std": 2.0, "dtype": torch.float64}),
    "exponential": ("random_exponential", {"lambd": 2.0, "dtype": torch.float64}),
    "integers": ("random_integers", {"low": -3, "high": 40, "dtype": torch.int64}),
}


def drawn(name: str, module: Any = fast, **more: Any) -> torch.Tensor:
    function, arguments = DRAWS[name]
    return getattr(module, function)(like=None, seed=SEED, **{"stream": 3, **arguments, **more})


@pytest.mark.parametrize("size", [(4, 3, 7), (5, 8), (9,), (), (6, 1), (3, 0), (0, 4)], ids=str)
@pytest.mark.parametrize("name", DRAWS)
def test_the_fast_generator_equals_the_plain_one(name: str, size: tuple[int, ...]):
    tolerance = 1e-12 if name in ("normal", "exponential") else 0.0
    expected = drawn(name, random_ops, size=size)
    torch.testing.assert_close(drawn(name, size=size), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", DRAWS)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_part_is_a_slice_of_the_whole(name: str, data: st.DataObject):
    whole = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    bounds = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in whole]
    start, size = [a for a, _ in bounds], [b - a for a, b in bounds]
    part = drawn(name, size=size, start=start, whole=whole)
    assert torch.equal(part, drawn(name, size=whole)[tuple(slice(a, b) for a, b in bounds)])


@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_the_mask_under_any_sharding_is_a_slice_of_the_mask_of_one_device(data: st.DataObject):
    mesh, axes = Mesh.of(a=2, b=3), data.draw(st.permutations(["a", "b"]))
    shape = data.draw(st.tuples(*[st.integers(6, 11)] * 3))
    places = data.draw(st.lists(st.integers(0, 2), min_size=2, max_size=2))
    dims: list[DimSharding] = []
    for dim, size in enumerate(shape):
        mine = mesh.in_order(axis for axis, place in zip(axes, places, strict=True) if place == dim)
        cuts = data.draw(st.lists(st.integers(0, size), min_size=mesh.parts(mine) - 1, max_size=mesh.parts(mine) - 1))
        dims.append(DimSharding(mine, (0, *sorted(cuts), size) if mine else None))
    x = torch.randn(shape)
    whole, kept = fast.random_dropout(x, SEED, 0.4, stream=1)
    for rank in range(mesh.device_count):
        part = local_slices(shape, Sharding(tuple(dims)), mesh, rank)
        start = [each.start for each in part]
        out, mask = fast.random_dropout(x[part], SEED, 0.4, stream=1, start=start, whole=shape)
        assert torch.equal(mask, kept[part])
        assert torch.equal(out, whole[part])


def test_a_mask_follows_the_definition():
    whole, stream = (3, 4, 5), Stream.of(int(SEED), 2)
    _, kept = fast.random_dropout(torch.ones(whole), SEED, 0.25, stream=2)
    for place in torch.cartesian_prod(*map(torch.arange, whole)).tolist():
        assert bool(kept[tuple(place)]) == (stream.number(whole, place, 2) < limit_of(0.75))


@pytest.mark.parametrize(("p", "kept"), [(0.0, 1.0), (1.0, 0.0)])
def test_dropout_of_nothing_and_of_all(p: float, kept: float):
    x = torch.randn(40)
    out, mask = fast.random_dropout(x, SEED, p, stream=0)
    assert torch.equal(out, x * kept)
    assert torch.equal(mask, torch.full((40,), bool(kept)))


def test_a_tensor_of_probabilities_equals_single_probabilities():
    chances = torch.tensor([0.0, 0.2, 0.9, 1.0]).repeat(50)
    both = drawn("mask", p=chances, size=chances.shape)
    for chance in chances[:4]:
        alone = drawn("mask", p=chance.item(), size=chances.shape)
        assert torch.equal(both[chances == chance], alone[chances == chance])


def test_results_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch):
    whole = drawn("mask", size=(50, 40))
    monkeypatch.setitem(fast._CHUNK, "cpu", 64)
    assert torch.equal(drawn("mask", size=(50, 40)), whole)


@pytest.mark.parametrize("name", [name for name in DRAWS if name != "always"])
def test_independent_draws_are_equal_only_for_the_same_part(name: str):
    def part(start: Sequence[int], module: Any = fast) -> torch.Tensor:
        return drawn(name, module, size=(40, 30), start=start, whole=(80, 60), independent=True)

    assert torch.equal(part((0, 30)), part((0, 30)))
    assert torch.equal(part((0, 30)), part((0, 30), random_ops))
    assert not torch.equal(part((0, 30)), part((40, 0)))
    assert not torch.equal(part((0, 0)), drawn(name, size=(40, 30)))


def chi_square(observed: torch.Tensor, expected: float) -> float:
    """Return the chi-square statistic in standard deviations from its mean."""
    freedom = observed.numel() - 1
    statistic = ((observed.double() - expected) ** 2 / expected).sum().item()
    return (statistic - freedom) / (2 * freedom) ** 0.5


@pytest.mark.parametrize(
    ("name", "to_unit"),
    [
        ("uniform", lambda x: (x + 1) / 3),
        ("uniform64", lambda x: x),
        ("normal", lambda x: torch.special.ndtr((x - 1) / 2)),
        ("exponential", lambda x: -torch.expm1(-2 * x)),
    ],
)
def test_values_have_the_expected_distribution(name: str, to_unit: Callable[[torch.Tensor], torch.Tensor]):
    unit = to_unit(drawn(name, size=(500, 400)))
    assert 0 <= unit.min()
    assert unit.max() <= 1
    assert abs(chi_square(torch.histc(unit.double(), 256, 0, 1), unit.numel() / 256)) < SIGMAS


def test_integers_are_uniform():
    values = drawn("integers", size=(500, 430))
    assert (values.min(), values.max()) == (-3, 39)
    assert abs(chi_square(torch.bincount(values.flatten() + 3), 5000)) < SIGMAS


@pytest.mark.parametrize("width", [1, 2, 7, 64])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_neighbours_in_a_mask_are_independent(width: int, p: float):
    """Every pattern of eight successive bits, also across rows of `width`, has its expected frequency."""
    mask = drawn("mask", p=p, size=(25_000 * 8, width))[: 25_000 * 8 // width // 8 * 8].reshape(-1, 8).long()
    patterns = torch.bincount((mask << torch.arange(8)).sum(1), minlength=256)
    ones = torch.tensor([i.bit_count() for i in range(256)])
    expected = len(mask) * p**ones * (1 - p) ** (8 - ones)
    common = expected > 10
    statistic = ((patterns - expected) ** 2 / expected)[common].sum().item()
    assert statistic < common.sum() + SIGMAS * (2 * common.sum()) ** 0.5


def correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the correlation in standard deviations of the correlation of independent numbers."""
    pair = torch.stack([one.flatten().double(), other.flatten().double()])
    return torch.corrcoef(pair)[0, 1].item() * one.numel() ** 0.5


def test_dims_streams_and_steps_are_not_correlated():
    def mask(step: int, stream: int) -> torch.Tensor:
        seed = torch.tensor(step_seed(0, step))
        return fast.random_bernoulli(0.1, None, seed, stream=stream, dtype=torch.float32, size=(16, 64, 96))

    masks = {(step, stream): mask(step, stream) for step in range(4) for stream in range(4)}
    first = masks[0, 0]
    for shift in (1, 2, 3, 5, 16):
        for dim in range(3):
            length = first.size(dim) - shift
            if length > 0:
                ahead, behind = first.narrow(dim, 0, length), first.narrow(dim, shift, length)
                assert abs(correlation(ahead, behind)) < SIGMAS, (dim, shift)
    keys = list(masks)
    for i, key in enumerate(keys):
        for other in keys[i + 1 :]:
            assert abs(correlation(masks[key], masks[other])) < SIGMAS, (key, other)


@pytest.mark.parametrize("independent", [False, True])
def test_a_table_of_streams_gives_the_numbers_of_its_seed(independent: bool):
    """This includes more than a hundred streams, and steps with different seeds."""
    table = SeedTable(torch.device("cpu"))
    for step in range(3):
        seed = step_seed(5, step)
        table.begin(seed)
        for stream in range(0, 200, 2):
            options = {"stream": stream, "dtype": torch.float32, "size": (3, 5), "independent": independent}
            found = fast.random_uniform(None, table, 0.0, 1.0, **options)
            assert torch.equal(found, fast.random_uniform(None, torch.tensor(seed), 0.0, 1.0, **options))


def test_a_table_keeps_its_memory():
    table = SeedTable(torch.device("cpu"))
    table.begin(1)
    places = [table.of(stream)[0].data_ptr() for stream in range(100)]
    table.begin(2)
    assert [table.of(stream)[0].data_ptr() for stream in reversed(range(100))] == places[::-1]
