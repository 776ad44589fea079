"""Every attention kernel equals its definition and autograd, also on empty shards."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from shardwright.lowering.fused import attention_ops
from shardwright.runtime import fused_attention as kernels

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")],
    ),
]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}


def inputs(
    device: str, dtype: torch.dtype, length: int, keys: int, width: int, masked: bool, heads: int = 3
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    generator = torch.Generator().manual_seed(length + keys)
    shapes = [(2, heads, length, width), (2, 3, keys, width), (2, 3, keys, width), (2, heads, length, width)]
    drawn = [torch.randn(s, generator=generator, dtype=torch.float64).to(device, dtype) for s in shapes]
    mask = torch.randn(2, 1, 1, keys, generator=generator, dtype=torch.float64).to(device, dtype)
    return drawn, mask if masked else None


def close(got: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    assert got.shape == expected.shape
    error = (got.double() - expected.double()).abs().max()
    assert error <= tolerance * expected.double().abs().max().clamp(min=1e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("form", ["plain", "causal", "masked", "shared", "shared masked"])
@pytest.mark.parametrize(("length", "keys", "width"), [(16, 16, 8), (33, 33, 64), (7, 24, 16), (10, 10, 5)])
def test_kernels_agree_with_the_definition_and_with_autograd(
    device: str, dtype: torch.dtype, form: str, length: int, keys: int, width: int
) -> None:
    heads = 6 if "shared" in form else 3
    (query, key, value, grad_out), mask = inputs(device, dtype, length, keys, width, "masked" in form, heads)
    causal = form == "causal"
    rest = (mask, causal, 0.3)
    exact = [t.double().requires_grad_() for t in (query, key, value)]
    wide_mask = None if mask is None else mask.double()
    out = F.scaled_dot_product_attention(*exact, attn_mask=wide_mask, is_causal=causal, scale=0.3, enable_gqa=True)
    expected_grads = torch.autograd.grad(out, exact, grad_out.double())
    for module in (attention_ops, kernels):
        got, logsumexp = module.attention(query, key, value, *rest)
        assert (got.dtype, logsumexp.dtype) == (dtype, torch.promote_types(dtype, torch.float32))
        _, exact_logsumexp = attention_ops.attention(
            exact[0].detach(), exact[1].detach(), exact[2].detach(), wide_mask, causal, 0.3
        )
        close(got, out.detach(), TOLERANCE[dtype])
        close(logsumexp, exact_logsumexp, TOLERANCE[dtype])
        grads = module.attention_backward(grad_out, query, key, value, got, logsumexp, *rest)
        for grad, expected in zip(grads, expected_grads, strict=True):
            assert grad.dtype == dtype
            close(grad, expected, TOLERANCE[dtype])


@pytest.mark.parametrize("form", ["plain", "causal", "masked"])
def test_the_fallback_of_gpus_agrees_with_the_cpu_kernel(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (query, key, value, grad_out), mask = inputs("cpu", torch.float64, 6, 9, 5, form == "masked")
    rest = (mask, form == "causal", None)

    def run() -> list[torch.Tensor]:
        saved = kernels.attention(query, key, value, *rest)
        return [*saved, *kernels.attention_backward(grad_out, query, key, value, *saved, *rest)]

    expected = run()
    monkeypatch.setattr(kernels, "_kernel", lambda *_: kernels._PLAIN)
    for got, wanted in zip(run(), expected, strict=True):
        close(got, wanted, 1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("batch", "heads"), [(0, 3), (2, 0)])
def test_empty_shards_give_typed_empty_results(device: str, batch: int, heads: int) -> None:
    query = torch.empty(batch, heads, 4, 8, device=device)
    out, logsumexp = kernels.attention(query, query, query, None, True, None)
    assert (out.shape, logsumexp.shape) == (query.shape, query.shape[:-1])
    grads = kernels.attention_backward(out, query, query, query, out, logsumexp, None, True, None)
    assert [grad.shape for grad in grads] == [query.shape] * 3


@pytest.mark.parametrize("device", DEVICES)
def test_a_fully_masked_row_is_zero(device: str) -> None:
    (query, key, value, grad_out), _ = inputs(device, torch.float32, 8, 8, 8, masked=False)
    mask = torch.zeros(8, 8, device=device)
    mask[3] = -torch.inf
    for module in (attention_ops, kernels):
        out, logsumexp = module.attention(query, key, value, mask, False, None)
        assert (out[:, :, 3] == 0).all()
        grads = module.attention_backward(grad_out, query, key, value, out, logsumexp, mask, False, None)
        assert all(grad.isfinite().all() for grad in grads)


def test_the_causal_mask_starts_at_the_first_key() -> None:
    (query, key, value, _), _ = inputs("cpu", torch.float64, 3, 6, 4, masked=False)
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    for module in (attention_ops, kernels):
        close(module.attention(query, key, value, None, True, None)[0], expected, 1e-12)


CAPABILITIES = {"V100": (7, 0), "T4": (7, 5), "A100": (8, 0), "A10": (8, 6), "H100": (9, 0)}


@pytest.mark.parametrize(
    ("gpu", "dtype", "width", "keys", "masked", "causal", "expected"),
    [
        ("V100", torch.float16, 64, 16, False, True, "_EFFICIENT"),
        ("T4", torch.float16, 64, 16, True, False, "_EFFICIENT"),
        ("T4", torch.bfloat16, 64, 16, False, True, "_PLAIN"),
        ("A100", torch.bfloat16, 256, 16, False, True, "_FLASH"),
        ("A10", torch.bfloat16, 256, 16, False, True, "_EFFICIENT"),
        ("A10", torch.float16, 128, 16, False, False, "_FLASH"),
        ("H100", torch.bfloat16, 64, 24, False, True, "_EFFICIENT"),
        ("H100", torch.bfloat16, 64, 16, True, False, "_EFFICIENT"),
        ("H100", torch.float32, 64, 17, True, False, "_EFFICIENT"),
        ("H100", torch.float32, 5, 16, False, False, "_PLAIN"),
        ("H100", torch.float64, 64, 16, False, False, "_PLAIN"),
    ],
)
def test_the_kernel_is_supported_by_the_gpu(
    gpu: str,
    dtype: torch.dtype,
    width: int,
    keys: int,
    masked: bool,
    causal: bool,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: CAPABILITIES[gpu])
    with FakeTensorMode():
        query = torch.empty(2, 6, 16, width, dtype=dtype, device="cuda")
        key = torch.empty(2, 3, keys, width, dtype=dtype, device="cuda")
        mask = torch.empty(2, 1, 1, keys, dtype=dtype, device="cuda") if masked else None
        assert kernels._kernel(query, key, mask, causal) is getattr(kernels, expected)


@pytest.mark.parametrize("kernel", ["_FLASH", "_EFFICIENT"])
def test_operands_have_the_layout_of_the_kernel(kernel: str) -> None:
    (query, key, value, _), _ = inputs("cpu", torch.float32, 8, 8, 16, masked=False, heads=6)
    turned = query.transpose(-2, -1).contiguous().transpose(-2, -1)
    made = getattr(kernels, kernel).prepared(kernels._Inputs(turned, key, value, None, False, None))
    assert made.query.stride(-1) == 1
    shared = kernel == "_FLASH"
    assert (made.key is key, made.key.shape == query.shape) == (shared, not shared)


@pytest.mark.parametrize("shape", [(2, 1, 1, 20), (8, 20), (2, 1, 8, 1), (2, 6, 8, 16)])
def test_a_mask_is_aligned_and_broadcast_without_memory(shape: tuple[int, ...]) -> None:
    keys = max(shape[-1], 16)
    query, key, mask = torch.empty(2, 6, 8, 16), torch.empty(2, 6, keys, 16), torch.randn(shape)
    found = kernels._aligned_mask(kernels._Inputs(query, key, key, mask, False, None))
    assert found is not None
    torch.testing.assert_close(found, mask.expand(2, 6, 8, keys))
    assert found.stride(-1) == 1
    assert all(stride % 16 == 0 for stride in found.stride()[:-1])
    assert found.untyped_storage().nbytes() <= mask.nbytes // shape[-1] * (keys + 15)
