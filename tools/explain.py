"""Conversion of exceptions in parsing, verification and passes to messages for the user."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping

from xdsl.context import Context
from xdsl.ir import Operation
from xdsl.utils.exceptions import DiagnosticException, MultipleSpansParseError, ParseError
from xdsl.utils.lexer import Input, Span

from ..dialects.text import IRParser
from ..passes.errors import PassError, describe, nearest, sentence
from ..passes.verification import Fault
from .diagnostics import Diagnostic, located


def parse_diagnostic(error: Exception, source: Input[str], parser: IRParser | None, ctx: Context) -> Diagnostic:
    """
    Return the diagnostic about `error`, which was raised while reading `source`.

    The parser reports most faults as ParseError, but a malformed file can make it raise any exception; the place of the
    diagnostic is then the parser's position.
    """
    if not isinstance(error, ParseError):
        return _unexpected(error, source, parser.pos if parser else 0)
    if parser and parser.forward_ssa_references:
        return _undefined_values(source, parser)
    message = _PLAIN_WORDS.get(error.msg.strip(), sentence(error.msg))
    start, end = _blamed(error, message)
    if start >= len(source.content.rstrip()):
        return _cut_off(source)
    hint = next((hint(match, ctx) for pattern, hint in _HINTS if (match := pattern.search(message))), "")
    return located(source, start, end, message, hint=hint, notes=_references(error))


def invalid_input(fault: Fault, source: Input[str], spans: Mapping[Operation, Span]) -> Diagnostic:
    """Return the diagnostic about IR that parses but does not verify."""
    first, *rest = fault.message.strip().splitlines()
    return about_op(fault.op, source, spans, f"{describe(fault.op)}: {sentence(first)}", notes=tuple(rest))


def pass_diagnostic(error: PassError, source: Input[str], spans: Mapping[Operation, Span]) -> Diagnostic:
    """Return the diagnostic about a pass that failed, with the pass, the op and the reason."""
    first, *rest = str(error).strip().splitlines()
    op = error.op or op_in_flight(error)
    if op is None:
        return Diagnostic(first, source.name, notes=tuple(rest), hint=_PASS_HINTS[error.kind])
    named = first if describe(op) in first else f"{first} [at {describe(op)}]"
    return about_op(op, source, spans, named, notes=tuple(rest), hint=_PASS_HINTS[error.kind])


def about_op(
    op: Operation,
    source: Input[str],
    spans: Mapping[Operation, Span],
    message: str,
    *,
    notes: tuple[str, ...] = (),
    hint: str = "",
) -> Diagnostic:
    """Return the diagnostic about `op`, at its place in the file, or at its parent's if a pass made the op."""
    around: Operation | None = op
    while around is not None and around not in spans:
        around = around.parent_op()
    if around is not op:
        notes = (*notes, f"the op was made by a pass: {_first_line(op)}")
    if around is None:
        return Diagnostic(message, source.name, notes=notes, hint=hint)
    span = spans[around]
    return located(source, span.start, span.end, message, hint=hint, notes=notes)


def op_in_flight(error: BaseException) -> Operation | None:
    """
    Return the op that was being processed when `error` was raised, or None if the traceback does not show one.

    Patterns and verifiers call it `op` or `self`. xDSL's own exceptions do not carry it, and neither do crashes.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    innermost: Operation | None = None
    trace = error.__traceback__
    while trace is not None:
        values = trace.tb_frame.f_locals
        candidates = (values.get(name) for name in ("op", "self"))
        here = next((each for each in candidates if isinstance(each, Operation)), None)
        # Skip the module: every pass works on it, so naming it does not help.
        if here is not None and here.parent is not None:
            innermost = here
        trace = trace.tb_next
    return innermost


def _first_line(op: Operation) -> str:
    # Printing may fail for an invalid op.
    try:
        return str(op).partition("\n")[0]
    except Exception:
        return f"'{op.name}'"


def _unexpected(error: Exception, source: Input[str], start: int) -> Diagnostic:
    """Return the diagnostic about an exception other than ParseError, raised with the parser at `start`."""
    match error:
        case RecursionError():
            message, hint = "nested too deeply to be read", ""
        case MemoryError():
            message, hint = "reading it takes more memory than is available", ""
        case ArithmeticError() | struct.error():
            message, hint = f"a number here is out of the range of its type: {error}", ""
        case DiagnosticException() | ValueError():
            message, hint = sentence(str(error)), ""
        case _:
            message = f"cannot be read here ({type(error).__name__}: {error})"
            hint = "the parser failed at this place; --debug-traceback shows where"
    return located(source, start, start + 1, message, hint=hint)


def _blamed(error: ParseError, message: str) -> tuple[int, int]:
    """Return the part of the source that caused an error, which xDSL may report at a later place."""
    span: Span[str] | Span[bytes] = error.span
    if isinstance(error, MultipleSpansParseError) and span.start >= len(span.input.content.rstrip()):
        # A missing block is reported at the end of the region, but the mistake is its use.
        span = error.refs[0][0]
    elif unregistered := _UNREGISTERED.search(message):
        # An unknown name is reported one token too late.
        name = unregistered["name"]
        start = str(span.input.content).rfind(name, 0, span.end)
        return max(start, 0), start + len(name)
    return span.start, span.end


def _undefined_values(source: Input[str], parser: IRParser) -> Diagnostic:
    names = list(parser.forward_ssa_references)
    span = parser.forward_spans[names[0]]
    others = f" (nor are {', '.join('%' + name for name in names[1:])})" if names[1:] else ""
    message = f"value %{names[0]} is used but not defined{others}"
    hint = nearest(names[0], set(parser.ssa_values))
    return located(source, span.start, span.end, message, hint=hint)


def _cut_off(source: Input[str]) -> Diagnostic:
    """Return the diagnostic about a text that ends in the middle of an operation."""
    last = len(source.content.rstrip())
    hint = "is the file cut off?"
    if (opener := unclosed_bracket(source.content)) is not None:
        line = source.content.count("\n", 0, opener) + 1
        hint = f"the '{source.content[opener]}' of line {line} is not closed; {hint}"
    return located(source, last, last + 1, "the text ends in the middle of an operation", hint=hint)


def unclosed_bracket(text: str) -> int | None:
    """Return the position of the innermost bracket that is open at the end of `text`, or None."""
    open_ones: list[int] = []
    for match in _BRACKETS.finditer(text):
        bracket = match[0]
        if bracket in "({[":
            open_ones.append(match.start())
        elif bracket in ")}]" and open_ones:
            open_ones.pop()
    return open_ones[-1] if open_ones else None


def _references(error: ParseError) -> tuple[str, ...]:
    if not isinstance(error, MultipleSpansParseError):
        return ()
    return tuple(f"{span.get_location()}: {sentence(text or error.ref_text or '')}" for span, text in error.refs)


def _unregistered_hint(match: re.Match[str], ctx: Context) -> str:
    name = match["name"]
    dialect, _, rest = name.partition(".")
    if rest and dialect in ctx.registered_dialect_names:
        definitions = [*ctx.loaded_ops, *ctx.loaded_attrs, *ctx.loaded_types]
        return nearest(name, [each.name for each in definitions if each.name.startswith(f"{dialect}.")])
    close = nearest(dialect, ctx.registered_dialect_names)
    unknown = f"there is no dialect '{dialect}'" if rest else "an op is written dialect.name"
    return " ".join(filter(None, [f"{unknown};", close, "--allow-unregistered-dialect accepts unknown names"]))


_BRACKETS = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*"|[(){}\[\]]')
_PLAIN_WORDS = {
    "Could not parse entire input!": "expected an operation",
    "in block definition": "expected an operation, a block label or '}'",
}
_UNREGISTERED = re.compile(r"'?(?P<name>[\w.$]+)'? is not registered$")
_HINTS: list[tuple[re.Pattern[str], Callable[[re.Match[str], Context], str]]] = [
    (_UNREGISTERED, _unregistered_hint),
    (
        re.compile(r"undefined symbol alias '(?P<sign>.)"),
        lambda match, ctx: f"write {match['sign']}dialect.name, or define {match['sign']}name = ... above",
    ),
    (
        re.compile(r"does not have a custom format$"),
        lambda match, ctx: 'write it in the generic form, "dialect.name"(%operands) : (types) -> types',
    ),
]
_PASS_HINTS = {
    "failed": "",
    "crashed": "this is a fault of the pass and not of the file; --debug-traceback shows where",
    "unsound": "this is a fault of the pass; --print-ir-before-all shows its input",
    "invalid": "this is a fault of the pass; --print-ir-before-all shows its input",
}
