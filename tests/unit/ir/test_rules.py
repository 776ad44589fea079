"""Sharding rules: factor notation, splittable factors, and shapes that fit."""

import re

import pytest

from shardwright.ir.rules import Rule, parse_rule, replicated_rule
from shardwright.ir.sharding import Reduction

MM = "([i, k], [k, j]) -> ([i, j]) reduction={k}"


def bind(text: str, *operands: tuple[int, ...], results: list[tuple[int, ...]]) -> Rule:
    """Bind the rule `text` to operands and results of these shapes."""
    return parse_rule(text).bind(operands, results)


def test_sizes_come_from_shapes():
    rule = bind(MM, (4, 6), (6, 8), results=[(4, 8)])
    assert rule.sizes == {"i": 4, "k": 6, "j": 8}
    assert rule.factors == ("i", "k", "j")
    assert rule.reductions == {"k": Reduction.SUM}
    assert str(rule) == "([i, k], [k, j]) -> ([i, j]) {i=4, k=6, j=8} reduction={k}"


@pytest.mark.parametrize(
    ("text", "operands", "results"),
    [
        (MM, [(4, 6), (6, 8)], [(4, 8)]),
        ("([b*s, 1], []) -> ([b, s]) {b=2, s=3} replicated={s}", [(6, 1), ()], [(2, 3)]),
        ("([i]) -> ([]) reduction={max i}", [(4,)], [()]),
        ("([b], [i, k], [k]) -> ([i]) reduction={k} linear={0+1, 2} additive={0}", [(3,), (4, 6), (6,)], [(4,)]),
        ("([v, e], [b]) -> ([b, e]) reduction={v} indexed={v: 1}", [(7, 2), (3,)], [(3, 2)]),
    ],
)
def test_the_text_form_reads_back(text: str, operands: list[tuple[int, ...]], results: list[tuple[int, ...]]):
    rule = parse_rule(text).bind(operands, results)
    again = parse_rule(str(rule)).bind(operands, results)
    assert str(again) == str(rule)
    assert vars(again) == vars(rule)


def test_only_the_leading_factor_of_a_product_can_be_split():
    rule = bind("([b*s, k]) -> ([b, s, k]) {b=2, s=3}", (6, 5), results=[(2, 3, 5)])
    assert rule.splittable() == ("b", "k")
    assert rule.leading(("b", "s")) == "b"


def test_a_factor_of_one_element_does_not_lead():
    rule = bind("([b*s]) -> ([b, s]) {b=1, s=3}", (3,), results=[(1, 3)])
    assert rule.leading(("b", "s")) == "s"
    assert rule.splittable() == ("s",)


def test_a_replicated_factor_is_not_split():
    assert bind("([i, j]) -> ([i, j]) replicated={j}", (4, 4), results=[(4, 4)]).splittable() == ("i",)


def test_an_unknown_op_stays_replicated():
    rule = replicated_rule([(4, 6), ()], [(4,)])
    assert rule.splittable() == ()
    assert rule.misfit([(4, 6), ()], [(4,)]) is None


@pytest.mark.parametrize(
    ("operands", "results", "message"),
    [
        ([(4, 6)], [(4, 8)], "1 operands, the op's rule .* has 2"),
        ([(4, 6), (6, 8)], [], "0 results, the op's rule .* has 1"),
        ([(4, 6), (6, 9)], [(4, 8)], r"operand 1 has shape \[6, 9\], the op's rule .* expects \[6, 8\]"),
        ([(4, 6), (6, 8)], [(4, 8, 1)], r"result 0 has shape \[4, 8, 1\]"),
    ],
)
def test_a_misfit_is_named(operands: list[tuple[int, ...]], results: list[tuple[int, ...]], message: str):
    problem = bind(MM, (4, 6), (6, 8), results=[(4, 8)]).misfit(operands, results)
    assert problem is not None
    assert re.search(message, problem)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[i] -> [i]", r"not of the form \(\[i, k\], \[k, j\]\) -> \(\[i, j\]\) reduction=\{k\}"),
        ("([i]) -> ([i]) reduced={i}", "found 'reduced={i}', expected {i=4} or one of reduction, replicated"),
        ("([i]) -> ([i]) replicated={j}", "refers to factor j, which no operand or result has"),
        ("([i]) -> ([]) reduction={max j}", "refers to factor j"),
        ("([v], [b]) -> ([b]) indexed={v}", "found indexed={v}, expected one factor and an operand's number"),
        ("([v], [b]) -> ([b]) indexed={v: 1, b: 0}", "found indexed={v: 1, b: 0}, expected one factor"),
        ("([v], [b]) -> ([b]) indexed={u: 1}", "refers to factor u"),
        ("([v], [b]) -> ([b]) indexed={v: 2}", "factor v are in operand 2, there are 2 operands"),
        ("([v], [b]) -> ([b]) indexed={v: 0}", "operand 0 holds positions of factor v and has a dim of it"),
    ],
)
def test_invalid_text_of_a_rule_is_refused(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        parse_rule(text)


@pytest.mark.parametrize(
    ("text", "operands", "message"),
    [
        (MM, [(4, 6)], "has 2 operands and 1 results, the op has 1 and 1"),
        (MM, [(4, 6), (7, 8)], "factor k is 6 in one dim, 7 in another"),
        (MM, [(4, 6), (6,)], r"\[\[k, j\]\] does not fit shape \[6\]"),
        ("([b*s]) -> ([b, s])", [(6,)], "give the size of factor b, as {b=4}"),
        ("([b*s]) -> ([b, s]) {b=2, s=4}", [(6,)], r"dim b\*s is 8, the value's is 6"),
        ("([1]) -> ([i, j])", [(6,)], "dim 1 is 1, the value's is 6"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(text: str, operands: list[tuple[int, ...]], message: str):
    with pytest.raises(ValueError, match=message):
        parse_rule(text).bind(operands, [(4, 8)])
