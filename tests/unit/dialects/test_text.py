"""Names, locations and places survive the text form; an unterminated string is an error at once."""

import time

import pytest
from ir_files import context
from xdsl.utils.exceptions import ParseError

from shardwright.dialects.text import IRParser, module_text, parse_module

NAMES = """\
builtin.module {
  func.func @f(%a: i32 loc("x"), %a_1: i32 loc(unknown), %a_1_2: i32 loc(unknown)) -> i32 {
    %0 = arith.addi %a, %a_1 : i32 loc("fc1"("model.py":3:4))
    %y_1, %y = "test.op"(%0, %a_1_2) : (i32, i32) -> (i32, i32) loc("fc2")
    %z_7 = "test.op"(%y, %y_1) ({
    ^loop_1_2(%q_3: i32 loc(unknown)):
      "test.op"() [^loop_1] : () -> () loc(unknown)
    ^loop_1:
      "test.termop"() : () -> () loc(unknown)
    }) : (i32, i32) -> i32 loc(unknown)
    func.return %z_7 : i32 loc(unknown)
  } loc(unknown)
  func.func @g(%a: i32 loc(unknown)) {
    func.return loc(unknown)
  } loc(unknown)
} loc(unknown)
"""


def test_names_and_locations_print_unchanged():
    assert module_text(parse_module(context(), NAMES)) == NAMES


def test_strings_that_are_not_ascii_stay_strings():
    text = NAMES.replace('"fc1"', r'"\C3\A9.fc\22\\\0A"').replace('loc("x")', 'loc("\u00e9")')
    written = text.replace("\u00e9", r"\C3\A9")
    assert module_text(parse_module(context(), text)) == written
    assert module_text(parse_module(context(), written)) == written


def test_the_generic_form_is_equivalent():
    ctx = context()
    generic = module_text(parse_module(ctx, NAMES), generic=True)
    assert '"func.return"' in generic
    assert module_text(parse_module(ctx, generic), generic=True) == generic
    assert module_text(parse_module(ctx, generic)) == NAMES


def test_locations_can_be_left_out():
    assert "loc(" not in module_text(parse_module(context(), NAMES), locations=False)


@pytest.mark.parametrize(
    ("hints", "printed"),
    [
        (["a", "a", "a"], ["a", "a_1", "a_2"]),
        (["a", "a", "a_1"], ["a", "a_1", "a_1_1"]),
        (["a_1", "a", "a"], ["a_1", "a", "a_2"]),
        (["a", None, "a"], ["a", "0", "a_1"]),
    ],
)
def test_every_value_gets_a_unique_name(hints: list[str | None], printed: list[str]):
    ctx = context()
    module = parse_module(ctx, "\n".join('%x = "test.op"() : () -> i32'.replace("x", f"v{i}") for i in range(3)))
    for op, hint in zip(module.body.block.ops, hints, strict=True):
        op.results[0]._name = hint
    text = module_text(module, locations=False)
    assert [line.split()[0] for line in text.splitlines()[1:-1]] == [f"%{name}" for name in printed]
    assert module_text(parse_module(ctx, text), locations=False) == text


def test_resources_are_written_at_the_end():
    ctx = context()
    text = """
        "test.op"() {a = dense_resource<blob> : tensor<1xi32>} : () -> ()
        {-# dialect_resources: {builtin: {blob: "0x0400000001000000"}} #-}
    """
    printed = module_text(parse_module(ctx, text), ctx=ctx)
    assert 'blob: "0x0400000001000000"' in printed


def test_places_of_ops_are_remembered():
    parser = IRParser(context(), "\n" + NAMES)
    module = parser.parse_module()
    lines = {op.name: parser.op_spans[op].get_location().line for op in module.walk()}
    assert lines["builtin.module"] == 2
    assert lines["arith.addi"] == 4


def test_only_values_without_definition_stay_forward():
    parser = IRParser(context(), '"test.op"(%a, %b) : (i32, i32) -> ()\n%a = "test.op"() : () -> i32')
    with pytest.raises(ParseError):
        parser.parse_module()
    assert {name: span.start for name, span in parser.forward_spans.items()} == {"b": 14}


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ('"' + "a" * 60, "<text>:1:1", "not closed on its line"),
        ('// "fine\n"fine" "open\n"fine"', "<text>:2:8", "not closed on its line"),
        (r'x "' + "a" * 60 + r'\q"', "<text>:1:64", "unknown escape"),
        ('@"' + "a" * 60 + "\n", "<text>:1:2", "not closed on its line"),
    ],
)
def test_a_bad_string_is_an_error_at_once(text: str, place: str, reason: str):
    start = time.perf_counter()
    with pytest.raises(ParseError, match=f"{place}\n(.|\n)*{reason}"):
        parse_module(context(), text)
    assert time.perf_counter() - start < 1, "xDSL's lexer takes exponential time on this"


def test_good_strings_are_accepted():
    module = parse_module(context(), r'"test.op"() {a = "x\n\t\\\"\41 // y"} : () -> () // "')
    assert r"x\0A\09\\\22A // y" in module_text(module)
