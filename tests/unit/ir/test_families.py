"""Rules that depend on the shapes and arguments of each use."""

import re
from typing import Any

import pytest

from shardwright.ir.ops.spec import OpInstance
from shardwright.ir.ops.table import op_table, rule_of
from shardwright.ir.rules import Rule
from shardwright.ir.sharding import Reduction

Shape = tuple[int, ...]


def rule(name: str, operands: list[Shape], results: list[Shape], **arguments: Any) -> Rule:
    """Return the rule of an op that is given the first operands of its schema."""
    names = op_table()[name].operands
    listed = names[0][1:] if names and names[0].startswith("*") else None
    given = (listed,) * len(operands) if listed else names[: len(operands)]
    return rule_of(OpInstance(name, tuple(operands), tuple(results), given, arguments))


def values(of: Rule) -> str:
    """Return the factors of operands and results in a rule."""
    return re.split(" {| linear", str(of))[0]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ((4, 6), (24,), "([f0, f1]) -> ([f0*f1])"),
        ((24,), (4, 6), "([f0*f1]) -> ([f0, f1])"),
        ((2, 3, 4), (6, 4), "([f0, f1, f2]) -> ([f0*f1, f2])"),
        ((8, 6), (8, 2, 3), "([f0, f1*f2]) -> ([f0, f1, f2])"),
        ((12,), (2, 2, 3), "([f0*f1*f2]) -> ([f0, f1, f2])"),
        ((1, 6), (6,), "([1, f0]) -> ([f0])"),
        ((2, 6, 1), (2, 2, 3), "([f0, f1*f2, 1]) -> ([f0, f1, f2])"),
        ((), (1, 1), "([]) -> ([1, 1])"),
        ((4, 6), (2, 2, 6), "([f0*f1, f2]) -> ([f0, f1, f2])"),
    ],
)
def test_a_reshape_refines_both_shapes(source: Shape, target: Shape, expected: str):
    assert values(rule("view", [source], [target])) == expected


@pytest.mark.parametrize(
    ("source", "target", "splittable"),
    [
        ((4, 6), (6, 4), ("f0",)),
        ((2, 3, 5), (2, 5, 3), ("f0",)),
        ((3, 5), (5, 3), ()),
        # Rows stay rows for any grouping of the other dims.
        ((8, 4, 6, 6), (8, 6, 24), ("f0", "f1")),
        ((8, 4, 6, 6), (48, 24), ("f0",)),
        ((48, 24), (8, 4, 6, 6), ("f0",)),
        ((8, 9, 4), (12, 6, 4), ("f0", "e1")),
        ((0, 3, 5), (0, 5, 3), ()),
        ((0, 4), (4, 0), ()),
    ],
)
def test_dims_without_a_common_refinement_stay_whole(source: Shape, target: Shape, splittable: tuple[str, ...]):
    assert rule("view", [source], [target]).splittable() == splittable


def test_broadcast_dims_stay_whole():
    assert values(rule("add.Tensor", [(4, 6), (6,)], [(4, 6)])) == "([d0, d1], [d1]) -> ([d0, d1])"
    assert values(rule("add.Tensor", [(4, 1), (4, 6)], [(4, 6)])) == "([d0, 1], [d0, d1]) -> ([d0, d1])"
    assert values(rule("expand", [(1, 6)], [(4, 6)])) == "([1, d1]) -> ([d0, d1])"


@pytest.mark.parametrize(
    ("name", "shapes", "arguments", "splittable"),
    [
        ("_softmax", ((4, 6), (4, 6)), {"dim": -1}, ("d0",)),
        ("cumsum", ((4, 6), (4, 6)), {"dim": 0}, ("d1",)),
        ("flip", ((4, 6), (4, 6)), {"dims": [1]}, ("d0",)),
        ("tril", ((2, 4, 4), (2, 4, 4)), {}, ("d0",)),
        ("sum.dim_IntList", ((4, 6), (6,)), {"dim": [0]}, ("d0", "d1")),
        ("mean.dim", ((4, 6), (6,)), {"dim": [0]}, ("d1",)),
        ("argmax", ((4, 6), (4,)), {"dim": 1}, ("d0",)),
        ("slice.Tensor", ((4, 6), (4, 3)), {"dim": 1, "start": 2, "end": 5}, ("d0",)),
        ("slice.Tensor", ((4, 6), (4, 6)), {"dim": 1}, ("d0", "d1")),
        ("select.int", ((4, 6), (4,)), {"dim": 1, "index": 2}, ("d0",)),
        ("unsqueeze", ((4, 6), (4, 1, 6)), {"dim": 1}, ("d0", "d1")),
        ("squeeze.dims", ((4, 1, 6), (4, 6)), {"dim": [1]}, ("d0", "d2")),
        ("permute", ((4, 6), (6, 4)), {"dims": [1, 0]}, ("d0", "d1")),
        ("constant_pad_nd", ((4, 6), (4, 8)), {"pad": [1, 1]}, ("d0",)),
    ],
)
def test_dims_named_by_an_argument_stay_whole(
    name: str, shapes: tuple[Shape, Shape], arguments: dict[str, Any], splittable: tuple[str, ...]
):
    assert rule(name, [shapes[0]], [shapes[1]], **arguments).splittable() == splittable


def test_reductions_say_how_parts_combine():
    shapes: tuple[list[Shape], list[Shape]] = ([(4, 6)], [(6,)])
    assert rule("sum.dim_IntList", *shapes, dim=[0]).reductions == {"d0": Reduction.SUM}
    assert rule("amax", *shapes, dim=[0]).reductions == {"d0": Reduction.MAX}
    assert rule("amin", *shapes, dim=[0]).reductions == {"d0": Reduction.MIN}
    assert rule("mean.dim", *shapes, dim=[0]).reductions == {}


def test_a_mean_loss_does_not_split_and_a_sum_does():
    scores: list[Shape] = [(8, 10), (8,)]
    assert rule("nll_loss_forward", scores, [(), ()], reduction=1).splittable() == ()
    summed = rule("nll_loss_forward", scores, [(), ()], reduction=2)
    assert (summed.splittable(), summed.reductions) == (("b", "c"), {"b": Reduction.SUM, "c": Reduction.SUM})


def test_a_causal_mask_keeps_queries_together():
    shapes: list[Shape] = [(2, 4, 6, 8)] * 3
    results: list[Shape] = [(2, 4, 6, 8), (2, 4, 6)]
    assert rule("attention", shapes, results, is_causal=True).splittable() == ("b", "h")
    assert rule("attention", shapes, results, is_causal=False).splittable() == ("b", "h", "s")


def test_an_embedding_table_is_split_by_rows_too():
    found = rule("embedding", [(10, 8), (4, 6)], [(4, 6, 8)])
    assert found.splittable() == ("v", "e", "b0", "b1")
    assert (found.reductions, found.indexed) == ({"v": Reduction.SUM}, {"v": 1})
    backward = rule("embedding_dense_backward", [(4, 6, 8), (4, 6)], [(10, 8)])
    assert backward.reductions == {"b0": Reduction.SUM, "b1": Reduction.SUM}


def test_channels_in_groups_are_split_by_groups():
    images: list[Shape] = [(2, 4, 8, 8), (4, 1, 3, 3), (4,)]
    assert rule("convolution", images, [(2, 4, 8, 8)], groups=4).splittable() == ("n", "g")
    images[1] = (4, 2, 3, 3)
    assert rule("convolution", images, [(2, 4, 8, 8)], groups=2).splittable() == ("n", "g")
    images[1] = (4, 4, 3, 3)
    assert rule("convolution", images, [(2, 4, 8, 8)], groups=1).splittable() == ("n", "i", "o")


def test_a_number_as_operand_removes_the_linear_set():
    assert rule("add.Tensor", [(4,), (4,)], [(4,)]).linear == (frozenset({0, 1}),)
    assert rule("add.Tensor", [(4,)], [(4,)], other=1.0).linear == ()
    assert rule("mul.Tensor", [(4,)], [(4,)], other=2.0).linear == (frozenset({0}),)
    assert rule("cat", [(4,), (5,)], [(9,)], dim=0).linear == (frozenset({0, 1}),)


def test_an_overload_without_a_row_runs_whole():
    unknown = OpInstance("my::op.default", ((4, 6),), ((4,),))
    assert rule_of(unknown).splittable() == ()


@pytest.mark.parametrize(
    ("name", "operands", "result"),
    [("index.Tensor", ((6, 4), (6,)), (3, 4)), ("index_put", ((6, 4), (6,), (3, 4)), (6, 4))],
)
def test_a_mask_is_not_an_index(name: str, operands: tuple[Shape, ...], result: Shape):
    given = ("self", "indices", "values")[: len(operands)]
    found = rule_of(OpInstance(name, operands, (result,), given, masks=frozenset({1})))
    assert found.replicated == found.sizes.keys()
    assert not found.indexed
