"""
Every rule of the op table is a theorem, checked on numbers.

Each signature of each sample runs on simulated ranks of several meshes, with even splits (also of 6 over 4), and on
three ranks with an empty part, and must give the results of one device. `benchmarks/soundness.py` covers all meshes.
"""

import random
from collections import defaultdict

import pytest
from ir_files import context, parse
from op_samples import UNDEFINED, op_samples

from shardwright.ir.mesh import Mesh
from shardwright.ir.ops.table import op_table
from shardwright.ir.rules import Rule
from shardwright.ir.sharding import Reduction
from shardwright.lowering.interpreter.interpreter import find_function
from shardwright.lowering.interpreter.random_inputs import random_inputs
from shardwright.lowering.probe.soundness import MESHES, SoundnessVerdict, check_op, spread_signatures

_CONTEXT = context()
_SAMPLES: dict[str, list[str]] = defaultdict(list)
for _each in op_samples():
    _SAMPLES[_each.overload].append(_each.module)


def verdict(text: str, *, defined: bool = True) -> SoundnessVerdict:
    module = parse(text, _CONTEXT)
    return check_op(module, random_inputs(find_function(module)), thorough=False, defined=defined)


def test_every_row_has_a_sample():
    assert set(_SAMPLES) == set(op_table())


@pytest.mark.parametrize("overload", op_table())
def test_every_signature_gives_the_results_of_one_device(overload: str):
    for text in _SAMPLES[overload]:
        found = verdict(text, defined=overload not in UNDEFINED)
        assert found.holds, str(found.counterexample)
        assert found.checked >= len(MESHES)


def some_view(drawn: random.Random) -> tuple[list[int], list[int]]:
    """Return two shapes with the same number of elements, whose dims are products of groups of its primes."""
    primes = drawn.choices((1, 2, 2, 3, 5), k=drawn.randint(2, 5))

    def grouped() -> list[int]:
        shape = [1] * drawn.randint(1, 4)
        for prime in drawn.sample(primes, len(primes)):
            shape[drawn.randrange(len(shape))] *= prime
        return shape

    return grouped(), grouped()


def test_every_split_of_random_views_gives_the_results_of_one_device():
    drawn, checked = random.Random(31), 0
    for _ in range(100):
        source, target = some_view(drawn)
        one, other = (f"tensor<{'x'.join(map(str, shape))}xf64>" for shape in (source, target))
        found = verdict(f"""
func.func @op(%x: {one} {{train.batch = "x"}}) -> {other} {{
  %y = aten.view %x {{size = {target}}} : ({one}) -> {other}
  func.return %y : {other}
}}""")
        assert found.holds, str(found.counterexample)
        checked += found.checked
    assert checked > 1000


def test_tested_splits_are_even_rising_or_have_an_empty_part():
    rule = Rule(((("i",),),), ((),), {"i": 6}, {"i": Reduction.SUM})
    found = {str(each) for each in spread_signatures(rule, Mesh.of(x=3), uneven=True)}
    assert found == {
        "([{}]) -> ([])",
        '([{"x"}]) -> ([], unreduced={"x"})',
        '([{"x"}], offsets={0: [0, 1, 3, 6]}) -> ([], unreduced={"x"})',
        '([{"x"}], offsets={0: [0, 3, 3, 6]}) -> ([], unreduced={"x"})',
    }


@pytest.mark.parametrize(
    ("target", "rule", "types"),
    [
        ("relu.default", "([i, k]) -> ([i, k]) linear={0}", ["6x5", "6x5"]),
        ("mm.default", "([i, k], [k, j]) -> ([i, j])", ["6x5", "5x4", "6x4"]),
        ("addmm.default", "([j], [i, k], [k, j]) -> ([i, j]) reduction={k}", ["4", "6x5", "5x4", "6x4"]),
        ("addmm.default", "([j], [i, k], [k, j]) -> ([i, j]) linear={1}", ["4", "6x5", "5x4", "6x4"]),
        ("mm.default", "([i, k], [k, j]) -> ([i, j]) reduction={k} linear={0+1}", ["6x5", "5x4", "6x4"]),
        ("add.Tensor", "([i], [i]) -> ([i]) linear={0, 1}", ["6", "6", "6"]),
        ("t.default", "([i, j]) -> ([i, j])", ["6x6", "6x6"]),
        ("var.correction", "([i, k]) -> ([i]) reduction={max k}", ["6x5", "6"]),
        # HAP's released einsum splits the output along the factor that it sums over.
        ("bmm", "([b, i, k], [b, k, j]) -> ([b, i, k])", ["4x6x5", "4x5x5", "4x6x5"]),
        # HiDup's released attention splits queries, keys and values along the sequence.
        (
            "scaled_dot_product_attention.default",
            "([b, h, s, d], [b, h, s, d], [b, h, s, d]) -> ([b, h, s, d]) replicated={d}",
            ["4x6x5x2", "4x6x5x2", "4x6x5x2", "4x6x5x2"],
        ),
    ],
)
def test_a_wrong_rule_is_detected(target: str, rule: str, types: list[str]):
    tensors = [f"tensor<{shape}xf64>" for shape in types]
    arguments = ", ".join(f'%x{i}: {t} {{train.batch = "x"}}' for i, t in enumerate(tensors[:-1]))
    operands = ", ".join(f"%x{i}" for i in range(len(types) - 1))
    dims = "dim = [1], " if target.startswith("var") else ""
    text = f"""
func.func @op({arguments}) -> {tensors[-1]} {{
  %y = aten.opaque "aten::{target}" {operands} {{{dims}spmd.rule = #spmd.rule<"{rule}">}}
    : ({", ".join(tensors[:-1])}) -> {tensors[-1]}
  func.return %y : {tensors[-1]}
}}"""
    assert not verdict(text).holds
