"""Functions for the computation between collectives: their text, and equal results of programs."""

import ast
import textwrap
from pathlib import Path

import pytest
from emitted import check_numbers
from ir_files import context, parse

from shardwright.runtime.compiled.split import with_compute_functions

GOLDEN = Path(__file__).parents[1] / "lowering" / "golden"


def split(body: str, head: str = "def step(comm, x, w, h):") -> str:
    return with_compute_functions(f"{head}\n{textwrap.indent(textwrap.dedent(body), '    ')}")


def functions(text: str) -> dict[str, str]:
    """Return the text of each function of a program."""
    return {each.name: ast.unparse(each) for each in ast.parse(text).body if isinstance(each, ast.FunctionDef)}


def normal(text: str) -> str:
    return ast.unparse(ast.parse(textwrap.dedent(text)))


def test_statements_between_collectives_become_a_function():
    text = split(
        """
        x = comm.all_gather(x, dim=0, axes=("dp",))
        a = aten.mm.default(x, w)
        del x
        b = aten.relu.default(a)
        token = comm.start("all_reduce", (b,), axes=("dp",))
        return token, a, b
        """
    )
    found = functions(text)
    assert list(found) == ["step_compute_1", "step"]
    assert found["step_compute_1"] == normal(
        """
        @compiled
        def step_compute_1(comm, given):
            [x, w] = given
            given.clear()
            a = aten.mm.default(x, w)
            del x
            b = aten.relu.default(a)
            return (a, b)
        """
    )
    assert found["step"] == normal(
        """
        def step(comm, x, w, h):
            x = comm.all_gather(x, dim=0, axes=("dp",))
            given = [x, w]
            del x
            a, b = step_compute_1(comm, given)
            token = comm.start("all_reduce", (b,), axes=("dp",))
            return token, a, b
        """
    )


def test_a_value_made_and_deleted_within_is_not_a_result():
    text = split("a = aten.exp.default(x)\nb = aten.neg.default(a)\ndel a\nreturn b")
    assert "return (b,)" in functions(text)["step_compute_1"]


def test_an_element_of_a_list_is_a_parameter_and_the_list_is_freed():
    text = split("a = aten.exp.default(h[2][1])\nb = aten.add.Tensor(a, h[0])\ndel h\nreturn a, b")
    made, step = functions(text).values()
    assert "[h_2_1, h_0] = given" in made
    assert "del h_2_1, h_0" in made
    assert "given = [h[2][1], h[0]]\n    del h\n" in step


def test_the_parameter_for_an_element_has_a_unique_name():
    made, _ = functions(split("h_0 = aten.exp.default(h[0])\ny = aten.mul.Tensor(h[0], h_0)\nreturn y")).values()
    assert "[h_0_] = given" in made
    assert "y = aten.mul.Tensor(h_0_, h_0)" in made


def test_an_overwritten_value_is_a_parameter_and_a_result():
    text = split("x = aten.add_.Tensor(x, w)\ny = aten.mul.Tensor(x, w)\nreturn x, y")
    assert "given = [x, w]\n    del x\n    x, y = step_compute_1" in functions(text)["step"]


@pytest.mark.parametrize(
    "statement",
    [
        "x = comm.all_reduce(x, axes=('dp',))",
        "x, kept = rt.random_dropout(x, seed, 0.5, stream=3)",
        "rt.adamw_(w, x, m, v, count, lr)",
        "x = torch.ops.mine.op.default(x)",
        "x = layer(comm, x)",
        "(first,), rest = rt.split(aten.unbind.int(x), 1, 2)",
        "x = aten.cat.default((*h,), 0)",
    ],
)
def test_other_statements_stay_where_they_are(statement: str):
    text = split(f"a = aten.exp.default(x)\nb = aten.neg.default(a)\n{statement}\nreturn a, b, x")
    assert ast.unparse(ast.parse(statement)) in functions(text)["step"]


def test_a_single_op_does_not_become_a_function():
    assert list(functions(split("a = aten.exp.default(x)\ndel x\nreturn a"))) == ["step"]


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.mlir")))
def test_programs_compute_the_same(name: str):
    path = GOLDEN / f"{name}.mlir"
    module = parse(path.read_text(), context(), str(path))
    text = with_compute_functions(path.with_suffix(".py").read_text())
    check_numbers(module, f"compiled = lambda function: function\n{text}")
