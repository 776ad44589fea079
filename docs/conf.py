"""Configuration of the manual as a site: `make site` builds it with Sphinx from the pages of this folder."""

import re

from pygments.lexer import RegexLexer, words
from pygments.token import Comment, Keyword, Name, Number, Operator, String, Text
from sphinx.application import Sphinx

from shardwright import __version__ as release

project = "Shardwright"
author = "the authors of Shardwright"
project_copyright = author

extensions = ["myst_parser"]
root_doc = "index"
html_theme = "furo"
html_title = f"Shardwright {release}"
html_copy_source = False

# Headings have the anchors that GitHub gives them, so that a link leads to the same place in both.
myst_heading_anchors = 4
# Blocks without a language are commands with their output.
highlight_language = "none"


class MLIRLexer(RegexLexer):
    """Highlight the text form of the IR, which Pygments does not know."""

    name = "MLIR"
    tokens = {  # noqa: RUF012
        "root": [
            (r"//.*", Comment),
            (r'"(\\.|[^"\\])*"', String),
            (r"%[\w.$-]+(:\d+|#\d+)?", Name.Variable),
            (r"@[\w.$-]+", Name.Function),
            (r"[#!][\w.$]+", Name.Class),
            (words(("tensor", "index", "true", "false", "loc", "dense", "none"), prefix=r"\b", suffix=r"\b"), Keyword),
            (r"\b(bf16|[fi]\d+)\b", Keyword.Type),
            (r"[a-z_]\w*(\.\w+)+", Name.Builtin),
            (r"-?\b\d+(\.\d+)?([eE][+-]?\d+)?\b", Number),
            (r"->|[=:]", Operator),
            (r"\w+|\s+|.", Text),
        ]
    }


def read_page(app: Sphinx, name: str, source: list[str]) -> None:
    """
    Adapt a page, which GitHub shows as it is, to Sphinx.

    Pages outside this folder become downloads, as other files do. The pages that a section of index.md links to become
    its part of the navigation.
    """
    source[0] = source[0].replace("](../", "](path:../")
    if name == root_doc:
        for section in source[0].split("\n## ")[1:]:
            pages = dict.fromkeys(re.findall(r"\]\(([\w-]+)\.md\)", section))
            caption = section.partition("\n")[0]
            source[0] += "\n".join(("\n```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```\n"))


def setup(app: Sphinx) -> None:
    """Add to Sphinx the parts that are defined here."""
    app.add_lexer("mlir", MLIRLexer)
    app.connect("source-read", read_page)
