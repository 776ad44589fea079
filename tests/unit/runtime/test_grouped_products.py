"""Products of grouped rows: the runtime's kernels equal the importer's definitions, on full values and on parts."""

import itertools

import pytest
import torch

from shardwright.api.grouped import grouped_mm, grouped_mm_op
from shardwright.lowering.fused import grouped_ops
from shardwright.runtime import grouped_products

ROWS, GROUPS = 9, 4
ENDS = ([2, 2, 7, 9], [0, 4, 9, 9], [1, 2, 3, 6], [9, 9, 9, 9])
"""Ends of groups: some groups are empty, and some rows are beyond the last group."""


def operands(
    dtype: torch.dtype = torch.float64, inner: int = 4, outer: int = 5
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (ROWS, inner), (GROUPS, inner, outer), (ROWS, outer)
    rows, matrices, grad = (torch.randn(shape, dtype=dtype, generator=generator) for shape in shapes)
    return rows, matrices, grad


@pytest.mark.parametrize("one_kernel", [False, True])
@pytest.mark.parametrize("ends", ENDS)
def test_parts_of_rows_and_groups_add_up_to_the_whole(
    ends: list[int], one_kernel: bool, monkeypatch: pytest.MonkeyPatch
):
    if one_kernel:
        monkeypatch.setattr(grouped_products, "_is_one_kernel", lambda *_: True)
    # Torch's kernel does not take float64, and needs rows of multiples of 16 bytes.
    rows, matrices, grad = operands(torch.float32, 8, 16) if one_kernel else operands()
    at = torch.tensor(ends)
    whole = grouped_ops.grouped_mm(rows, matrices, at)
    bounds = [0, *ends]
    for group in range(GROUPS):
        part = slice(bounds[group], bounds[group + 1])
        torch.testing.assert_close(whole[part], rows[part] @ matrices[group])
    assert not whole[ends[-1] :].any()
    grads = grouped_ops.grouped_mm_backward(rows, matrices, at, grad)
    for module in (grouped_ops, grouped_products):
        found = torch.zeros_like(whole), torch.zeros_like(rows), torch.zeros_like(matrices)
        for (a, b), (c, d) in itertools.product(((0, 3), (3, 3), (3, ROWS)), ((0, 1), (1, GROUPS))):
            mine = rows[a:b], matrices[c:d], at
            found[0][a:b] += module.grouped_mm(*mine, a, c)
            grad_rows, grad_matrices = module.grouped_mm_backward(*mine, grad[a:b], a, c)
            found[1][a:b] += grad_rows
            found[2][c:d] += grad_matrices
        for one, other in zip(found, (whole, *grads), strict=True):
            torch.testing.assert_close(one, other)


def test_gradients_of_torchs_op_equal_its_definition():
    rows, matrices, grad = operands()
    at = torch.tensor(ENDS[0])
    leaves = rows.requires_grad_(), matrices.requires_grad_()
    found = torch.autograd.grad(grouped_mm(rows, matrices, at), leaves, grad)
    expected = torch.autograd.grad(grouped_ops.grouped_mm(rows, matrices, at), leaves, grad)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    torch.library.opcheck(grouped_mm_op, (rows, matrices, at), test_utils=("test_schema", "test_faketensor"))


def test_autocast_computes_the_products_in_its_dtype():
    rows, matrices, _ = operands()
    with torch.autocast("cpu", torch.bfloat16):
        assert grouped_mm(rows, matrices, torch.tensor(ENDS[0])).dtype == torch.bfloat16


@pytest.mark.parametrize("lists", [[0], [0, 1, 2], []])
def test_each_of_several_lists_is_sorted_separately(lists: list[int]):
    generator = torch.Generator().manual_seed(0)
    shapes = (len(lists), ROWS, 4), (GROUPS, 4, 5), (len(lists), ROWS, 5)
    rows, matrices, grad = (torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes)
    ends = torch.tensor([ENDS[i] for i in lists]).view(len(lists), GROUPS).long()
    products = [grouped_ops.grouped_mm(*each) for each in zip(rows, [matrices] * len(lists), ends, strict=True)]
    gradients = [
        grouped_ops.grouped_mm_backward(*each) for each in zip(rows, [matrices] * len(lists), ends, grad, strict=True)
    ]
    for module in (grouped_ops, grouped_products):
        found, (grad_rows, grad_matrices) = torch.zeros_like(grad), (torch.zeros_like(rows), torch.zeros_like(matrices))
        for (a, b), (c, d) in itertools.product(((0, 3), (3, ROWS)), ((0, 1), (1, GROUPS))):
            mine = rows[:, a:b], matrices[c:d], ends
            found[:, a:b] += module.grouped_bmm(*mine, a, c)
            of_rows, of_matrices = module.grouped_bmm_backward(*mine, grad[:, a:b], a, c)
            grad_rows[:, a:b] += of_rows
            grad_matrices[c:d] += of_matrices
        for i, (expected, (expected_rows, _)) in enumerate(zip(products, gradients, strict=True)):
            torch.testing.assert_close(found[i], expected)
            torch.testing.assert_close(grad_rows[i], expected_rows)
        total = torch.stack([each for _, each in gradients if each is not None]).sum(0) if gradients else matrices * 0
        torch.testing.assert_close(grad_matrices, total)


@pytest.mark.parametrize("one_kernel", [False, True])
@pytest.mark.parametrize("mask", [(True, False), (False, True)])
def test_a_single_gradient_equals_the_one_computed_with_both(
    mask: tuple[bool, bool], one_kernel: bool, monkeypatch: pytest.MonkeyPatch
):
    if one_kernel:
        monkeypatch.setattr(grouped_products, "_is_one_kernel", lambda *_: True)
    rows, matrices, grad = operands(torch.float32, 8, 16) if one_kernel else operands()
    ends = torch.tensor(ENDS[0])
    lists = torch.stack([rows, rows.flip(0)]), matrices, ends.expand(2, -1), torch.stack([grad, grad.flip(0)])
    for module in (grouped_ops, grouped_products):
        for product, given in (
            (module.grouped_mm_backward, (rows, matrices, ends, grad)),
            (module.grouped_bmm_backward, lists),
        ):
            both, found = product(*given), product(*given, output_mask=mask)
            for asked, whole, one in zip(mask, both, found, strict=True):
                if asked:
                    assert torch.equal(one, whole)
                else:
                    assert one is None
