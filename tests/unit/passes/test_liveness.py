"""Which results take over the memory of an operand."""

import pytest

from shardwright.passes.analysis.liveness import Definition, Event, live_buffers


def taken(*events: Event, arguments: str = "", replaced: str = "", returned: str = "") -> list[set[str]]:
    """Return the values whose memory each event takes over; values are named by words."""
    done = Event(tuple((value, None) for value in returned.split()), ())
    found = live_buffers([*events, done], arguments.split(), replaced.split()).taken_over
    return [{str(made.over) for made in event.makes if made.value in found} for event in events]


def make(result: str, *operands: str) -> Event:
    """Return an op that computes."""
    return Event(tuple((value, None) for value in operands), (Definition(result),))


def view(result: str, operand: str) -> Event:
    """Return an op whose result is a view of its operand."""
    return Event(((operand, None),), (Definition(result, view_of=operand),))


def add(result: str, a: str, b: str) -> Event:
    """Return a sum that may be written into its first operand."""
    return Event(((a, None), (b, None)), (Definition(result, over=a),))


def update(results: str, *operands: str) -> Event:
    """Return an update `(param, grad, state) -> (param, state)`."""
    makes = (Definition(result, over=operand) for result, operand in zip(results.split(), operands[::2], strict=True))
    return Event(tuple((value, None) for value in operands), tuple(makes), is_update=True)


def test_memory_of_a_dead_result_is_taken_over() -> None:
    assert taken(make("a", "x"), add("c", "a", "x"), arguments="x")[-1] == {"a"}


def test_argument_is_not_taken_by_a_sum() -> None:
    assert taken(add("c", "x", "y"), arguments="x y", replaced="x") == [set()]


def test_value_that_is_read_later_is_not_taken() -> None:
    assert taken(make("a"), add("c", "a", "x"), make("d", "a"), arguments="x")[1] == set()


def test_value_that_is_returned_is_not_taken() -> None:
    assert taken(make("a"), add("c", "a", "x"), arguments="x", returned="a")[1] == set()


def test_value_is_not_added_to_itself_in_place() -> None:
    assert taken(make("a"), add("c", "a", "a"))[1] == set()


@pytest.mark.parametrize("reader", [make("d", "v"), add("d", "v", "x"), view("d", "v")])
def test_value_whose_view_is_read_later_is_not_taken(reader: Event) -> None:
    assert taken(make("a"), view("v", "a"), add("c", "a", "x"), reader, arguments="x")[2] == set()


def test_value_whose_view_is_read_by_the_same_op_is_not_taken() -> None:
    assert taken(make("a"), view("v", "a"), add("c", "a", "v"))[2] == set()


def test_value_whose_views_are_dead_is_taken() -> None:
    assert taken(make("a"), view("v", "a"), make("d", "v"), add("c", "a", "d"))[3] == {"a"}


def test_view_itself_is_not_taken() -> None:
    assert taken(make("a"), view("v", "a"), add("c", "v", "x"), arguments="x")[2] == set()


def test_result_in_place_owns_the_memory_it_took() -> None:
    assert taken(make("a"), add("b", "a", "x"), add("c", "b", "x"), arguments="x")[1:] == [{"a"}, {"b"}]


def test_memory_stays_in_use_through_a_result_in_place() -> None:
    chain = (make("a"), add("b", "a", "x"), view("v", "b"), add("c", "b", "x"), make("d", "v"))
    assert taken(*chain, arguments="x")[3] == set()


def test_op_that_may_share_all_its_operands_ties_them_together() -> None:
    unknown = Event((("a", None), ("b", None)), (Definition("u", may_share=("a", "b")),))
    assert taken(make("a"), make("b"), unknown, add("c", "b", "x"), make("d", "u"), arguments="x")[3] == set()
    assert taken(make("a"), make("b"), unknown, add("c", "u", "x"), arguments="x")[3] == set()


def test_update_takes_over_replaced_arguments() -> None:
    found = taken(update("p1 m1", "p", "g", "m"), arguments="p g m", replaced="p m", returned="p1 m1")
    assert found == [{"p", "m"}]


def test_update_does_not_take_arguments_that_the_caller_keeps() -> None:
    assert taken(update("p1 m1", "p", "g", "m"), arguments="p g m", replaced="m") == [{"m"}]


def test_update_does_not_take_values_that_are_read_later() -> None:
    events = (view("t", "p"), update("p1 m1", "p", "g", "m"), make("d", "t"))
    assert taken(*events, arguments="p g m", replaced="p m")[1] == {"m"}


def test_update_takes_over_a_view_of_a_replaced_argument() -> None:
    events = (view("part", "p"), update("p1 m1", "part", "g", "m"))
    assert taken(*events, arguments="p g m", replaced="p m")[1] == {"part", "m"}


def test_arguments_that_an_op_may_share_have_separate_memory():
    events = (
        Event((("p", None), ("q", None)), (Definition("u", may_share=("p", "q")),)),
        Event(
            (("p", None), ("q", None), ("u", None)),
            (Definition("p'", over="p"), Definition("q'", over="q")),
            is_update=True,
        ),
    )
    assert taken(*events, arguments="p q", replaced="p q", returned="p' q'")[1] == set()
    without = (events[0], Event((("p", None), ("q", None)), events[1].makes, is_update=True))
    assert taken(*without, arguments="p q", replaced="p q", returned="p' q'")[1] == {"p", "q"}


def test_value_that_a_started_collective_sends_is_not_taken_before_its_wait():
    start = Event((("a", 3),), (Definition("gathered", 1, 3),))
    during = (make("a"), start, add("c", "a", "x"), Event((), ()))
    after = (make("a"), start, Event((), ()), Event((), ()), add("c", "a", "x"))
    assert taken(*during, arguments="x")[2] == set()
    assert taken(*after, arguments="x")[4] == {"a"}


def test_started_all_reduce_does_not_take_an_operand_read_before_its_wait():
    start = Event((("a", 2),), (Definition("sum", 1, 2, over="a"),))
    assert taken(make("a"), start, Event((), ()))[1] == {"a"}
    assert taken(make("a"), start, make("d", "a"))[1] == set()


def test_lists_are_written_over_as_a_whole():
    both = Event((("a", None), ("b", None)), (Definition("c", over="a"), Definition("d", over="b")), all_or_none=True)
    assert taken(make("a"), make("b"), both)[2] == {"a", "b"}
    assert taken(make("a"), make("b"), both, make("e", "b"))[2] == set()


def test_decisions_in_the_program_are_followed():
    def decided(takes: bool) -> Event:
        return Event((("a", None),), (Definition("b", over="a", decided=takes),))

    assert taken(make("a"), decided(True))[1] == {"a"}
    assert taken(make("a"), decided(False))[1] == set()


def test_result_that_is_not_in_place_has_its_own_buffer():
    events = [make("a"), Event((("a", None),), (Definition("b", over="a", in_place=False),))]
    found = live_buffers(events, ())
    assert found.taken_over == {"b"}
    assert [buffer.value for buffer in found.listed] == ["a", "b"]
