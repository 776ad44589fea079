"""The content of a report, independent of its HTML: sections with paragraphs, tables, charts and a tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from bokeh.models import Plot


BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, GREY = "#CC79A7", "#56B4E9", "#F0E442", "#7F7F7F"
"""The palette of Okabe and Ito, which readers with any kind of colour vision can tell apart."""


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class BarPart:
    """A part of a bar, with its length relative to the longest bar of the table."""

    name: str
    share: float
    colour: str = BLUE


@dataclass(frozen=True)
class PageTable:
    """
    A table whose first column names the rows.

    Args:
        folded: whether the reader has to open the table.
    """

    kind: ClassVar[str] = "table"
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    bars: Sequence[Sequence[BarPart]] = ()
    folded: bool = False


@dataclass(frozen=True)
class TermList:
    """Terms with their meanings."""

    kind: ClassVar[str] = "terms"
    title: str
    meanings: Mapping[str, str]


@dataclass(frozen=True)
class Chart:
    """
    An interactive chart.

    Args:
        says: description of the chart for readers who cannot see it.
    """

    kind: ClassVar[str] = "chart"
    title: str
    plot: Plot
    says: str


@dataclass(frozen=True)
class Node:
    """
    A module of the model, or several equal ones.

    Args:
        name: path within its parent.
        figures: facts about it in a line.
        rows: its parameters, as rows of a table.
    """

    name: str
    figures: str = ""
    rows: Sequence[Sequence[str]] = ()
    children: Sequence[Node] = ()


@dataclass(frozen=True)
class Tree:
    """The modules of a model; `head` names the columns of the rows of a node."""

    kind: ClassVar[str] = "tree"
    head: Sequence[str]
    nodes: Sequence[Node]


@dataclass(frozen=True)
class PageSection:
    """A section of the page; `key` is its anchor."""

    key: str
    title: str
    blocks: Sequence[Text | PageTable | TermList | Chart | Tree] = field(default_factory=tuple)
