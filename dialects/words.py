"""Attributes that are one word of a fixed set: `"padded"`, and `#spmd<method "padded">` in the generic form."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import ClassVar, TypeVar, cast, get_args

from xdsl.ir import Data, SpacedOpaqueSyntaxAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from ..ir.collective_cost import Method
from ..ir.collectives import CollectiveKind
from .kinds import one_of

Word = TypeVar("Word", bound=str)


class WordAttr(Data[Word], SpacedOpaqueSyntaxAttribute, ABC):
    """One word of a fixed set; xDSL's EnumAttribute writes words without quotes."""

    WORDS: ClassVar[Sequence[str]]
    """The allowed words."""

    def verify(self) -> None:
        """Raise VerifyException for any other word."""
        if (problem := self._problem(self.data)) is not None:
            raise VerifyException(problem)

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Word:
        at, word = parser.pos, parser.parse_str_literal()
        if (problem := cls._problem(word)) is not None:
            parser.raise_error(problem, at)
        return cast("Word", next(known for known in cls.WORDS if known == word))

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string_literal(str(self.data))

    @classmethod
    def _problem(cls, word: str) -> str | None:
        """Return why `word` is not allowed, or None if it is."""
        if word in cls.WORDS:
            return None
        return f'{cls.name} is "{word[:60]}", expected {one_of(cls.WORDS).words}'


@irdl_attr_definition
class MethodAttr(WordAttr[Method]):
    """The method of a collective."""

    name = "spmd.method"
    WORDS: ClassVar[Sequence[str]] = get_args(Method)


@irdl_attr_definition
class CollectiveKindAttr(WordAttr[CollectiveKind]):
    """The kind of a collective that is started: a kind that sends data."""

    name = "spmd.kind"
    WORDS: ClassVar[Sequence[str]] = [kind for kind in CollectiveKind if not kind.is_local]
