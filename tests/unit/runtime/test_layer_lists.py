"""Functions for programs of equal layers: lists by layer and back, and entries of a plan."""

import torch

from shardwright import runtime as rt


def test_by_layer_and_in_order_are_inverse():
    given = [torch.tensor(i) for i in range(12)]
    weights, states = rt.by_layer(given, 3, (0, 1, 1, 0))
    assert [[int(x) for x in layer] for layer in weights] == [[0, 3], [4, 7], [8, 11]]
    assert [[int(x) for x in layer] for layer in states] == [[1, 2], [5, 6], [9, 10]]
    states[1][0] = torch.tensor(50)
    assert [int(x) for x in rt.in_order((weights, states), (0, 1, 1, 0))] == [0, 1, 2, 3, 4, 50, *range(6, 12)]


def test_values_are_split_and_grouped_into_lists():
    values = tuple(map(torch.tensor, range(4)))
    assert rt.split(values, 1, 3) == [[0], [1, 2, 3]]
    assert rt.grouped(values, (1, 0, 1, 0)) == [[1, 3], [0, 2]]


def test_per_layer_expands_entries_of_a_plan():
    forms = (
        rt.Value(role="param", name="h.{}.up.weight", shape=(2, 3), sharding='[{"dp"}, {}]'),
        rt.Value(role="state", name="h.{}.up.weight", state="exp_avg", shape=(2, 3)),
    )
    values = list(rt.per_layer(range(1, 3), forms))
    assert [value.name for value in values] == ["h.1.up.weight"] * 2 + ["h.2.up.weight"] * 2
    assert values[2] == rt.Value(role="param", name="h.2.up.weight", shape=(2, 3), sharding='[{"dp"}, {}]')
    assert list(rt.updated(4, ("param", "state"))) == [rt.Result("param", updates=4), rt.Result("state", updates=5)]


def test_tensors_are_taken_from_each_list():
    lists = [[torch.tensor(10 * layer + place) for place in range(3)] for layer in range(3)]
    assert [int(x) for x in rt.from_each(lists[1:], 2, 0)] == [12, 10, 22, 20]
    assert [int(x) for x in rt.from_each(lists[:2])] == [0, 1, 2, 10, 11, 12]
