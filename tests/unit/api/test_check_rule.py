"""A rule of a custom op is proved or refuted on samples, by function and by command."""

import re

import pytest
from custom_ops import PRODUCT

import shardwright as sw
from shardwright.api.checking.rule import RuleCheckError
from shardwright.tools.cli import main

RIGHT = "([i, k], [k, j]) -> ([i, j]) reduction={k} linear={0, 1}"


def test_a_right_rule_holds_on_generated_samples():
    verdict = sw.check_rule(PRODUCT, RIGHT)
    assert verdict.holds
    assert verdict.checked > 100


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("([i, k], [k, j]) -> ([i, j])", r"result 0 at \[0, 0\], held by rank 0: expected -?[\d.]+, found -?[\d.]+"),
        ("([i, k], [k, j]) -> ([i, j]) reduction={max k}", "result 0 at .*expected"),
        ("([i, k], [k, j]) -> ([i, j]) reduction={k} linear={0+1}", r'unreduced={"x"}\)(.|\n)*expected'),
        ("([i, k], [k, j]) -> ([j, i]) reduction={k}", "factor j is 4 in one dim, 6 in another"),
    ],
)
def test_a_wrong_rule_is_refuted_by_a_counterexample(rule: str, problem: str):
    verdict = sw.check_rule(PRODUCT, rule)
    assert not verdict.holds
    assert re.search(problem, str(verdict.counterexample)), str(verdict.counterexample)


def test_an_index_is_drawn_from_the_range_that_the_op_takes():
    assert sw.check_rule("aten::embedding", "([v, e], [b]) -> ([b, e]) replicated={v}").holds
    refuted = sw.check_rule("aten::embedding", "([v, e], [b]) -> ([b, e])", samples=["8x4, 6:int64<8"])
    assert "index out of range" in str(refuted.counterexample)


def test_a_bias_that_is_added_on_every_rank_is_refuted():
    addmm = "([j], [i, k], [k, j]) -> ([i, j]) reduction={k}"
    assert not sw.check_rule("aten::addmm", addmm).holds
    assert sw.check_rule("aten::addmm", addmm, additive=[0], linear=["0+1", "0+2"]).holds


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"samples": ["6x"]}, ValueError, "is not a list of operands like"),
        ({"samples": ["6x4, 5x4"]}, RuleCheckError, "does not run on operands 6x4, 5x4: RuntimeError: mat1 and mat2"),
        ({"samples": ["6x4:float7, 4x5"]}, ValueError, "'float7' is not a dtype"),
    ],
)
def test_an_invalid_sample_is_refused_with_the_reason(
    arguments: dict[str, list[str]], error: type[Exception], message: str
):
    with pytest.raises(error, match=message):
        sw.check_rule(PRODUCT, RIGHT, samples=arguments["samples"])


def test_the_command_says_holds_or_refuted(capsys: pytest.CaptureFixture[str]):
    command = ["check-rule", PRODUCT, "--import", "custom_ops", "--sample", "6x4, 4x5"]
    assert main([*command[:2], RIGHT, *command[2:]]) == 0
    assert re.fullmatch(r"holds: \d+ signatures checked\n", capsys.readouterr().out)
    assert main([*command[:2], "([i, k], [k, j]) -> ([i, j])", *command[2:]]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("REFUTED by signature")
    assert 'on mesh <["x"=2]>' in shown
    assert "held by rank 0: expected" in shown


def test_the_command_names_a_missing_op_or_module(capsys: pytest.CaptureFixture[str]):
    assert main(["check-rule", "nobody::knows", "([i]) -> ([i])"]) == 1
    assert "torch has no op 'nobody.knows.default'" in capsys.readouterr().err
    assert main(["check-rule", PRODUCT, RIGHT, "--import", "no_such_module"]) == 1
    assert "--import no_such_module" in capsys.readouterr().err
