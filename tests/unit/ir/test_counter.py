"""Random numbers by position: the generator equals its published form, and its streams and steps differ."""

from __future__ import annotations

from itertools import product

import pytest

from shardwright.ir.counter import Stream, blocks_of_row, limit_of, mix, signed, step_seed


def test_mix_equals_splitmix64():
    # The first outputs of the published generator at state 1234567.
    golden = 0x9E3779B97F4A7C15
    generator = Stream(1234567, golden)
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [generator.block(i) for i in range(4)] == published
    assert mix(0) == 0


def test_gammas_are_odd_and_streams_differ():
    streams = [Stream.of(seed, number) for seed, number in product(range(-3, 3), range(50))]
    assert all(stream.gamma % 2 for stream in streams)
    assert len({stream.gamma for stream in streams}) == len({stream.base for stream in streams}) == len(streams)


def test_every_pair_of_seed_and_step_has_a_unique_seed():
    found = {step_seed(seed, step) for seed, step in product(range(40), range(40))}
    assert len(found) == 1600
    assert all(-(2**63) <= seed < 2**63 for seed in found)


def test_lanes_are_the_parts_of_a_block_and_rows_begin_with_a_block():
    stream, whole = Stream.of(7, 2), (3, 5)
    assert blocks_of_row(whole, 2) == 3
    for row, column in product(range(3), range(5)):
        block = stream.block(3 * row + column // 2)
        half = block >> 32 if column % 2 else block & 0xFFFFFFFF
        assert stream.number(whole, (row, column), 2) % 2**32 == half
        assert stream.number(whole, (row, column), 1) == signed(stream.block(5 * row + column))


@pytest.mark.parametrize(("probability", "limit"), [(0.0, -(2**31)), (0.5, 0), (1.0, 2**31), (2**-40, 1 - 2**31)])
def test_a_limit_is_a_probability_of_32_bits(probability: float, limit: int):
    assert limit_of(probability) == limit
