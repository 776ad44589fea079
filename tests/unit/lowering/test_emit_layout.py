"""The parts of emitted programs: layout, literals, names, and the table of sizes."""

import ast
import textwrap
from types import SimpleNamespace

import pytest
from xdsl.dialects.builtin import TensorType, f32
from xdsl.ir import SSAValue
from xdsl.utils.test_value import create_ssa_value

from shardwright.lowering.codegen.layout import (
    WIDTH,
    Repeated,
    assignment,
    call,
    filled,
    flat,
    keyword,
    lines,
    literal,
    tuple_of,
)
from shardwright.lowering.codegen.names import Names, base_name
from shardwright.lowering.codegen.sizes import Sizes, Table
from shardwright.runtime.layers import from_each


def value(hint: str | None) -> SSAValue:
    made = create_ssa_value(TensorType(f32, [2]))
    made.name_hint = hint
    return made


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (True, "True"),
        (None, "None"),
        (1e-08, "1e-08"),
        (float("inf"), 'float("inf")'),
        (float("-inf"), 'float("-inf")'),
        ("plain", '"plain"'),
        ('[{"dp"}]', "'[{\"dp\"}]'"),
        ([8, [2]], "(8, (2,))"),
        ((), "()"),
        ({"lr": 0.1}, '{"lr": 0.1}'),
        (Repeated(0.0, 3), "(0.0,) * 3"),
    ],
)
def test_literal(found: object, expected: str) -> None:
    assert flat(literal(found)) == expected


def test_value_without_a_literal_is_refused() -> None:
    with pytest.raises(TypeError, match="a value of type object cannot be written as a Python literal"):
        literal(object())


@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("fill", [True, False])
def test_lines_are_equivalent_to_the_flat_text(count: int, fill: bool) -> None:
    doc = tuple_of([tuple_of(["x" * 60] * count), keyword("k", tuple_of(["1"]))][:1], "y = ", fill=fill)
    text = list(lines(doc))
    assert all(len(line) <= WIDTH for line in text)
    assert ast.dump(ast.parse("\n".join(text))) == ast.dump(ast.parse(flat(doc)))


def test_long_string_is_written_in_pieces() -> None:
    text = " ".join(f"word{i}" for i in range(60))
    written = list(lines(keyword("s", literal(text)), suffix=""))
    assert all(len(line) <= WIDTH for line in written)
    assert ast.literal_eval("".join(written).removeprefix("s=")) == text


def test_assignment_to_more_names_than_fit() -> None:
    names = [f"a_long_name_{i}" for i in range(12)]
    written = list(assignment(names, call("f", ["x"]), "    "))
    assert written[0] == "    ("
    assert written[-1] == "    ) = f(x)"
    text, plain = textwrap.dedent("\n".join(written)), f"{', '.join(names)} = f(x)"
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(plain))


def test_filled_lines_end_as_asked() -> None:
    assert list(filled(["a", "b"], 4, ",")) == ["a, b,"]
    assert [len(line) <= WIDTH - 4 for line in filled(["x" * 50] * 5, 4)] == [True] * 3
    assert list(filled([], 4)) == []


def test_names_are_valid_unique_and_hide_nothing() -> None:
    names = Names()
    hints = ["fc.weight", "fc_weight", "lambda", "sum", "l", "rt", "n", None, None, "fc.weight"]
    found = [names.new(value(hint)) for hint in hints]
    assert found == [
        "fc_weight", "fc_weight_1", "lambda_", "sum_", "l_", "rt_", "n_", "v0", "v1", "fc_weight_2",
    ]  # fmt: skip
    assert names.new(value(None), "0.bias") == "v_0_bias"


def test_shared_name_stands_for_the_later_value() -> None:
    names, first, second = Names(), value("w"), value("w.new")
    names.new(first)
    assert names.share(second, first) == "w"
    assert (names.holds(first), names.holds(second), names[first]) == (False, True, "w")


def test_released_name_is_given_again() -> None:
    names, first = Names(), value("token")
    names.new(first)
    names.release(first)
    assert names.new(value("token")) == "token"


def listed(places: list[tuple[int, int]]) -> str:
    """Return the texts of elements of `h`, a list of four lists of four values, given by list and place."""
    names = Names()
    table = [[value(f"w.{row}.{column}") for column in range(4)] for row in range(4)]
    names.enter_table("h", table, "h")
    text = ", ".join(names.listed([table[row][column] for row, column in places]))
    lists = [[f"{row}.{column}" for column in range(4)] for row in range(4)]
    namespace = {"h": lists, "rt": SimpleNamespace(from_each=from_each)}
    assert eval(f"[{text}]", namespace) == [f"{row}.{column}" for row, column in places]
    return text


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([(0, 3), (0, 2), (0, 1), (0, 0)], "*h[0][::-1]"),
        ([(0, 2), (0, 1), (0, 0)], "*h[0][2::-1]"),
        ([(0, 3), (0, 2), (0, 1)], "*h[0][:0:-1]"),
        ([(0, 1), (0, 0), (0, 1), (0, 2)], "h[0][1], *h[0][:3]"),
        ([(1, 3), (1, 1)], "h[1][3], h[1][1]"),
        ([(row, column) for row in range(1, 3) for column in (0, 2)], "*rt.from_each(h[1:3], 0, 2)"),
        ([(row, column) for row in range(4) for column in range(4)], "*rt.from_each(h[:4])"),
        ([(row, column) for row in range(3) for column in range(4)], "*h[0], *h[1], *h[2]"),
        ([(row, 2) for row in (3, 2, 1, 0)], "h[3][2], h[2][2], h[1][2], h[0][2]"),
    ],
)
def test_elements_of_lists_are_written_together(places: list[tuple[int, int]], expected: str) -> None:
    assert listed(places) == expected


@pytest.mark.parametrize(
    ("hint", "base"),
    [("w", "w"), ("w_1", "w"), ("w.all_gather", "w"), ("w.all_gather.slice_2", "w"), ("w.new", "w.new"), (None, None)],
)
def test_base_name(hint: str | None, base: str | None) -> None:
    made = value(hint)
    if hint is not None:
        made._name = hint  # the setter strips a suffix that the parser keeps
    assert base_name(made) == base


RANKS = ((0,), (1,))
PARTS = ((0, 2), (1, 3))
"""The devices of the parts of each rank."""


def test_sizes_that_agree_are_literals() -> None:
    table = Table()
    sizes = Sizes(table)
    assert flat(sizes.entry("h", [(2, 3)], RANKS)) == "(2, 3)"
    assert flat(sizes.entry("h", [[2, 3], [2, 3]], RANKS)) == "(2, 3)"
    assert flat(sizes.entry("h", [1, 1, 2, 2], RANKS)) == "1"
    assert not table


def test_equal_rows_are_entered_once() -> None:
    table = Table()
    sizes = Sizes(table)
    assert sizes.entry("a", [1, 2], RANKS) == 'SIZES["a"][n]'
    assert sizes.entry("b", [1, 2], RANKS) == 'SIZES["a"][n]'
    assert sizes.entry("a", [2, 1], RANKS) == 'SIZES["a.2"][n]'
    assert list(lines(table.table())) == ['SIZES = {"a": (1, 2), "a.2": (2, 1)}']


def test_sizes_are_looked_up_by_rank_or_part() -> None:
    sizes = Sizes(Table())
    assert sizes.entry("part", [1, 1, 2, 2], PARTS) == 'SIZES["part"][part]'
    assert not sizes.uses_rank
    assert sizes.entry("rank", [3, 4, 3, 4], PARTS) == 'SIZES["rank"][n]'
    assert sizes.entry("both", [1, 2, 3, 4], PARTS) == 'SIZES["both"][n][part]'
    assert sizes.uses_rank


def test_a_value_missing_on_some_devices_is_guarded_by_rank_and_part() -> None:
    sizes = Sizes(Table())
    assert sizes.outside([], PARTS) is None
    assert sizes.outside([2], RANKS) is None
    assert sizes.outside([1, 3], PARTS) == "n not in (1,)"
    assert sizes.outside([3], PARTS) == "(n, part) not in ((1, 1),)"


def test_one_long_target_is_not_a_tuple() -> None:
    name = "x" * 100
    text = "\n".join(assignment([name], call("f", ["y" * 20]), ""))
    namespace: dict[str, object] = {"f": lambda y: y, "y" * 20: 3}
    exec(text, namespace)
    assert namespace[name] == 3
