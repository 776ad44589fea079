"""The IR in the docstring of each pass is correct: the pass runs on Before, and the result equals After."""

from collections.abc import Callable

import pytest
from ir_files import context, parse
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from shardwright.dialects.text import module_text
from shardwright.passes.pipeline import run_pipeline
from shardwright.tools.pass_doc import pass_doc
from shardwright.tools.universe import UNIVERSE


def in_short(module: ModuleOp) -> str:
    """Return the text of a module without locations, which docstrings omit."""
    return module_text(module, locations=False)


def run(pipeline: str, text: str) -> ModuleOp:
    """Return the module in `text` after `pipeline`, which may include passes of xDSL."""
    ctx = context()
    module = parse(text, ctx)
    run_pipeline(ctx, module, pipeline)
    return module


@pytest.mark.parametrize("load", list(UNIVERSE.all_passes.values()), ids=list(UNIVERSE.all_passes))
def test_docstring_shows_the_result_of_the_pass(load: Callable[[], type[ModulePass]]):
    doc = pass_doc(load())
    after = parse(doc.after, context())
    assert in_short(run(doc.pipeline, doc.before)) == in_short(after)


@pytest.mark.parametrize(("name", "load"), list(UNIVERSE.all_passes.items()), ids=list(UNIVERSE.all_passes))
def test_pass_is_registered_under_its_own_name(name: str, load: Callable[[], type[ModulePass]]):
    assert load().name == name


class RenamePass(ModulePass):
    """
    Rename every function.

    Even unused ones.

    Requires: nothing.
    Ensures: every function is
        called `g`.

    Before:
    ```mlir
    func.func @f() { func.return }
    ```

    After:

        ```mlir
        func.func @g() { func.return }
        ```

    Source: this test.
    """

    name = "rename"


def test_parts_of_a_docstring_are_parsed():
    doc = pass_doc(RenamePass)
    assert (doc.summary, doc.explanation) == ("Rename every function.", "Even unused ones.")
    assert (doc.requires, doc.source, doc.pipeline) == ("nothing.", "this test.", "rename")
    assert doc.before == "func.func @f() { func.return }\n"
    assert doc.after == "func.func @g() { func.return }\n"


class SilentPass(ModulePass):
    """
    Say nothing more.

    Requires: nothing.
    """

    name = "silent"


def test_missing_parts_are_named():
    expected = r"test_docstrings.py:\d+: .*'silent' lacks Ensures, Before, After, Source"
    with pytest.raises(ValueError, match=expected):
        pass_doc(SilentPass)
