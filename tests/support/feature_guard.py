"""Scripts that use or change a module, or its step, after `parallelize`."""

from __future__ import annotations

import copy
import io
import pickle

import torch
from feature_layers import Attention
from features import (
    SGD,
    assert_follows,
    assert_same_weights,
    batches,
    cross_entropy,
    planned,
    refused,
    trains_alike,
    two_layers,
    works,
)
from torch import nn
from torch.nn.utils import parametrizations

from shardwright.ir.not_supported import (
    COPIED_STEP,
    MODE,
    OTHER_STEP,
    STALE,
    SURGERY,
    WRITTEN,
)


@refused("call after parallelize", r"a result of Sequential was requested after parallelize.*step\.module\(\)", STALE)
def call_after():
    model = two_layers()
    planned(model)
    model(batches()[0][0])


@refused("layer replaced after parallelize", r"step\.module\(\)", SURGERY)
def surgery():
    model = two_layers()
    planned(model)
    model[2] = nn.Linear(8, 3)


@refused("layer replaced by attribute after parallelize", r"step\.module\(\)", SURGERY)
def surgery_by_attribute():
    model = Attention()
    planned(model, batch=batches(6, 7, 8)[0])
    model.out = nn.Linear(8, 3)


@refused("parameter added after parallelize", r"step\.module\(\)", SURGERY)
def added_parameter():
    model = two_layers()
    planned(model)
    model.scale = nn.Parameter(torch.ones(()))


@refused("buffer added after parallelize", r"step\.module\(\)", SURGERY)
def added_buffer():
    model = two_layers()
    planned(model)
    model.register_buffer("scale", torch.ones(()))


@refused("layer removed after parallelize", r"step\.module\(\)", SURGERY)
def removed_layer():
    model = two_layers()
    planned(model)
    del model[1]


@refused("layer appended after parallelize", r"step\.module\(\)", SURGERY)
def appended_layer():
    model = two_layers()
    planned(model)
    model.append(nn.Linear(3, 3))


@refused("weight_norm after parallelize", r"step\.module\(\)", STALE)
def norm_after():
    model = two_layers()
    planned(model)
    parametrizations.weight_norm(model[0])


@refused("layer replaced inside step.module()", "was changed, which has no effect on training", WRITTEN)
def surgery_inside():
    step = planned(two_layers())
    with step.module() as trained:
        trained.add_module("2", nn.Linear(8, 3))


@refused(
    "weights written inside step.module()",
    "parameter '0.weight' was changed, which has no effect on training",
    WRITTEN,
)
def written_inside():
    step = planned(two_layers())
    with step.module() as trained, torch.no_grad():
        trained.get_parameter("0.weight").zero_()


@refused("freezing after parallelize", r"the parameters of Sequential was requested", STALE)
def frozen_after():
    model = two_layers()
    planned(model)
    model.requires_grad_(False)


@refused("eval mode in a step of train mode", r"call model\.train\(\)", MODE)
def eval_before_step():
    model = two_layers()
    step = planned(model)
    model.eval()
    step(batches()[0])


@refused("eval mode of a part", r"call model\.1\.train\(\)", MODE)
def eval_of_a_part():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    step = planned(model)
    model[1].eval()
    step(batches()[0])


@works("model in eval mode")
def eval_mode():
    trains_alike(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout()).eval())


@refused("state_dict after parallelize", r"the state_dict\(\) of Sequential was requested", STALE)
def state_dict_after():
    model = two_layers()
    planned(model)
    torch.save(model.state_dict(), io.BytesIO())


@refused("load_state_dict after parallelize", r"load_state_dict\(\) of Sequential was requested", STALE)
def load_state_dict_after():
    model = two_layers()
    planned(model)
    model.load_state_dict(two_layers().state_dict())


@refused("load_state_dict inside step.module()", "was changed, which has no effect on training", WRITTEN)
def load_state_dict_inside():
    step = planned(two_layers())
    with step.module() as trained:
        trained.load_state_dict(two_layers().state_dict())


@works("torch.save inside step.module()")
def saved_inside():
    step, file = trains_alike(two_layers()), io.BytesIO()
    with step.module() as trained:
        torch.save(trained.state_dict(), file)
    torch.testing.assert_close(torch.load(io.BytesIO(file.getvalue())), step.state_dict())


@refused("deepcopy after parallelize", "a copy of Sequential was requested", STALE)
def copied_after():
    model = two_layers()
    planned(model)
    copy.deepcopy(model)


@works("average of weights")
def averaged():
    model, plain, given = two_layers(), two_layers(), batches(count=3)
    plain.load_state_dict(model.state_dict())
    ours, theirs = (torch.optim.swa_utils.AveragedModel(each) for each in (model, plain))
    step, updates = planned(model), SGD(plain.parameters())
    for x, y in given:
        cross_entropy(plain(x), y).backward()
        updates.step()
        updates.zero_grad()
        theirs.update_parameters(plain)
        step((x, y))
        with step.module() as trained:
            ours.update_parameters(trained)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    assert_same_weights(step, plain)


@refused("pickling the step", "state_dict", COPIED_STEP)
def pickled():
    pickle.dumps(planned(two_layers()))


@refused("deepcopy of the step", "state_dict", COPIED_STEP)
def copied_step():
    copy.deepcopy(planned(two_layers()))


@works("two steps in one process")
def two_steps():
    given = batches()
    first, second = two_layers(), two_layers()
    plain, untrained = copy.deepcopy(first), copy.deepcopy(second)
    one, other = planned(first), planned(second)
    assert_follows(one, plain, given)
    assert_same_weights(other, untrained)
    assert_follows(other, untrained, given)


@refused("a loss by a model that another step trains", "StaleModuleError: a result of", OTHER_STEP)
def adversary():
    judge, made = two_layers(), nn.Linear(4, 4)
    planned(judge)
    planned(made, lambda output, labels: cross_entropy(judge(output), labels))


@refused("one model in two steps", "requested after parallelize", STALE)
def one_model_twice():
    model = two_layers()
    planned(model)
    planned(model)
