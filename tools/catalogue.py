"""What `opt-tool` offers, as text: passes with their options, dialects, versions."""

from __future__ import annotations

import sys
import textwrap
from importlib.metadata import version

from xdsl.universe import XDSL_UNIVERSE

from ..passes.pipeline_spec import options_of
from .opt_arguments import options_text
from .pass_doc import pass_doc
from .universe import UNIVERSE


def help_text() -> str:
    """Return the text of --help: the tool's options, then every pass of ours with its own."""
    own = "\n".join(_pass_help(name) for name in sorted(UNIVERSE.all_passes))
    return f"{options_text()}\npasses:\n{own}\n{_xdsl_passes()}"


def passes_text() -> str:
    """Return the text of --list-passes: ours with what they do, xDSL's by name."""
    names = sorted(UNIVERSE.all_passes)
    width = max(map(len, names), default=0)
    rows = (f"  {name:{width}}  {pass_doc(UNIVERSE.all_passes[name]()).summary}\n" for name in names)
    return f"Shardwright's passes:\n{''.join(rows)}\n{_xdsl_passes()}"


def dialects_text() -> str:
    """Return the text of --show-dialects."""
    ours = ", ".join(sorted(UNIVERSE.all_dialects))
    theirs = ", ".join(sorted(XDSL_UNIVERSE.all_dialects))
    return f"Shardwright's dialects:\n{_wrapped(ours)}\n\nxDSL's:\n{_wrapped(theirs)}\n"


def version_text() -> str:
    """Return the text of --version: what to write into a bug report."""
    python = ".".join(map(str, sys.version_info[:3]))
    return f"opt-tool (shardwright {version('shardwright')}), xDSL {version('xdsl')}, Python {python}\n"


def _pass_help(name: str) -> str:
    pass_type = UNIVERSE.all_passes[name]()
    doc = pass_doc(pass_type)
    meanings = {option.name: option.description for option in doc.options}
    options = (f"      {each}\n{_wrapped(meanings[each.name], 10)}\n" for each in options_of(pass_type))
    return f"  {name}\n{_wrapped(doc.summary, 6)}\n{''.join(options)}"


def _xdsl_passes() -> str:
    return f"xDSL's passes:\n{_wrapped(', '.join(sorted(XDSL_UNIVERSE.all_passes)))}\n"


def _wrapped(text: str, indent: int = 2) -> str:
    margin = " " * indent
    return textwrap.fill(
        text,
        width=100,
        initial_indent=margin,
        subsequent_indent=margin,
        break_on_hyphens=False,
        break_long_words=False,
    )
