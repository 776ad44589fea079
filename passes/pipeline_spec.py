"""Parsing of the text of a pipeline, `search-strategy{algorithm=fixed},insert-resharding`, into passes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import ArgSpec, ParameterListType, PipelineLexer, SpecTokenKind
from xdsl.utils.arg_spec import parse_pipeline as parse_specs
from xdsl.utils.exceptions import ArgSpecParseError, ParseError
from xdsl.utils.hints import isa

from ..dialects.cluster_attrs import float_text
from .errors import nearest, sentence
from .pipelines import PIPELINES, NamedPipeline
from .registry import PassFactory, available_passes, our_passes


class PipelineError(ValueError):
    """
    A pipeline that cannot be built.

    `text[start:end]` is the wrong part of the pipeline, `hint` the suggested correction (may be empty).
    """

    def __init__(self, message: str, text: str, start: int, end: int, hint: str = "") -> None:
        super().__init__(f"{message}\n  {text}\n  {' ' * start}{'^' * max(end - start, 1)}\n{hint}".rstrip())
        self.message = message
        self.text = text
        self.start = start
        self.end = end
        self.hint = hint


@dataclass(frozen=True)
class PassOption:
    """An option as a pipeline spells it; `default` is None if the option is required."""

    name: str
    type: str
    default: str | None

    def __str__(self) -> str:
        return f"{self.name}: {self.type}" + ("" if self.default is None else f" = {self.default}")


def parse_pipeline(text: str, available: Mapping[str, PassFactory] | None = None) -> tuple[ModulePass, ...]:
    """
    Return the passes that `text` names, with their options set; a named pipeline stands for its passes.

    The grammar is xDSL's: commas between passes; options in braces with one blank between them; commas between the
    items of a list; quotes around any other text, including nested pipelines: `fixed-point{pipeline="a{x=1},b" max=3}`.
    PipelineError points at the wrong pass, option or character.
    """
    factories = available_passes() if available is None else available
    try:
        specs = list(parse_specs(text))
    except ArgSpecParseError as error:
        raise _syntax_error(str(error), text) from error
    except ParseError as error:
        raise PipelineError(sentence(error.msg), text, error.span.start, error.span.end) from error
    named = (_build(spec, places, text, factories) for spec, places in zip(specs, _places(text), strict=True))
    return tuple(
        step
        for part in named
        for step in ((part,) if isinstance(part, ModulePass) else parse_pipeline(part.text, available))
    )


def quoted(text: str) -> str:
    """
    Return `text` as the value of an option, for example a path.

    Raises:
        PipelineError: `text` has a character that a pipeline cannot spell.
    """
    wrong = next((at for at, c in enumerate(text) if c in "\r\f\v\0" or "\ud800" <= c <= "\udfff"), None)
    if wrong is not None:
        message = f"the value of an option cannot have the character {text[wrong]!r}"
        raise PipelineError(message, text.encode(errors="replace").decode(), wrong, wrong + 1, "rename it")
    return f'"{"".join(_ESCAPES.get(c, c) for c in text)}"'


def pass_text(each: ModulePass) -> str:
    """Return a pass with its non-default options as a pipeline spells it: `search-strategy{algorithm=fixed}`."""
    required = type(each).required_fields()
    values = ((field, getattr(each, field.name)) for field in fields(each) if field.init)
    texts = [
        field.name.replace("_", "-") + (f"={_spelled(value)}" if value not in (None, ()) else "")
        for field, value in values
        if field.name in required or value != _default(field)
    ]
    return each.name + (f"{{{' '.join(texts)}}}" if texts else "")


def _spelled(value: object) -> str:
    """Return a value so that it is read back as the same value, not as a number or a keyword."""
    match value:
        case float():
            return float_text(value)
        case str():
            return value if _WORD.fullmatch(value) and value not in ("true", "false") else quoted(value)
        case tuple():
            return ",".join(map(_spelled, cast(tuple[object, ...], value)))
        case _:
            return str(value).lower()


_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}


def options_of(pass_type: type[ModulePass | NamedPipeline]) -> tuple[PassOption, ...]:
    """Return the options of a pass, or of a named pipeline, in the order it declares them."""
    hints, required = get_type_hints(pass_type), pass_type.required_fields()
    return tuple(
        PassOption(
            field.name.replace("_", "-"),
            _type_text(hints[field.name]),
            None if field.name in required else _value_text(_default(field)),
        )
        for field in fields(pass_type)
        if field.init
    )


def _default(field: Field[object]) -> object:
    if field.default is not MISSING:
        return field.default
    return None if field.default_factory is MISSING else field.default_factory()


def _value_text(value: object) -> str:
    match value:
        case None | ():
            return "none"
        case bool():
            return str(value).lower()
        case str():
            return value if re.fullmatch(r"[\w-]+", value) else quoted(value)
        case tuple():
            return ",".join(map(_value_text, cast(tuple[object, ...], value)))
        case _:
            return str(value)


def _type_text(hint: Any) -> str:
    """Return a type as an option's user reads it: `greedy | exact`, `int | none`, `int,...`."""
    arguments = get_args(hint)
    if get_origin(hint) is Literal:
        return " | ".join(map(_value_text, arguments))
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(map(_type_text, arguments))
    if get_origin(hint) is tuple:
        return ",".join("..." if part is ... else _type_text(part) for part in arguments)
    return "none" if hint is NoneType else hint.__name__


@dataclass(frozen=True)
class _PassSpan:
    """Where a pipeline names one pass and its options; spans are half-open."""

    span: tuple[int, int]
    options: dict[str, tuple[int, int]]


def _places(text: str) -> list[_PassSpan]:
    """Return the place of every pass in `text`, which xDSL has parsed. Raises PipelineError at a repeated option."""
    places: list[_PassSpan] = []
    lexer = PipelineLexer(text)
    before, in_options = SpecTokenKind.COMMA, False
    while (token := lexer.lex()).kind is not SpecTokenKind.EOF:
        span = (token.span.start, token.span.end)
        if token.kind in (SpecTokenKind.L_BRACE, SpecTokenKind.R_BRACE):
            in_options = token.kind is SpecTokenKind.L_BRACE
        elif token.kind is SpecTokenKind.IDENT and not in_options:
            places.append(_PassSpan(span, {}))
        elif token.kind is SpecTokenKind.IDENT and before in (SpecTokenKind.L_BRACE, SpecTokenKind.SPACE):
            if token.text in places[-1].options:
                raise PipelineError(f"option '{token.text}' is given twice", text, *span)
            places[-1].options[token.text] = span
        before = token.kind
    return places


def _syntax_error(report: str, text: str) -> PipelineError:
    """Return the error for xDSL's report, whose text ends with the position: `pass-pipeline:1:5`."""
    line, column = map(int, re.findall(r"^pass-pipeline:(\d+):(\d+)$", report, re.MULTILINE)[0])
    start = sum(len(row) + 1 for row in text.split("\n")[: line - 1]) + column - 1
    reason = sentence(report.strip().rpartition("\n")[2])
    end = start + max(map(len, re.findall(r"^ *(\^+)$", report, re.MULTILINE)))
    wrong = text[start : start + 1]
    return PipelineError(f"malformed pipeline: {reason}", text, start, end, _SYNTAX_HINTS.get(wrong, _GRAMMAR))


_GRAMMAR = 'write pass{option=value other="any text"},next-pass'
_SYNTAX_HINTS = {
    "": f"the pipeline ends too early; {_GRAMMAR}",
    " ": f"passes are parted by a comma alone, options by one blank; {_GRAMMAR}",
    '"': "this quoted text is not closed",
    "[": 'a nested pipeline is a quoted string: fixed-point{pipeline="first-pass,second-pass"}',
    "/": 'quote a path or any other text: option="path/to/file"',
    ".": "no builtin.module(...) is written around a pipeline; any text but a word or number is quoted",
}


def _build(spec: ArgSpec, place: _PassSpan, text: str, known: Mapping[str, PassFactory]) -> ModulePass | NamedPipeline:
    """Return a pass or named pipeline with its options set. PipelineError points at its name or option."""
    if spec.name not in known and spec.name not in PIPELINES:
        ours = f"shardwright's passes are {', '.join(sorted(our_passes()))}; its pipelines are {', '.join(PIPELINES)}"
        hint = f"{nearest(spec.name, [*known, *PIPELINES])} {ours}".strip()
        raise PipelineError(f"unknown pass '{spec.name}'", text, *place.span, hint)
    try:
        pass_type = known[spec.name]() if spec.name in known else PIPELINES[spec.name]
    except ImportError as error:
        raise PipelineError(f"pass '{spec.name}' cannot be loaded: {error}", text, *place.span) from error
    options = {option.name: option for option in options_of(pass_type)}
    hints = get_type_hints(pass_type)
    for name, value in spec.parameters.items():
        option = options.get(name.replace("_", "-"))
        if option is None:
            message = f"pass '{spec.name}' has no option '{name}'"
            raise PipelineError(message, text, *place.options[name], _option_hint(name, options))
        if not _fits(value, hints[name.replace("-", "_")]):
            given = ",".join(map(_value_text, value)) or "no value"
            message = f"option '{name}' of pass '{spec.name}' takes {option.type}, not '{given}'"
            raise PipelineError(message, text, *place.options[name], _option_hint("", options))
    given_names = {name.replace("_", "-") for name in spec.parameters}
    if missing := [o.name for o in options.values() if o.default is None and o.name not in given_names]:
        message = f"pass '{spec.name}' needs its option '{missing[0]}'"
        raise PipelineError(message, text, *place.span, _option_hint("", options))
    try:
        return pass_type.from_spec(spec)
    except ValueError as error:
        message = f"pass '{spec.name}' refuses its options: {error}"
        raise PipelineError(message, text, *place.span, _option_hint("", options)) from error


def _fits(value: ParameterListType, hint: Any) -> bool:
    """Return whether xDSL would accept the values of an option for its type."""
    if not value:
        return NoneType in get_args(hint)
    return (len(value) == 1 and isa(value[0], hint)) or isa(value, hint)


def _option_hint(name: str, options: Mapping[str, PassOption]) -> str:
    if not options:
        return "it takes no options"
    listed = "; ".join(map(str, options.values()))
    return " ".join(filter(None, [nearest(name, options), f"its options are {listed}"]))
