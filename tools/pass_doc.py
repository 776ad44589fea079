"""
The parts of a pass's docstring.

The docstring of a pass has four parts. The IR in it is tested, and all parts become docs/passes.md:

    One sentence. Further paragraphs may follow.

    Requires: conditions on the module before the pass.
    Ensures: properties of the module after the pass.

    Pipeline: `my-pass{option=2}`      (only if the example uses options)

    Before:
    ```mlir
    ...
    ```

    After:
    ```mlir
    ...
    ```

    Source: the paper and section, or the origin of the idea.
"""

import ast
import inspect
import re
import textwrap
from dataclasses import dataclass

from xdsl.passes import ModulePass

from ..passes.pipeline_spec import PassOption, options_of
from ..passes.pipelines import NamedPipeline

_PARTS = ("Requires", "Ensures", "Before", "After", "Source")
_HEADER = re.compile(rf"^(?P<part>{'|'.join(_PARTS)}|Pipeline):[ \t]*(?P<rest>.*)$")
_FENCED = re.compile(r"```mlir\n(?P<ir>.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class PassDoc:
    """The parts of one pass's docstring, and its options with their meanings; `before` and `after` are IR."""

    name: str
    summary: str
    explanation: str
    requires: str
    ensures: str
    pipeline: str
    before: str
    after: str
    source: str
    options: tuple[tuple[PassOption, str], ...]


def pass_doc(pass_class: type[ModulePass]) -> PassDoc:
    """Return the parts of the docstring of `pass_class`; ValueError names the pass and the missing part."""
    parts = _split(inspect.cleandoc(pass_class.__dict__.get("__doc__") or ""))
    missing = [part for part in _PARTS if not parts.get(part)]
    if missing:
        raise ValueError(
            f"{_place(pass_class)}: the docstring of pass {pass_class.name!r} lacks {', '.join(missing)}; "
            f"each part starts a line with its name and a colon, as docs/adding-a-pass.md shows"
        )
    summary, _, explanation = parts[""].partition("\n\n")
    return PassDoc(
        name=pass_class.name,
        summary=summary,
        explanation=explanation.strip(),
        requires=parts["Requires"],
        ensures=parts["Ensures"],
        pipeline=parts.get("Pipeline", "").strip("`") or pass_class.name,
        before=_fenced(pass_class, "Before", parts["Before"]),
        after=_fenced(pass_class, "After", parts["After"]),
        source=parts["Source"],
        options=option_docs(pass_class),
    )


def _split(text: str) -> dict[str, str]:
    """Return the text of each part by its name; the opening prose has the name ''."""
    parts: dict[str, list[str]] = {"": []}
    part, in_fence = "", False
    for line in text.splitlines():
        in_fence ^= line.lstrip().startswith("```")
        if not in_fence and (header := _HEADER.match(line)):
            part = header["part"]
            line = header["rest"]
        parts.setdefault(part, []).append(line)
    return {name: textwrap.dedent("\n".join(lines)).strip() for name, lines in parts.items()}


def _fenced(pass_class: type[ModulePass], part: str, text: str) -> str:
    if match := _FENCED.search(text):
        return textwrap.dedent(match["ir"])
    raise ValueError(
        f"{_place(pass_class)}: {part} of pass {pass_class.name!r} has no IR; put it between ```mlir and ```"
    )


def _place(pass_class: type[ModulePass]) -> str:
    return f"{inspect.getsourcefile(pass_class)}:{inspect.getsourcelines(pass_class)[1]}"


def option_docs(pass_class: type[ModulePass | NamedPipeline]) -> tuple[tuple[PassOption, str], ...]:
    """Return the options of a pass, or of a named pipeline, each with its meaning."""
    # The docstrings under fields come from the source, because Python does not keep them.
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(pass_class))).body
    assert isinstance(definition, ast.ClassDef)
    meanings: dict[str, str] = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                meanings[name] = " ".join(inspect.cleandoc(text).split())
            case _:
                pass
    return tuple((option, meanings.get(option.name.replace("-", "_"), "")) for option in options_of(pass_class))
