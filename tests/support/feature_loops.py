"""Scripts about optimizers, schedules, clipping, and the code of a loop around `step(batch)`."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from features import (
    SGD,
    assert_follows,
    assert_same_weights,
    batches,
    cross_entropy,
    planned,
    refused,
    train_plainly,
    trains_alike,
    two_layers,
    works,
)
from torch import nn
from torch.optim import lr_scheduler

from shardwright.ir.not_supported import (
    AUTOCAST,
    BACKWARD,
    CLOSED_OVER,
    CLOSURE,
    LEFT_OUT,
    NO_GRAD,
    ONE_OPTIMIZER,
    OPTIMIZER_STATE,
    OPTIMIZER_STEP,
    OTHER_OPTIMIZER,
    OTHER_SETTING,
    STALE,
)


def trains_with(kind: Callable[..., torch.optim.Optimizer], **options: Any) -> None:
    trains_alike(two_layers(), given=batches(count=3), optimizer=partial(kind, **options))


# Optimizers


@refused("list of optimizers", "the optimizer function returned a list", ONE_OPTIMIZER)
def optimizers():
    planned(two_layers(), optimizer=lambda given: [torch.optim.SGD(given, lr=0.1)])  # type: ignore[arg-type]


@works("SGD with momentum, nesterov and weight decay")
def nesterov():
    trains_with(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)


@works("Adam")
def adam():
    trains_with(torch.optim.Adam, lr=0.01)


@works("AdamW")
def adamw():
    trains_with(torch.optim.AdamW, lr=0.01, weight_decay=0.1)


@works("optimizer with fused=True")
def fused():
    trains_with(torch.optim.AdamW, lr=0.01, fused=True)


@works("optimizer with foreach=True")
def foreach():
    trains_with(torch.optim.AdamW, lr=0.01, foreach=True)


@works("optimizer with capturable=True")
def capturable():
    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=0.01, capturable=True)

    model, given = two_layers(), batches()
    plain = copy.deepcopy(model)
    step = planned(model, optimizer=optimizer)
    # torch itself has no capturable updates on a CPU.
    train_plainly(plain, given, optimizer=partial(torch.optim.AdamW, lr=0.01))
    for batch in given:
        step(batch)
    assert_same_weights(step, plain)


@works("learning rate as a tensor")
def rate_as_tensor():
    trains_with(torch.optim.AdamW, lr=torch.tensor(0.01))


@works("Adam with weight decay")
def adam_decay():
    trains_with(torch.optim.Adam, lr=0.01, weight_decay=0.1)


@works("SGD with dampening")
def dampening():
    trains_with(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.5)


@works("amsgrad=True")
def amsgrad():
    trains_with(torch.optim.AdamW, lr=0.01, amsgrad=True)


@works("maximize=True")
def maximize():
    trains_with(torch.optim.SGD, lr=0.01, maximize=True)


@works("RMSprop")
def rmsprop():
    trains_with(torch.optim.RMSprop, lr=0.01)


@refused("LBFGS", r"LBFGS evaluates the model again inside its step", OTHER_OPTIMIZER)
def lbfgs():
    planned(two_layers(), optimizer=torch.optim.LBFGS)


class Signs(torch.optim.Optimizer):
    """An optimizer that a user has written."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad.sign(), alpha=group["lr"])


@works("optimizer of a user's own")
def own_optimizer():
    trains_with(Signs)


class LoudSGD(torch.optim.SGD):
    """A subclass of a known optimizer, with another update."""


@works("subclass of an optimizer")
def derived_optimizer():
    trains_with(LoudSGD, lr=0.1)


@refused("optimizer in place of a function", "is an instance of SGD; expected a function from parameters")
def optimizer_instance():
    model = two_layers()
    planned(model, optimizer=SGD(model.parameters()))  # pyright: ignore[reportArgumentType]


@refused("optimizer of the module's own parameters", "made SGD of other parameters", CLOSED_OVER)
def optimizer_of_the_module():
    model = two_layers()
    made = SGD(model.parameters())
    planned(model, optimizer=lambda _: made)


@refused(
    "optimizer that leaves out parameters",
    r"leaves out the parameter '2\.weight'.* requires_grad_\(False\)",
    LEFT_OUT,
)
def part_of_the_parameters():
    planned(two_layers(), optimizer=lambda given: SGD(list(given)[:2]))


@works("groups of parameters")
def groups():
    def optimizer(given: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        weights, biases = [], []
        for each in given:
            (weights if each.dim() > 1 else biases).append(each)
        return torch.optim.AdamW([{"params": weights, "weight_decay": 0.1}, {"params": biases, "lr": 0.02}], lr=0.01)

    trains_alike(two_layers(), given=batches(count=3), optimizer=optimizer)


# Schedules


def scheduled(
    make: Callable[[torch.optim.Optimizer], Any], optimizer: Callable[..., torch.optim.Optimizer] = SGD, *metrics: float
) -> None:
    """Compare a loop whose learning rate is scheduled."""
    model, plain, given = two_layers(), two_layers(), batches(count=4)
    plain.load_state_dict(model.state_dict())
    updates, step = optimizer(plain.parameters()), planned(model, optimizer=optimizer)
    theirs, ours = make(updates), make(step.optimizer)  # pyright: ignore[reportArgumentType]
    for x, y in given:
        cross_entropy(plain(x), y).backward()
        updates.step()
        updates.zero_grad()
        step((x, y))
        theirs.step(*metrics)
        ours.step(*metrics)
    assert_same_weights(step, plain)


@works("LambdaLR")
def lambda_rate():
    scheduled(lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step))


@works("OneCycleLR without momentum")
def one_cycle():
    scheduled(lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=5, cycle_momentum=False))


@refused(
    "OneCycleLR with momentum",
    r"momentum of group 0 of step\.optimizer was set to .* parallelize again",
    OTHER_SETTING,
)
def one_cycle_of_momentum():
    sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    scheduled(lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=5), sgd)


@works("ReduceLROnPlateau")
def plateau():
    scheduled(lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0), SGD, 1.0)


@works("ChainedScheduler")
def chained():
    def make(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
        cosine = lr_scheduler.CosineAnnealingLR(optimizer, 4)
        return lr_scheduler.ChainedScheduler([lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2), cosine])

    scheduled(make)


@refused("weight decay that is set", r"weight_decay of group 0 of step\.optimizer was set to 0\.5", OTHER_SETTING)
def weight_decay_set():
    step = planned(two_layers())
    assert step.optimizer is not None
    step.optimizer.param_groups[0]["weight_decay"] = 0.5
    step(batches()[0])


# Clipping


@works("clipping by norm and value")
def clipped():
    model, plain, given = two_layers(), two_layers(), batches(count=3)
    plain.load_state_dict(model.state_dict())
    updates, step = SGD(plain.parameters()), planned(model, clip_norm=0.1, clip_value=0.05)
    for x, y in given:
        cross_entropy(plain(x), y).backward()
        nn.utils.clip_grad_value_(plain.parameters(), 0.05)
        norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        updates.step()
        updates.zero_grad()
        step((x, y))
        torch.testing.assert_close(step.metrics["grad_norm"], norm)
    assert_same_weights(step, plain)


@refused("clip_grad_norm_ in the loop", "the parameters of Sequential was requested after parallelize", STALE)
def clip_in_the_loop():
    model = two_layers()
    step = planned(model)
    step(batches()[0])
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


# Loops


@refused("loss.backward() in the loop", r"backward\(\) of the loss of a step was called; leave it out", BACKWARD)
def backward():
    planned(two_layers())(batches()[0]).backward()


@refused("scaled loss.backward()", r"backward\(\) of the loss of a step was called; leave it out", BACKWARD)
def accumulation():
    (planned(two_layers())(batches()[0]) / 4).backward()


@refused("GradScaler", r"backward\(\) of the loss of a step was called; leave it out", BACKWARD)
def scaler():
    step = planned(two_layers())
    torch.amp.GradScaler("cpu").scale(step(batches()[0])).backward()


@works("what loops do with a loss")
def loss_used():
    model, given, total = two_layers(), batches(), 0.0
    plain, step = copy.deepcopy(model), planned(model)
    for batch in given:
        loss = step(batch)
        total += loss.item() + float(loss.detach()) + loss.detach().numpy()
        assert f"{loss:.4f}" == f"{loss.item():.4f}"
    assert abs(total - 3 * sum(loss.item() for loss in train_plainly(plain, given))) < 1e-4
    assert_same_weights(step, plain)


@refused("step.optimizer.step() in the loop", r"step\(batch\) updates the parameters itself", OPTIMIZER_STEP)
def optimizer_step():
    step = planned(two_layers())
    assert step.optimizer is not None
    step.optimizer.step()


@works("step.optimizer.zero_grad() in the loop")
def optimizer_zero_grad():
    model = two_layers()
    plain, step = copy.deepcopy(model), planned(model)
    assert step.optimizer is not None
    step.optimizer.zero_grad(set_to_none=True)
    assert_follows(step, plain, batches())


@refused("model.zero_grad() in the loop", "the parameters of Sequential was requested after parallelize", STALE)
def zero_grad():
    model = two_layers()
    planned(model)
    model.zero_grad()


@refused("gradient of a parameter in the loop", "'weight' of Sequential was requested after parallelize", STALE)
def gradient_read():
    model = two_layers()
    planned(model)(batches()[0])
    model[0].weight.grad.norm()  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]


@refused("state_dict of the optimizer", "step.optimizer has no state", OPTIMIZER_STATE)
def optimizer_state():
    step = planned(two_layers())
    assert step.optimizer is not None
    step.optimizer.state_dict()


@refused("closure", r"step\(\) was given a function; give it the batch", CLOSURE)
def closure():
    planned(two_layers())(lambda: None)  # pyright: ignore[reportArgumentType]


@refused("autocast around the step", r"called under torch\.autocast.*precision=\"bf16-mixed\"", AUTOCAST)
def autocast_around():
    step = planned(two_layers())
    with torch.autocast("cpu", torch.bfloat16):
        step(batches()[0])


@refused("autocast around parallelize", r"parallelize was called under torch\.autocast", AUTOCAST)
def autocast_around_parallelize():
    with torch.autocast("cpu", torch.bfloat16):
        planned(two_layers())


@refused("no_grad around the step", "no_grad", NO_GRAD)
def no_grad_around():
    step = planned(two_layers())
    with torch.no_grad():
        step(batches()[0])


@refused("inference_mode around the step", "inference_mode", NO_GRAD)
def inference_around():
    step = planned(two_layers())
    with torch.inference_mode():
        step(batches()[0])


@works("parallelize inside no_grad")
def no_grad_around_parallelize():
    given, model = batches(), two_layers()
    plain = copy.deepcopy(model)
    with torch.no_grad():
        step = planned(model, batch=given[0])
    assert_follows(step, plain, given)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@works("deterministic algorithms")
def deterministic_algorithms():
    with deterministic():
        trains_alike(two_layers())


@works("anomaly mode")
def anomaly():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.set_detect_anomaly(True):
            trains_alike(two_layers())


@works("default device")
def default_device():
    with torch.device("cpu"):
        trains_alike(two_layers())


@refused("to() after parallelize", r"a conversion \(to\(\), cuda\(\), float\(\) and their like\) of Sequential", STALE)
def moved():
    model = two_layers()
    planned(model)
    model.to("cpu")


@works("evaluation inside step.module()")
def evaluated():
    model = two_layers()
    plain, step = copy.deepcopy(model), planned(model)
    x, y = batches()[0]
    assert_follows(step, plain, [(x, y)])
    with step.module() as trained, torch.no_grad():
        trained.eval()
        found = trained(x)
        trained.train()
    torch.testing.assert_close(found, plain(x).detach(), rtol=1e-5, atol=1e-5)
    assert_follows(step, plain, [(x, y)])
