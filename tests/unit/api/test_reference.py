"""Training on one device, and its batches."""

import copy

import torch

from shardwright.api.checking.reference import EagerRun, vary_batch, with_optimizer
from shardwright.lowering.capture.calling import batch_items
from shardwright.models.registry import training_step


def test_a_step_equals_a_plain_loop():
    step = with_optimizer(training_step("mlp-tiny"), "sgd")
    run = EagerRun(step, torch.float64, seed=3)
    batch = vary_batch(step.batch, 0, torch.float64)
    model = copy.deepcopy(run.model)
    loss = step.compute_loss(model, batch)
    loss.backward()
    values = run.step(batch)
    torch.testing.assert_close(values["loss", "loss"], loss.detach())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(values["gradient", name], parameter.grad)
        torch.testing.assert_close(values["momentum_buffer", name], parameter.grad)
        torch.testing.assert_close(values["parameter", name], parameter.detach() - 1e-2 * parameter.grad)


def test_the_users_module_is_not_changed():
    shipped = training_step("mlp-tiny")
    module = shipped.build_model()
    before = copy.deepcopy(module.state_dict())
    step = with_optimizer(shipped, "sgd")
    run = EagerRun(step.__class__(module, step.loss, step.optimizer, step.batch), None, seed=0)
    run.step(step.batch)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def test_batches_differ_from_step_to_step_and_not_from_run_to_run():
    example = training_step("bert-tiny").batch
    first, again, second = (batch_items(vary_batch(example, n, None)) for n in (1, 1, 2))
    for name, item in batch_items(example).items():
        assert torch.equal(first[name], again[name])
        assert (first[name].shape, first[name].dtype) == (item.shape, item.dtype)
        assert not torch.equal(first[name], second[name])
        assert torch.equal(first[name].flatten().sort().values, item.flatten().sort().values)


def test_floats_keep_their_range_and_take_the_wanted_dtype():
    example = (torch.rand(50, 50), torch.tensor(3.0), torch.arange(50), 0.5)
    floats, scalar, integers, plain = batch_items(vary_batch(example, 0, torch.float64)).values()
    assert torch.equal(floats.flatten().sort().values, example[0].double().flatten().sort().values)
    assert not torch.equal(floats, example[0].double())
    assert (scalar.dtype, scalar.item()) == (torch.float64, 3.0)
    assert integers.dtype is torch.int64
    assert plain == 0.5
