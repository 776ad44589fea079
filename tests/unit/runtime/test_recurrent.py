"""Layers of recurrent networks: the runtime's functions against their definitions."""

import pytest
import torch

from shardwright import runtime
from shardwright.lowering.fused import recurrent_ops

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def operands(kind: str, dtype: torch.dtype, rows: int = 3) -> list[torch.Tensor]:
    generator, gates = torch.Generator().manual_seed(0), 5 * GATES[kind]
    shapes = ((7, rows, 4), (1 + (kind == "lstm"), rows, 5), (gates, 4), (gates, 5), (gates,), (gates,))
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", GATES)
def test_a_layer_and_its_gradient_are_as_defined(kind: str, reverse: bool, dtype: torch.dtype):
    given = operands(kind, dtype)
    found = runtime.recurrent(*given, kind=kind, reverse=reverse)
    expected = recurrent_ops.recurrent(*given, kind=kind, reverse=reverse)
    torch.testing.assert_close(found, expected)
    grads = [torch.cos(value) for value in expected]
    found = runtime.recurrent_backward(*grads, *given, kind=kind, reverse=reverse)
    torch.testing.assert_close(found, recurrent_ops.recurrent_backward(*grads, *given, kind=kind, reverse=reverse))


@pytest.mark.parametrize("kind", GATES)
def test_no_rows_have_no_results_and_no_gradients(kind: str):
    given = operands(kind, torch.float32, rows=0)
    hidden, state = runtime.recurrent(*given, kind=kind)
    assert (hidden.shape, state.shape) == ((7, 0, 5), given[1].shape)
    found = runtime.recurrent_backward(hidden, state, *given, kind=kind)
    assert [value.shape for value in found] == [value.shape for value in given]
    assert not any(value.any() for value in found)
