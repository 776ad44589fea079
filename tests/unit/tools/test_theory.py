"""`shardwright theory`: the Hoare triples of ops and collectives, in the notation of HAP's figure 9."""

from __future__ import annotations

import re

import pytest

from shardwright.tools.cli import main

FIGURE_9 = """\
{e1 | All-Gather(0), e2 | Identity} MatMul(e1, e2) {e3 | All-Gather(0)}
{e1 | All-Gather(1), e2 | All-Gather(0)} MatMul(e1, e2) {e3 | All-Reduce}
{e1 | Identity, e2 | All-Gather(1)} MatMul(e1, e2) {e3 | All-Gather(1)}
""".splitlines()
SUFFICIENT_FACTORS = "{e1 | Identity, e2 | Identity} MatMul(e1, e2) {e3 | Identity}"
COLLECTIVES = """\
{e | All-Reduce} All-Reduce(e) {e | Identity}
{e | All-Reduce} Reduce-Scatter(e, 0) {e | All-Gather(0)}
{e | All-Reduce} Reduce-Scatter(e, 1) {e | All-Gather(1)}
{e | All-Gather(0)} All-Gather(e, 0) {e | Identity}
{e | All-Gather(0)} Grouped-Broadcast(e, 0) {e | Identity}
{e | All-Gather(0)} All-To-All(e, 0, 1) {e | All-Gather(1)}
{e | All-Gather(1)} All-Gather(e, 1) {e | Identity}
{e | All-Gather(1)} Grouped-Broadcast(e, 1) {e | Identity}
{e | All-Gather(1)} All-To-All(e, 1, 0) {e | All-Gather(0)}
""".splitlines()


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """Return the triples that the command prints, without its remarks."""
    assert main(["theory", *words]) == 0
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the error message of a failing command."""
    assert main(["theory", *words]) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("name", ["mm", "aten.mm", "aten::mm", "mm.default", "MatMul"])
def test_a_product_has_the_triples_of_the_paper(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """It has exactly the three triples of figure 9 and the triple of 4.4."""
    assert sorted(printed(capsys, name)) == sorted([*FIGURE_9, SUFFICIENT_FACTORS])


def test_the_rule_table_has_two_more_triples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", "mm"]) == 0
    assert capsys.readouterr().out.endswith("2 more are not in the paper: --all prints them\n")
    more = set(printed(capsys, "mm", "--all")) - {*FIGURE_9, SUFFICIENT_FACTORS}
    assert more == {
        "{e1 | All-Reduce, e2 | Identity} MatMul(e1, e2) {e3 | All-Reduce}",
        "{e1 | Identity, e2 | All-Reduce} MatMul(e1, e2) {e3 | All-Reduce}",
    }


def test_collectives(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "collectives") == COLLECTIVES
    local = printed(capsys, "collectives", "--all")[len(COLLECTIVES) :]
    assert "{e | Identity} Slice(e, 0) {e | All-Gather(0)}" in local


def test_shapes_and_arguments_decide(capsys: pytest.CaptureFixture[str]) -> None:
    """A dim of one element cannot be split; a sum is partial along its summed dims."""
    assert printed(capsys, "mm", "1x8, 8x6") == [SUFFICIENT_FACTORS, *FIGURE_9[1:]]
    assert printed(capsys, "sum.dim_IntList", "--argument", "dim=[1]") == [
        "{e1 | Identity} Sum(e1) {e2 | Identity}",
        "{e1 | All-Gather(0)} Sum(e1) {e2 | All-Gather(0)}",
        "{e1 | All-Gather(1)} Sum(e1) {e2 | All-Reduce}",
    ]
    assert "{e1 | All-Gather(0)} Amax(e1) {e2 | All-Reduce(max)}" in printed(capsys, "amax")
    assert printed(capsys, "view", "4x6 -> 24")[1] == "{e1 | All-Gather(0)} View(e1) {e2 | All-Gather(0)}"


def test_properties_on_several_axes_name_the_axes(capsys: pytest.CaptureFixture[str]) -> None:
    triples = printed(capsys, "mm", "--mesh", "dp=2,tp=4")
    assert len(triples) == 16
    megatron = "{e1 | dp: All-Gather(0); tp: All-Gather(1), e2 | tp: All-Gather(0)}"
    assert f"{megatron} MatMul(e1, e2) {{e3 | dp: All-Gather(0); tp: All-Reduce}}" in triples


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sofmax"], r"the op table has no 'sofmax'.*\n.*nearest names are .*_softmax"),
        (["sum.dim"], r"the op table has no 'sum.dim'.*\n.*nearest names are .*sum.dim_IntList"),
        (["mm", "6x4, 5x4"], r"does not take operands of shapes 6x4, 5x4: .*factor k is 4 in one dim, 5 in another"),
        (["mm", "6 by 4"], r"'6 by 4' is not a shape; expected shapes such as '6x4, 4x5'"),
        (["sum.dim_IntList", "--argument", "dim"], r"--argument dim is not of the form name=value, such as dim="),
        (["attention"], r"torch has no such op; also give the shapes of its results"),
        (["mm", "--mesh", "0x2"], "--mesh: mesh .0x2.*expected sizes"),
    ],
)
def test_an_invalid_question_is_refused_with_the_reason(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert re.search(message, refused(capsys, *words), re.DOTALL)
