"""Which operands' memory an op may take."""

import pytest

from shardwright.lowering.codegen.ownership import Effect, writable_operands


def taken(*effects: Effect, arguments: str = "", replaced: str = "", returned: str = "") -> list[set[int]]:
    """The operands taken by each effect; values are named by words."""
    found = writable_operands(effects, arguments.split(), replaced.split(), returned.split())
    return [set(operands) for operands in found]


def make(result: str, *operands: str) -> Effect:
    """An op that computes."""
    return Effect(operands, (result,))


def view(result: str, operand: str) -> Effect:
    """An op whose result looks at the memory of its operand."""
    return Effect((operand,), (result,), shares=(0,))


def add(result: str, a: str, b: str) -> Effect:
    """A sum that may be written into its first operand."""
    return Effect((a, b), (result,), overwrites=((0, 0),))


def update(results: str, *operands: str) -> Effect:
    """`(param, grad, state) -> (param, state)`."""
    return Effect(operands, tuple(results.split()), overwrites=((0, 0), (2, 1)), updates=True)


def test_dead_result_of_an_op_is_taken() -> None:
    assert taken(make("a", "x"), add("c", "a", "x"), arguments="x")[-1] == {0}


def test_argument_is_not_taken_by_a_sum() -> None:
    assert taken(add("c", "x", "y"), arguments="x y", replaced="x") == [set()]


def test_value_that_is_read_later_is_not_taken() -> None:
    assert taken(make("a"), add("c", "a", "x"), make("d", "a"), arguments="x")[1] == set()


def test_value_that_is_returned_is_not_taken() -> None:
    assert taken(make("a"), add("c", "a", "x"), arguments="x", returned="a")[1] == set()


def test_value_is_not_added_to_itself_in_place() -> None:
    assert taken(make("a"), add("c", "a", "a"))[1] == set()


@pytest.mark.parametrize("reader", [make("d", "v"), add("d", "v", "x"), view("d", "v")])
def test_value_whose_view_is_read_later_is_not_taken(reader: Effect) -> None:
    assert taken(make("a"), view("v", "a"), add("c", "a", "x"), reader, arguments="x")[2] == set()


def test_value_whose_view_is_read_by_the_same_op_is_not_taken() -> None:
    assert taken(make("a"), view("v", "a"), add("c", "a", "v"))[2] == set()


def test_value_whose_views_are_dead_is_taken() -> None:
    assert taken(make("a"), view("v", "a"), make("d", "v"), add("c", "a", "d"))[3] == {0}


def test_view_itself_is_not_taken() -> None:
    assert taken(make("a"), view("v", "a"), add("c", "v", "x"), arguments="x")[2] == set()


def test_result_in_place_owns_the_memory_it_took() -> None:
    assert taken(make("a"), add("b", "a", "x"), add("c", "b", "x"), arguments="x")[1:] == [{0}, {0}]


def test_memory_stays_in_use_through_a_result_in_place() -> None:
    chain = (make("a"), add("b", "a", "x"), view("v", "b"), add("c", "b", "x"), make("d", "v"))
    assert taken(*chain, arguments="x")[3] == set()


def test_op_that_may_share_all_its_operands_ties_them_together() -> None:
    unknown = Effect(("a", "b"), ("u",), shares=(0, 1))
    assert taken(make("a"), make("b"), unknown, add("c", "b", "x"), make("d", "u"), arguments="x")[3] == set()
    assert taken(make("a"), make("b"), unknown, add("c", "u", "x"), arguments="x")[3] == set()


def test_update_takes_what_the_program_replaces() -> None:
    found = taken(update("p1 m1", "p", "g", "m"), arguments="p g m", replaced="p m", returned="p1 m1")
    assert found == [{0, 2}]


def test_update_does_not_take_what_the_caller_keeps() -> None:
    assert taken(update("p1 m1", "p", "g", "m"), arguments="p g m", replaced="m") == [{2}]


def test_update_does_not_take_what_is_read_later() -> None:
    effects = (view("t", "p"), update("p1 m1", "p", "g", "m"), make("d", "t"))
    assert taken(*effects, arguments="p g m", replaced="p m")[1] == {2}


def test_update_takes_a_view_of_what_the_program_replaces() -> None:
    effects = (view("part", "p"), update("p1 m1", "part", "g", "m"))
    assert taken(*effects, arguments="p g m", replaced="p m")[1] == {0, 2}


def test_arguments_that_travelled_together_have_memory_of_their_own():
    effects = [
        Effect(("p", "q"), ("token",), shares=(0, 1)),
        Effect(("token",), ("gathered",)),
        Effect(("p", "q", "gathered"), ("p'", "q'"), overwrites=((0, 0), (1, 1)), updates=True),
    ]
    assert list(writable_operands(effects, ("p", "q"), ("p", "q"), ("p'", "q'")))[-1] == {0, 1}


def test_what_looks_at_one_of_them_afterwards_keeps_both():
    effects = [
        Effect(("p", "q"), ("token",), shares=(0, 1)),
        Effect(("p", "q"), ("p'", "q'"), overwrites=((0, 0), (1, 1)), updates=True),
        Effect(("token",), ("gathered",)),
    ]
    assert list(writable_operands(effects, ("p", "q"), ("p", "q"), ("p'", "q'")))[1] == frozenset()
