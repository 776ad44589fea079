"""The passes with their options, the dialects and the versions of `opt-tool`, as text."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterable

from xdsl.universe import XDSL_UNIVERSE

from ..ir.versions import version_of
from ..passes.pipeline import Pipeline
from ..passes.pipeline_spec import PassOption
from ..passes.pipelines import PIPELINES
from .opt_arguments import options_text
from .pass_doc import option_docs, pass_doc
from .universe import UNIVERSE


def help_text() -> str:
    """Return the text of --help: the tool's options, then each pass and named pipeline with its options."""
    passes = map(pass_doc, (UNIVERSE.all_passes[name]() for name in sorted(UNIVERSE.all_passes)))
    own = "\n".join(_help(doc.name, doc.summary, doc.options) for doc in passes)
    named = "\n".join(
        _help(f"{name} = {Pipeline.parse(name)}", inspect.getdoc(pipeline) or "", option_docs(pipeline))
        for name, pipeline in PIPELINES.items()
    )
    return f"{options_text()}\npipelines:\n{named}\npasses:\n{own}\n{_xdsl_passes()}"


def passes_text() -> str:
    """Return the text of --list-passes: named pipelines with their passes, our passes, and xDSL's."""
    pipelines = (f"  {name}\n{_wrapped(str(Pipeline.parse(name)), 6)}\n" for name in PIPELINES)
    names = sorted(UNIVERSE.all_passes)
    width = max(map(len, names), default=0)
    rows = (f"  {name:{width}}  {pass_doc(UNIVERSE.all_passes[name]()).summary}\n" for name in names)
    return f"Named pipelines:\n{''.join(pipelines)}\nShardwright's passes:\n{''.join(rows)}\n{_xdsl_passes()}"


def dialects_text() -> str:
    """Return the text of --show-dialects."""
    ours = ", ".join(sorted(UNIVERSE.all_dialects))
    theirs = ", ".join(sorted(XDSL_UNIVERSE.all_dialects))
    return f"Shardwright's dialects:\n{_wrapped(ours)}\n\nxDSL's:\n{_wrapped(theirs)}\n"


def version_text() -> str:
    """Return the text of --version, for bug reports."""
    python = ".".join(map(str, sys.version_info[:3]))
    return f"opt-tool (shardwright {version_of('shardwright')}), xDSL {version_of('xdsl')}, Python {python}\n"


def _help(name: str, summary: str, options: Iterable[tuple[PassOption, str]]) -> str:
    lines = (f"      {option}\n{_wrapped(meaning, 10)}\n" for option, meaning in options)
    return f"  {name}\n{_wrapped(summary, 6)}\n{''.join(lines)}"


def _xdsl_passes() -> str:
    return f"xDSL's passes:\n{_wrapped(', '.join(sorted(XDSL_UNIVERSE.all_passes)))}\n"


def _wrapped(text: str, indent: int = 2) -> str:
    margin = " " * indent
    return textwrap.fill(
        text, width=100, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False, break_long_words=False
    )
