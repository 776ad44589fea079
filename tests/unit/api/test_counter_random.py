"""Eager PyTorch under `counter_random` draws the same numbers as a captured step."""

from __future__ import annotations

import dropout_steps
import pytest
import torch
import torch.nn.functional as F
from captured_runs import compare, run_captured, run_eager
from torch import nn

from shardwright import counter_random
from shardwright.api.checking.reference import vary_batch
from shardwright.ir.counter import step_seed
from shardwright.lowering.capture.capture import capture_step
from shardwright.runtime.counter_random import random_dropout

X = torch.ones(40, 30)


@pytest.mark.parametrize("name", ["gpt2", "bert", "vit", "noisy"])
def test_a_captured_step_draws_the_same_numbers_as_eager_pytorch(name: str):
    step = getattr(dropout_steps, name)()
    captured = capture_step(step.model, step.loss, step.optimizer, step.batch, dtype=torch.float64)
    torch.manual_seed(0)
    model = step.build_model().double()
    batch = vary_batch(step.batch, 0, torch.float64)
    compare(run_captured(captured, model, batch), run_eager(model, step.loss, batch), 1e-12)


def test_every_op_takes_the_next_stream_of_the_step():
    with counter_random(seed=5, step=2):
        first, second = F.dropout(X, 0.3), F.dropout(X, 0.3)
    seed = torch.tensor(step_seed(5, 2))
    torch.testing.assert_close(first, random_dropout(X, seed, 0.3, stream=0)[0])
    torch.testing.assert_close(second, random_dropout(X, seed, 0.3, stream=1)[0])
    assert not torch.equal(first, second)


def test_numbers_depend_on_step_and_seed_alone():
    def mask(seed: int, step: int) -> torch.Tensor:
        with counter_random(seed, step):
            return F.dropout(X)

    assert torch.equal(mask(1, 2), mask(1, 2))
    assert not torch.equal(mask(1, 2), mask(2, 1))
    assert not torch.equal(mask(1, 2), mask(1, 3))


def test_dropout_of_nothing_or_all_takes_no_stream():
    with counter_random():
        expected = F.dropout(X, 0.3)
    with counter_random():
        assert torch.equal(F.dropout(X, 0.0), X)
        assert not F.dropout(X, 1.0).any()
        assert torch.equal(nn.Dropout(0.3).eval()(X), X)
        assert torch.equal(F.dropout(X, 0.3), expected)


def test_numbers_that_cannot_be_drawn_shard_by_shard_are_refused():
    with counter_random(), pytest.raises(RuntimeError, match=r"randperm.*cannot be drawn shard by shard"):
        torch.randperm(4)


def test_attention_without_dropout_is_left_alone():
    q = torch.randn(1, 2, 4, 8)
    with counter_random():
        found = F.scaled_dot_product_attention(q, q, q)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(q, q, q))
