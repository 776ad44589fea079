"""The generated pages of the manual."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from xdsl.dialects.func import Func
from xdsl.passes import ModulePass

from shardwright.dialects.aten import ATEN
from shardwright.ir.not_supported import Refusal
from shardwright.tools.docs import dialects_page, main, not_supported_page, pages, passes_page
from shardwright.tools.pass_doc import pass_doc

DOCS = Path(__file__).parents[3] / "docs"


@dataclass(frozen=True)
class TwicePass(ModulePass):
    """
    Do it twice.

    Requires: nothing.
    Ensures: that it is done.

    Before:
    ```mlir
    func.func @f() { func.return }
    ```

    After:
    ```mlir
    func.func @f() { func.return }
    ```

    Source: this test.
    """

    name = "twice"

    how_often: int = 2
    """How often
    it is done."""
    by_whom: Literal["me", "you"] = "me"


@pytest.mark.parametrize("name", ["passes.md", "dialects.md", "not-supported.md", "options.md"])
def test_page_is_up_to_date(name: str):
    assert (DOCS / name).read_text() == pages()[name], f"docs/{name} is out of date: run `make docs`"


def test_pass_section_holds_every_part():
    page = passes_page([pass_doc(TwicePass)])
    assert "| [`twice`](#twice) | Do it twice. |" in page
    assert "| `how-often` | `int` | `2` | How often it is done. |" in page
    assert r"| `by-whom` | `me \| you` | `me` |  |" in page
    assert "**Ensures**: that it is done." in page
    assert "```mlir\nfunc.func @f() { func.return }\n```" in page


def test_op_section_gives_signature_and_syntax():
    page = dialects_page([Func])
    assert "### `func.call`\n\nSignature: `(arguments...) -> (res...)`" in page
    assert "Syntax: `` func.call $callee" in page
    assert "Attributes: `sym_name, function_type, sym_visibility?" in page


def test_a_refusal_is_a_row_with_its_advice():
    page = not_supported_page({"Loops": [Refusal("`a|b`", "use clip_norm"), Refusal("c", "d")]})
    assert "## Loops\n\n| not supported | the way out |" in page
    assert r"| `a\|b` | use clip\_norm |" in page
    assert "\n| c | d |\n" in page


def test_main_writes_all_pages(tmp_path: Path):
    assert main([str(tmp_path)]) == 0
    expected = ["dialects.md", "not-supported.md", "options.md", "passes.md"]
    assert sorted(path.name for path in tmp_path.iterdir()) == expected


def test_ops_of_the_table_are_shown_in_one_table():
    page = dialects_page([ATEN])
    rule = "`([i, k], [k, j]) -> ([i, j]) reduction={k}`"
    assert f"| `mm` | `self mat2` | {rule} | `self, mat2` | `2*i*j*k` |" in page
    assert "### `aten.opaque`" in page
    assert "### `aten.mm`" not in page
