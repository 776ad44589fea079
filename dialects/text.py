"""
The text form of IR, read and written so that names, locations and errors survive.

xDSL alone strips `_1` from value names, may print one name twice (`%a`, `%a_1`, `%a_1_2`), drops locations
unless asked, forgets where an op stood, and takes exponential time on a string that does not close.
`IRParser` and `IRPrinter` keep every name that is free: what is printed parses back to the same text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from io import StringIO
from typing import TypeVar

from xdsl.context import Context
from xdsl.dialects.builtin import Float80Type, Float128Type, LocationAttr, ModuleOp
from xdsl.ir import Attribute, AttributeInvT, Block, Operation, SSAValue, TypeAttribute
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.parser.generic_parser import ParserState
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError
from xdsl.utils.lexer import Input, Position, Span, Token
from xdsl.utils.mlir_lexer import MLIRLexer, MLIRToken, MLIRTokenKind, StringLiteral

Read = TypeVar("Read")

# A string as xDSL's lexer reads it, but possessive: where it does not close, nothing is tried again.
_COMMENT_OR_STRING = re.compile(r'//[^\n]*|(?P<string>"(?:[^"\\\n\v\f]|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+)(?P<end>")?')


def parse_module(ctx: Context, text: str, name: str = "<text>") -> ModuleOp:
    """
    Read the module in `text`; `name` is what errors call the text.

    ParseError says where the text is wrong. The result is not verified.
    """
    return IRParser(ctx, text, name).parse_module()


def module_text(
    module: ModuleOp,
    *,
    generic: bool = False,
    locations: bool = True,
    ctx: Context | None = None,
) -> str:
    """
    Return the module as text that ends in a newline and parses back to the same text.

    `generic` writes every op in MLIR's generic form; the resources that `ctx` holds (the data of
    `dense_resource` attributes) are written at the end.
    """
    out = StringIO()
    printer = IRPrinter(out, print_generic_format=generic, print_debuginfo=locations)
    printer.print_op(module)
    if ctx is not None:
        printer.print_metadata(ctx.loaded_dialects)
    return out.getvalue() + "\n"


# Most of a file consists of these, the same texts many times.
_PLAIN_TYPE = re.compile(r"tensor<[0-9x]*[a-z]+[0-9]*>")
_PLAIN_LOCATION = re.compile(r'loc\("[^"\\\n]*"\("[^"\\\n]*":\d+:\d+\)\)')


class IRParser(Parser):
    """
    xDSL's parser, which also keeps names as they are written and remembers where things stood.

    Plain tensor types and locations are read once for each way that they are written: half of the time of a file.

    `op_spans` maps each op to the place of its first token, `forward_spans` the name of each value that is
    used but not (yet) defined to the place of its first use. ParseError where a string does not close.
    """

    def __init__(self, ctx: Context, text: str, name: str = "<text>") -> None:
        check_strings(Input(text, name))
        super().__init__(ctx, "", name)
        self._parser_state = ParserState(_Lexer(Input(text, name)))
        self.op_spans: dict[Operation, Span] = {}
        self.forward_spans: dict[str, Span] = {}
        self._types: dict[str, TypeAttribute | None] = {}
        self._locations: dict[str, LocationAttr | None] = {}

    def parse_optional_type(self) -> TypeAttribute | None:
        start = self._current_token.span
        found = self._read_once(_PLAIN_TYPE, self._types, super().parse_optional_type)
        if isinstance(found, Float80Type | Float128Type):
            # xDSL cannot print a number of it.
            self.raise_error(f"no tensor has elements of {found}; expected f64, f32, bf16, ...", start.start, start.end)
        return found

    def parse_optional_location(self) -> LocationAttr | None:
        return self._read_once(_PLAIN_LOCATION, self._locations, super().parse_optional_location)

    def _read_once(self, pattern: re.Pattern[str], known: dict[str, Read], read: Callable[[], Read]) -> Read:
        """What `read` gives at this place; of text that `pattern` matches, what it gave the first time."""
        match = pattern.match(self.lexer.input.content, self._current_token.span.start)
        if match is None:
            return read()
        if (text := match[0]) not in known:
            known[text] = read()
        else:
            self._resume_from(match.end())
        return known[text]

    def parse_module(self, allow_implicit_module: bool = True) -> ModuleOp:
        start = self._current_token.span
        module = super().parse_module(allow_implicit_module)
        self.op_spans.setdefault(module, start)
        return module

    def parse_operation(self) -> Operation:
        start = self._current_token.span
        op = super().parse_operation()
        self.op_spans[op] = start
        return op

    def resolve_operand(self, operand: UnresolvedOperand, type: AttributeInvT) -> SSAValue[AttributeInvT]:
        if operand.operand_name not in self.ssa_values:
            self.forward_spans.setdefault(operand.operand_name, operand.span)
        return super().resolve_operand(operand, type)

    def _register_ssa_definition(self, name: str, values: Sequence[SSAValue], span: Span) -> None:
        super()._register_ssa_definition(name, values, span)
        self.forward_spans.pop(name, None)
        for value in values:
            _keep_name(value, name)

    def _parse_block(self) -> Block:
        name = self._current_token.text[1:]
        block = super()._parse_block()
        _keep_name(block, name)
        return block


class _Lexer(MLIRLexer):
    """xDSL's lexer, for which text in UTF-8 is text: xDSL takes a string for bytes once an escape is not ASCII."""

    def _lex_string_literal(self, start_pos: Position) -> MLIRToken:
        token = super()._lex_string_literal(start_pos)
        if token.kind is not MLIRTokenKind.BYTES_LIT or not isinstance(token.span, StringLiteral):
            return token
        try:
            token.span.bytes_contents.decode()
        except UnicodeDecodeError:
            return token
        return Token(MLIRTokenKind.STRING_LIT, token.span)


class IRPrinter(Printer):
    """
    xDSL's printer, which gives every value and block its own name if that is free, and else a new one.

    Properties of the generic form are printed by name, however the op was made; xDSL has them in the order in which
    they were set, and an assembly format sets them in another one than a constructor.
    """

    def print_ssa_value(self, value: SSAValue) -> str:
        if value.name_hint and value not in self._ssa_values:
            self._ssa_values[value] = _unused(value.name_hint, self.ssa_names)
        return super().print_ssa_value(value)

    def _populate_block_name(self, block: Block, block_index: int | None = None) -> None:
        if block.name_hint:
            self._blocks[block] = _unused(block.name_hint, self.block_names)
        else:
            super()._populate_block_name(block, block_index)

    def _print_op_properties(self, properties: dict[str, Attribute]) -> None:
        super()._print_op_properties(dict(sorted(properties.items())))


def check_strings(source: Input[str]) -> None:
    """Raise ParseError at the first string literal in `source` that does not close or has a bad escape."""
    for match in _COMMENT_OR_STRING.finditer(source.content):
        if match["string"] is None or match["end"] is not None:
            continue
        stop = match.end()
        if source.content[stop : stop + 1] == "\\":
            known = r"\n, \t, \\, \" and \XX with two hex digits"
            raise ParseError(Span(stop, stop + 2, source), f"unknown escape in a string; known are {known}")
        raise ParseError(Span(match.start(), stop, source), "this string is not closed on its line")


def _keep_name(value: SSAValue | Block, name: str) -> None:
    """Undo the setter's removal of `_1`; xDSL refuses names (`%0`, `^bb0`) by leaving the hint empty."""
    if value.name_hint:
        value._name = name  # pyright: ignore[reportPrivateUsage]


def _unused(name: str, taken: dict[str, int]) -> str:
    """Return `name`, or `name_1`, `name_2`, ..., whichever is not in `taken` yet, and note it there."""
    free, count = name, taken.get(name, 0)
    while free in taken:
        count += 1
        free = f"{name}_{count}"
    taken[name] = count
    taken.setdefault(free, 0)
    return free
