"""The work of ops: operations and bytes by family, and the key of a measured time."""

from typing import Any

import pytest

from shardwright.ir.op_cost import OpWork
from shardwright.ir.ops.counts import OpCounts
from shardwright.ir.ops.spec import OpInstance
from shardwright.ir.ops.table import op_table

Shape = tuple[int, ...]


def counts(
    name: str, operands: list[Shape], results: list[Shape], dtypes: str = "float32", **arguments: Any
) -> OpCounts:
    """Return the counts of an op; `dtypes` lists dtypes of operands and results, and the last one repeats."""
    spec = op_table()[name]
    names = spec.operands[: len(operands)]
    if names and names[0].startswith("*"):
        names = (names[0][1:],) * len(operands)
    op = OpInstance(name, tuple(operands), tuple(results), names, arguments)
    given = dtypes.split()
    kinds = [given[min(i, len(given) - 1)] for i in range(len(operands) + len(results))]
    widths = [{"int64": 8, "bool": 1}.get(kind, 4) for kind in kinds]
    return OpCounts.of(spec, op, spec.bind(op), kinds, widths)


def work(*args: Any, **arguments: Any) -> OpWork:
    found = counts(*args, **arguments)
    return found.work(found.rule.sizes)


IMAGE, KERNEL, OUT = (2, 3, 8, 8), (5, 3, 3, 3), (2, 5, 6, 6)
CONVOLVED = 2 * 2 * 5 * 3 * 9 * 36


@pytest.mark.parametrize(
    ("of", "flops", "elements"),
    [
        (work("mm", [(4, 6), (6, 8)], [(4, 8)]), 2 * 4 * 6 * 8, 24 + 48 + 32),
        (work("add.Tensor", [(4, 6), (6,)], [(4, 6)]), 24, 24 + 6 + 24),
        (work("sum", [(4, 6)], [()]), 24, 24 + 1),
        (work("exp", [(4, 6)], [(4, 6)]), 25 * 24, 48),
        (work("pow.Tensor_Scalar", [(24,)], [(24,)], exponent=2), 10 * 24, 48),
        (work("pow.Tensor_Scalar", [(24,)], [(24,)], exponent=1.7), 70 * 24, 48),
        (work("zeros_like", [(24,)], [(24,)]), 24, 24),
        (work("empty_like", [(24,)], [(24,)]), 0, 0),
        (work("copy", [(24,), (24,)], [(24,)]), 24, 48),
        (work("cat", [(2, 3), (4, 3)], [(6, 3)], dim=0), 18, 36),
        (work("slice_copy.Tensor", [(8, 3)], [(2, 3)], dim=0, end=2), 6, 12),
        (work("gather", [(8, 9), (8, 2)], [(8, 2)], "float32 float32 float32", dim=1), 20 * 16, 48),
        (work("linalg_cholesky_ex", [(5, 6, 6)], [(5, 6, 6), (5,)]), 5 * 6**3 / 3, 365),
        (work("convolution", [IMAGE, KERNEL], [OUT], groups=1), CONVOLVED, 384 + 135 + 360),
        (
            work("convolution", [OUT, (5, 3, 3, 3)], [IMAGE], groups=1, transposed=True),
            CONVOLVED,
            384 + 135 + 360,
        ),
        (
            work("convolution_backward", [OUT, IMAGE, KERNEL], [IMAGE, KERNEL, (5,)], output_mask=(True,) * 3),
            2 * CONVOLVED,
            360 + 2 * (384 + 135) + 5,
        ),
        (
            work("convolution_backward", [OUT, IMAGE, KERNEL], [(), KERNEL, (5,)], output_mask=(False, True, True)),
            CONVOLVED,
            360 + 384 + 2 * 135 + 1 + 5,
        ),
        (
            work("attention", [(2, 3, 8, 4)] * 3, [(2, 3, 8, 4), (2, 3, 8)]),
            4 * 2 * 3 * 8 * 8 * 4,
            4 * 192 + 48,
        ),
        (
            work("attention", [(2, 3, 512, 4)] * 3, [(2, 3, 512, 4), (2, 3, 512)], is_causal=True),
            0.625 * 4 * 2 * 3 * 512 * 512 * 4,
            64 * (4 * 192 + 48),
        ),
        (work("random_uniform", [(24,)], [(24,)], size=[24], stream=0), 130 * 24, 10 * 24),
    ],
    ids=lambda value: value.key if isinstance(value, OpWork) else "",
)
def test_operations_and_bytes_of_each_family(of: OpWork, flops: float, elements: float):
    assert (of.flops, of.bytes) == (pytest.approx(flops), 4 * elements)


def test_only_the_looked_up_rows_of_a_table_are_read():
    found = work("embedding", [(1000, 16), (4, 8)], [(4, 8, 16)], "float32 int64 float32")
    assert found.bytes == 4 * 512 + 8 * 32 + 4 * 512
    lost = work("nll_loss_forward", [(4, 1000), (4,)], [(), ()], "float32 int64 float32", reduction=2)
    assert lost.bytes == 4 * 4 + 8 * 4 + 4 + 4


def test_a_view_costs_nothing():
    for of in (work("view", [(4, 6)], [(24,)], size=[24]), work("slice.Tensor", [(4, 6)], [(2, 6)], dim=0, end=2)):
        assert of == OpWork("views", "float32", 0.0, 0.0, of.key)


def test_a_part_costs_less_and_reads_all_of_a_replicated_operand():
    product = counts("mm", [(4, 6), (6, 8)], [(4, 8)])
    half = product.work({**product.rule.sizes, "i": 2})
    assert (half.flops, half.bytes) == (2 * 2 * 6 * 8, 4 * (12 + 48 + 16))
    grouped = counts("grouped_mm", [(6, 4), (3, 4, 5), (3,)], [(6, 5)])
    assert grouped.work(grouped.rule.sizes).flops == 2 * 6 * 4 * 5
    assert grouped.work({**grouped.rule.sizes, "e": 1}).flops == 2 * 6 * 4 * 5 / 3


def test_the_dtype_is_that_of_the_first_floating_point_tensor():
    assert work("where.self", [(4,)] * 3, [(4,)], "bool bfloat16").dtype == "bfloat16"
    assert work("eq.Tensor", [(4,)] * 2, [(4,)], "int64 int64 bool").dtype == "int64"


@pytest.mark.parametrize(
    ("of", "key"),
    [
        (counts("mm", [(64, 32), (32, 16)], [(64, 16)]), "mm(float32[64x32], float32[32x16])"),
        (counts("sum", [()], [()]), "sum(float32[])"),
        (counts("sum.dim_IntList", [(4, 6)], [(4,)], dim=[-1]), "sum.dim_IntList(float32[4x6], dim=[-1])"),
        (
            counts("native_dropout_backward", [(4,), (4,)], [(4,)], "float32 bool float32", scale=1.25),
            "native_dropout_backward(float32[4], bool[4], scale=1.25)",
        ),
        (counts("full", [], [(4, 6)], size=[4, 6], fill_value=0), "full(fill_value=0) -> float32[4x6]"),
        (
            counts("random_dropout", [(4,), ()], [(4,), (4,)], "float32 int64 float32 bool", p=0.1, stream=7),
            "random_dropout(float32[4], int64[], p=0.1) -> float32[4], bool[4]",
        ),
    ],
)
def test_a_key_has_local_shapes_and_the_arguments_that_change_the_work(of: OpCounts, key: str):
    assert of.work(of.rule.sizes).key == key
    assert of.work(of.rule.sizes, keyed=False).key == ""


def test_a_key_has_the_shapes_of_the_part():
    product = counts("mm", [(64, 32), (32, 16)], [(64, 16)])
    assert product.key({**product.rule.sizes, "k": 8}) == "mm(float32[64x8], float32[8x16])"


def test_every_row_has_a_family():
    assert {spec.family for spec in op_table().values()} >= {"contractions", "elementwise", "losses", "views"}
    assert all(spec.family for spec in op_table().values())
