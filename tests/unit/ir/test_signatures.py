"""Signatures: exactly the allowed ones of a rule, even and uneven, with reasons for mismatches."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.ir.mesh import Mesh
from shardwright.ir.ops.spec import OpInstance
from shardwright.ir.ops.table import rule_of
from shardwright.ir.rules import Rule, parse_rule
from shardwright.ir.sharding import local_shape, parse_sharding
from shardwright.ir.signatures import (
    Linear,
    Signature,
    Split,
    choices,
    explain_mismatch,
    local_sizes,
    signature,
    signatures,
)

GPU = Mesh.of(gpu=2)
MESH = Mesh.of(dp=2, tp=3)

ADDMM = rule_of(OpInstance("addmm", ((8,), (4, 6), (6, 8)), ((4, 8),), ("self", "mat1", "mat2")))
LAYER_NORM_BACKWARD = rule_of(
    OpInstance(
        "native_layer_norm_backward",
        ((4, 8), (4, 8), (4, 1), (4, 1), (8,), (8,)),
        ((4, 8), (8,), (8,)),
        ("grad_out", "input", "mean", "rstd", "weight", "bias"),
        {"normalized_shape": [8], "output_mask": [True, True, True]},
    )
)
ROWS_VIEW = rule_of(OpInstance("view", ((6, 7),), ((42,),), ("self",), {"size": [42]}))


def mm(i: int, k: int, j: int, linear: str = "") -> Rule:
    """Return the rule of a matrix product."""
    text = f"([i, k], [k, j]) -> ([i, j]) reduction={{k}} {linear}"
    return parse_rule(text).bind([(i, k), (k, j)], [(i, j)])


def texts(rule: Rule, mesh: Mesh) -> list[str]:
    """Return all signatures as text."""
    return [str(each) for each in signatures(rule, mesh)]


def read(operands: list[str], results: list[str]) -> Signature:
    """Parse the shardings of a signature."""
    return Signature(tuple(map(parse_sharding, operands)), tuple(map(parse_sharding, results)))


def test_all_signatures_of_a_matrix_product():
    assert texts(mm(4, 6, 8, "linear={0, 1}"), GPU) == [
        "([{}, {}], [{}, {}]) -> ([{}, {}])",
        '([{"gpu"}, {}], [{}, {}]) -> ([{"gpu"}, {}])',
        '([{}, {"gpu"}], [{"gpu"}, {}]) -> ([{}, {}], unreduced={"gpu"})',
        '([{}, {}], [{}, {"gpu"}]) -> ([{}, {"gpu"}])',
        '([{}, {}], unreduced={"gpu"}, [{}, {}]) -> ([{}, {}], unreduced={"gpu"})',
        '([{}, {}], [{}, {}], unreduced={"gpu"}) -> ([{}, {}], unreduced={"gpu"})',
    ]


def test_a_bias_is_added_once():
    assert texts(ADDMM, GPU)[3:] == [
        '([{}], unreduced={"gpu"}, [{}, {"gpu"}], [{"gpu"}, {}]) -> ([{}, {}], unreduced={"gpu"})',
        '([{}], unreduced={"gpu"}, [{}, {}], unreduced={"gpu"}, [{}, {}]) -> ([{}, {}], unreduced={"gpu"})',
        '([{}], unreduced={"gpu"}, [{}, {}], [{}, {}], unreduced={"gpu"}) -> ([{}, {}], unreduced={"gpu"})',
    ]


def test_each_result_is_reduced_over_the_factors_that_it_lacks():
    rows = next(each for each in signatures(LAYER_NORM_BACKWARD, GPU) if each.results[0].split_axes)
    assert [str(each) for each in rows.results] == [
        '[{"gpu"}, {}]',
        '[{}], unreduced={"gpu"}',
        '[{}], unreduced={"gpu"}',
    ]


def test_there_is_one_signature_per_choice_and_axis():
    rule = mm(6, 6, 6, "linear={0, 1}")
    assert len(choices(rule)) == 6
    assert len(signatures(rule, MESH)) == 6**2


def test_two_axes_may_split_one_factor():
    found = signature(mm(6, 6, 6), MESH, [Split("i"), Split("i")])
    assert str(found) == '([{"dp", "tp"}, {}], [{}, {}]) -> ([{"dp", "tp"}, {}])'


def test_axes_choose_independently():
    found = signature(mm(6, 6, 6, "linear={0}"), MESH, [Split("k"), Linear(frozenset({0}))])
    assert str(found) == ('([{}, {"dp"}], unreduced={"tp"}, [{"dp"}, {}]) -> ([{}, {}], unreduced={"dp", "tp"})')


def test_an_even_split_leaves_no_part_empty():
    assert signature(mm(5, 6, 6), MESH, [Split("i"), Split("i")]) is None
    assert signature(mm(5, 6, 6), MESH, [Split("i"), Split("i")], {"i": (0, 0, 1, 2, 3, 4, 5)}) is not None


def test_offsets_of_a_factor_apply_to_all_its_dims():
    found = signature(ROWS_VIEW, GPU, [Split("f0")], {"f0": (0, 2, 6)})
    assert str(found) == '([{"gpu"}, {}], offsets={0: [0, 2, 6]}) -> ([{"gpu"}], offsets={0: [0, 14, 42]})'


def test_even_rows_of_an_odd_number_are_uneven_elements():
    rule = rule_of(OpInstance("view", ((4, 9),), ((4, 3, 3),), ("self",), {"size": [4, 3, 3]}))
    found = signature(rule, GPU, [Split("f1")])
    assert str(found) == '([{}, {"gpu"}], offsets={1: [0, 3, 9]}) -> ([{}, {"gpu"}, {}])'


@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 7))
def test_signatures_are_distinct_allowed_and_start_with_the_replicated_one(i: int, k: int, j: int):
    rule = mm(i, k, j, "linear={0, 1}")
    found = signatures(rule, MESH)
    assert len(set(found)) == len(found)
    assert all(each.is_replicated for each in (*found[0].operands, *found[0].results))
    assert all(explain_mismatch(rule, each, MESH) is None for each in found)


@given(st.data())
def test_uneven_signatures_are_allowed_and_agree_on_local_sizes(data: st.DataObject):
    rows = data.draw(st.integers(0, 9))
    cut = data.draw(st.integers(0, rows))
    rule = rule_of(OpInstance("view", ((rows + 2, 5),), ((5 * (rows + 2),),), ("self",)))
    found = signature(rule, GPU, [Split("f0")], {"f0": (0, cut, rows + 2)})
    assert found is not None
    assert explain_mismatch(rule, found, GPU) is None
    for rank in range(2):
        left = local_shape((rows + 2, 5), found.operands[0], GPU, rank)
        right = local_shape((5 * (rows + 2),), found.results[0], GPU, rank)
        assert math.prod(left) == math.prod(right)
    assert local_sizes(rule, found, GPU) == {"f0": max(cut, rows + 2 - cut), "f1": 5}


@pytest.mark.parametrize(
    ("operands", "results", "message"),
    [
        (["[{}, {}]"], ["[{}, {}]"], "is of 1 operands and 1 results, the op has 2 and 1"),
        (['[{"pp"}, {}]', "[{}, {}]"], ['[{"pp"}, {}]'], 'mesh @mesh has no axis "pp"'),
        (["[{}]", "[{}, {}]"], ["[{}, {}]"], "has 1 dims, the value has 2"),
        (['[{}, {"tp"}]', "[{}, {}]"], ["[{}, {}]"], "splits dim 1 of size 2 evenly into 3 parts"),
        (['[{"dp"}, {}]', "[{}, {}]"], ["[{}, {}]"], "the nearest that it allows is .* -> ([{\"dp\"}, {}])"),
        (['[{}, {"dp"}]', '[{"dp"}, {}]'], ["[{}, {}]"], 'the nearest .* -> ([{}, {}], unreduced={"dp"})'),
        (["[{}, {}]", "[{}, {}]"], ['[{}, {}], unreduced={"dp"}'], "is not one that the op's rule"),
        (['[{"dp"}, {}]', '[{}, {"dp"}]'], ["[{}, {}]"], "is not one that the op's rule"),
    ],
)  # fmt: skip
def test_a_mismatch_is_explained(operands: list[str], results: list[str], message: str):
    problem = explain_mismatch(mm(4, 2, 8), read(operands, results), MESH)
    assert problem is not None
    before, _, after = message.partition(".*")
    assert before.strip() in problem
    assert after.strip() in problem


def test_offsets_that_differ_between_dims_of_a_factor_are_explained():
    uneven = read(['[{"dp"}, {}], offsets={0: [0, 1, 6]}'], ['[{"dp"}], offsets={0: [0, 14, 42]}'])
    problem = explain_mismatch(ROWS_VIEW, uneven, MESH)
    assert problem is not None
    assert "the nearest that it allows is" in problem


def test_only_constant_zeros_may_be_partial():
    made = {
        (name, number): rule_of(OpInstance(name, (), ((4, 6),), (), {"size": [4, 6], "fill_value": number}))
        for name, number in [("zeros", None), ("full", 0), ("full", 0.0), ("full", 1), ("ones", None)]
    }
    split = ["() -> ([{}, {}])", '() -> ([{"gpu"}, {}])', '() -> ([{}, {"gpu"}])']
    partial = '() -> ([{}, {}], unreduced={"gpu"})'
    for (name, number), rule in made.items():
        is_zero = (name, number) not in [("full", 1), ("ones", None)]
        assert texts(rule, GPU) == split + [partial] * is_zero
        assert (explain_mismatch(rule, read([], ['[{}, {}], unreduced={"gpu"}']), GPU) is None) == is_zero
        assert explain_mismatch(rule, read([], ["[{}, {}]"]), GPU) is None
