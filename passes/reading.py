"""Parsing and verifying the text of a module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.utils.lexer import Input, Span

from ..dialects.text import IRParser
from .verification import Fault, first_fault

MOST_CHARACTERS = 2**28
"""Limit of the length of an IR text; parsing takes a few hundred times its size in memory."""


class TextError(ValueError):
    """
    Text that is not valid IR.

    Args:
        error: the exception of the parser, of any kind.
        parser: the parser, which knows its position in the text, or None if parsing did not begin.
    """

    def __init__(self, name: str, error: Exception, parser: IRParser | None) -> None:
        super().__init__(f"{name}: {error}")
        self.error, self.parser = error, parser


class InvalidModuleError(ValueError):
    """
    IR that parses and does not verify.

    Args:
        fault: the innermost op that does not verify, and the reason.
        spans: the positions of ops in the text.
    """

    def __init__(self, name: str, fault: Fault, spans: Mapping[Operation, Span]) -> None:
        super().__init__(f"{name}: '{fault.op.name}': {fault.message}")
        self.fault, self.spans = fault, spans


@dataclass(frozen=True)
class ReadModule:
    """A module that verifies, and the positions of its ops in the text."""

    module: ModuleOp
    spans: Mapping[Operation, Span]


def read_module(ctx: Context, source: Input[str]) -> ReadModule:
    """
    Return the module in a text.

    Raises:
        TextError: the text is not valid IR.
        InvalidModuleError: the IR does not verify.
    """
    parser = None
    try:
        if len(source.content) > MOST_CHARACTERS:
            raise ValueError(f"has {len(source.content)} characters, expected at most {MOST_CHARACTERS}")
        parser = IRParser(ctx, source.content, source.name)
        module = parser.parse_module()
    except Exception as error:
        raise TextError(source.name, error, parser) from error
    if fault := first_fault(module):
        raise InvalidModuleError(source.name, fault, parser.op_spans)
    return ReadModule(module, parser.op_spans)
