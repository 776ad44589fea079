"""
The text form of IR, read and written so that names, locations and error positions survive.

xDSL alone strips `_1` from value names, may print one name twice (`%a`, `%a_1`, `%a_1_2`), drops locations
unless asked, forgets the positions of ops, and takes exponential time on an unterminated string.
`IRParser` and `IRPrinter` keep every name that is free, so printed text parses back to the same text.
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

# xDSL's pattern of a string, made possessive: an unterminated string causes no backtracking.
_COMMENT_OR_STRING = re.compile(r'//[^\n]*|(?P<string>"(?:[^"\\\n\v\f]|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+)(?P<end>")?')


def parse_module(ctx: Context, text: str, name: str = "<text>") -> ModuleOp:
    """
    Read the module in `text`; errors refer to the text as `name`.

    ParseError gives the position of the error. The result is not verified.
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


# A file consists mostly of these, with few distinct texts.
_PLAIN_TYPE = re.compile(r"tensor<[0-9x]*[a-z]+[0-9]*>")
_PLAIN_LOCATION = re.compile(r'loc\("[^"\\\n]*"\("[^"\\\n]*":\d+:\d+\)\)')


class IRParser(Parser):
    """
    A parser that also keeps names as they are written and records positions.

    Each distinct text of a plain tensor type or location is parsed only once, which halves the time of a file.

    `op_spans` maps each op to the position of its first token; `forward_spans` maps the name of each value that is
    used but not (yet) defined to the position of its first use. An unterminated string raises ParseError.
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
        parsed = self._read_once(_PLAIN_TYPE, self._types, super().parse_optional_type)
        if isinstance(parsed, Float80Type | Float128Type):
            # xDSL cannot print a number of this type.
            self.raise_error(
                f"no tensor has elements of {parsed}; expected f64, f32, bf16, ...", start.start, start.end
            )
        return parsed

    def parse_optional_location(self) -> LocationAttr | None:
        return self._read_once(_PLAIN_LOCATION, self._locations, super().parse_optional_location)

    def _read_once(self, pattern: re.Pattern[str], known: dict[str, Read], read: Callable[[], Read]) -> Read:
        """Return the result of `read`, cached by text if `pattern` matches at this position."""
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
    """A lexer that reads UTF-8 strings as text; xDSL reads a string as bytes if an escape is not ASCII."""

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
    A printer that keeps the name of every value and block if it is free, and else picks a new one.

    Properties in the generic form are sorted by name. xDSL prints them in insertion order, which differs
    between an assembly format and a constructor.
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
    """Raise ParseError at the first unterminated string literal or bad escape in `source`."""
    for match in _COMMENT_OR_STRING.finditer(source.content):
        if match["string"] is None or match["end"] is not None:
            continue
        stop = match.end()
        if source.content[stop : stop + 1] == "\\":
            known = r"\n, \t, \\, \" and \XX with two hex digits"
            raise ParseError(Span(stop, stop + 2, source), f"unknown escape in a string; known are {known}")
        raise ParseError(Span(match.start(), stop, source), "this string is not closed on its line")


def _keep_name(value: SSAValue | Block, name: str) -> None:
    """Restore a `_1` that the setter removed; xDSL refuses names (`%0`, `^bb0`) by leaving the hint empty."""
    if value.name_hint:
        value._name = name  # pyright: ignore[reportPrivateUsage]


def _unused(name: str, taken: dict[str, int]) -> str:
    """Return the first of `name`, `name_1`, `name_2`, ... that is not in `taken`, and add it to `taken`."""
    free, count = name, taken.get(name, 0)
    while free in taken:
        count += 1
        free = f"{name}_{count}"
    taken[name] = count
    taken.setdefault(free, 0)
    return free
