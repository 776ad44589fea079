"""Scripts about the items of a batch and the outputs of a model."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from features import (
    SGD,
    Batch,
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
from torch.utils.data import IterableDataset
from transformers.utils.generic import ModelOutput

from shardwright.ir.not_supported import (
    ARRAY,
    CHANGED_VALUE,
    INPUT_GRADIENT,
    ITERABLE,
    KEPT_LABELS,
    LAYOUT,
    NESTED,
    OTHER_ITEM,
    OTHER_SHAPE,
    OWN_LOSS,
)


class Scaled(nn.Module):
    """A model of inputs and of further items of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = two_layers()

    def forward(self, x: torch.Tensor, scale: Any = None, mask: torch.Tensor | None = None) -> torch.Tensor:
        y = self.layers(x)
        if isinstance(scale, str):
            y = y * {"twice": 2, "once": 1}[scale]
        elif scale is not None:
            y = y * scale
        return y if mask is None else y * mask


def with_item(item: Any) -> list[Batch]:
    return [(x, item, y) for x, y in batches()]


@works("integers in a batch")
def integers():
    trains_alike(Scaled(), given=[(x, torch.randint(3, (6, 1)), y) for x, y in batches()])


@works("booleans in a batch")
def booleans():
    trains_alike(Scaled(), given=[(x, torch.rand(6, 3) > 0.5, y) for x, y in batches()])


@works("dict batch")
def dict_batch():
    given = [{"x": x, "mask": torch.rand(6, 3), "labels": y} for x, y in batches()]

    def in_plain(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return cross_entropy(model(batch["x"], mask=batch["mask"]), batch["labels"])

    trains_alike(Scaled(), given=given, in_plain=in_plain)


@works("list batch")
def list_batch():
    trains_alike(Scaled(), given=[list(each) for each in batches()])


@works("number in a batch")
def number():
    trains_alike(Scaled(), given=with_item(2.5))


@works("None in a batch")
def none():
    trains_alike(Scaled(), given=with_item(None))


@works("string in a batch")
def string():
    trains_alike(Scaled(), given=with_item("twice"))


@refused(
    "number that changes",
    r"batch entry '1' is 0\.5, but the step was planned for 2\.5; give it as a tensor",
    CHANGED_VALUE,
)
def changed_number():
    step = planned(Scaled(), batch=with_item(2.5)[0])
    step(with_item(2.5)[0])
    step(with_item(0.5)[0])


@refused("string that changes", r"batch entry '1' is 'once', but the step was planned for 'twice'", CHANGED_VALUE)
def changed_string():
    planned(Scaled(), batch=with_item("twice")[0])(with_item("once")[0])


@refused("None that becomes a tensor", r"batch entry '1' is tensor\(.* planned for None", CHANGED_VALUE)
def changed_none():
    planned(Scaled(), batch=with_item(None)[0])(with_item(torch.tensor(0.5))[0])


@refused("tensor that becomes None", "'1'")
def changed_tensor():
    planned(Scaled(), batch=with_item(torch.rand(6, 3))[0])(with_item(None)[0])


@refused("loader of an IterableDataset", r"was given Stream, an IterableDataset; make a DataLoader", ITERABLE)
def iterable():
    class Stream(IterableDataset[object]):
        def __iter__(self) -> Iterator[object]:
            yield from ()

    planned(two_layers()).loader(Stream())


@refused("another item in a batch", r"has an entry 'mask', but the example had .*; leave it out", OTHER_ITEM)
def added_item():
    x, y = batches()[0]
    planned(Scaled(), batch={"x": x, "labels": y})({"x": x, "labels": y, "mask": torch.rand(6, 3)})


@refused("a batch that lacks an item", "was given no item 'mask'")
def missing_item():
    x, y = batches()[0]
    planned(Scaled(), batch={"x": x, "mask": torch.rand(6, 3), "labels": y})({"x": x, "labels": y})


@refused(
    "nested batch",
    r"batch\['0'\] is a dict that holds tensors; give each tensor as an item of its own",
    NESTED,
)
def nested():
    planned(two_layers(), batch=({"x": torch.randn(6, 4)}, torch.randint(3, (6,))))


@refused(
    "deeply nested batch",
    r"batch\['0'\] is a dict that holds tensors; give each tensor as an item of its own",
    NESTED,
)
def deeply_nested():
    planned(two_layers(), batch=({"x": [torch.randn(6, 4)]}, torch.randint(3, (6,))))


@refused("a tensor as batch", r"a single tensor is written \(x,\)")
def bare_tensor():
    planned(two_layers(), batch=torch.randn(6, 4))  # pyright: ignore[reportArgumentType]


@refused("numpy array in a batch", r"batch\['0'\] is a ndarray; give a tensor", ARRAY)
def array():
    x, y = batches()[0]
    planned(two_layers(), batch=(x.numpy(), y))


@refused("sparse tensor in a batch", r"batch\['0'\] is a tensor of layout torch\.sparse_coo; give dense ones", LAYOUT)
def sparse():
    x, y = batches()[0]
    planned(nn.Linear(4, 3), batch=(x.to_sparse(), y))


@refused("nested tensor in a batch", r"batch\['0'\] is a tensor of layout torch\.jagged; give dense ones", LAYOUT)
def nested_tensor():
    ragged = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged)
    planned(nn.Linear(4, 3), lambda output, labels: output.values().sum(), batch=(ragged, torch.zeros(2)))


@refused("inputs that require gradients", r"batch\['0'\] requires a gradient; detach it", INPUT_GRADIENT)
def gradient_of_inputs():
    x, y = batches()[0]
    planned(two_layers(), batch=(x.requires_grad_(), y))


@refused("inputs that require gradients later", r"batch entry '0' requires a gradient; detach it", INPUT_GRADIENT)
def gradient_of_later_inputs():
    x, y = batches()[0]
    planned(two_layers())((x.clone().requires_grad_(), y))


@refused(
    "another length later",
    r"given a batch of '0' \[6, 9, 8\].* is planned for '0' \[6, 7, 8\]",
    OTHER_SHAPE,
)
def another_length():
    model = nn.Sequential(nn.Linear(8, 3), nn.Flatten(0, 1))
    first, later = ((torch.randn(6, n, 8), torch.randint(3, (6 * n,))) for n in (7, 9))
    planned(model, batch=first)(later)


@refused("last partial batch", r"given a batch of '0' \[5, 4\].* is planned for '0' \[6, 4\]", OTHER_SHAPE)
def partial_batch():
    x, y = batches()[0]
    planned(two_layers())((x[:5], y[:5]))


@refused("another dtype later", r"torch\.int32, expected 1 dims, torch\.int64")
def another_dtype():
    x, y = batches()[0]
    planned(two_layers())((x, y.int()))


@works("inputs in double precision, converted as .to() does")
def double_inputs():
    model = two_layers()
    plain, step = copy.deepcopy(model), planned(model)
    x, y = batches()[0]
    train_plainly(plain, [(x, y)])
    step((x.double(), y))
    assert_same_weights(step, plain)


# Outputs of a model


@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor


class Named(NamedTuple):
    loss: torch.Tensor
    logits: torch.Tensor


class OwnLoss(nn.Module):
    """A model that computes its loss and returns it in some form."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        self.layers, self.form = two_layers(), form

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.layers(x)
        return self.form(cross_entropy(logits, labels), logits)


def own_loss(form: Any, read: Any) -> None:
    trains_alike(OwnLoss(form), None, in_plain=lambda model, batch: read(model(*batch)))


@works("model that returns a dataclass")
def dataclass_output():
    own_loss(Output, lambda output: output.loss)


@works("model that returns a dict")
def dict_output():
    own_loss(lambda loss, logits: {"logits": logits, "loss": loss}, lambda output: output["loss"])


@works("model that returns a tuple")
def tuple_output():
    own_loss(lambda *found: found, lambda output: output[0])


@works("model that returns a named tuple")
def named_tuple_output():
    own_loss(Named, lambda output: output.loss)


@works("model that returns a ModelOutput")
def model_output():
    own_loss(lambda loss, logits: ModelOutput(loss=loss, logits=logits), lambda output: output.loss)


@refused("model that returns no loss", "returned a str where the loss was expected")
def no_loss():
    planned(OwnLoss(lambda loss, logits: "done"), None)


@refused("model that returns a lone result", r"returned a tensor of shape \(6, 3\).* return it first", OWN_LOSS)
def output_for_loss():
    planned(OwnLoss(lambda loss, logits: logits), None, optimizer=SGD)


@works("model that returns its loss last")
def loss_last():
    own_loss(lambda loss, logits: (logits, loss), lambda output: output[1])


@works("model that returns its loss under another name")
def loss_by_another_name():
    own_loss(lambda loss, logits: {"logits": logits, "cost": loss}, lambda output: output["cost"])


@refused("model that returns two scalars", r"returned '0' \[6, 3\], '1' \[\], '2' \[\]: 2 of them may be", OWN_LOSS)
def two_scalars():
    planned(OwnLoss(lambda loss, logits: (logits, loss, logits.mean())), None)


@refused("model that returns nothing for its loss", r"returned '0' \[6, 3\], '1' NoneType: none of them may", OWN_LOSS)
def none_for_loss():
    planned(OwnLoss(lambda loss, logits: (logits, None)), None)


@refused("loss function beside a model's own loss", "missing 1 required positional argument: 'labels'", KEPT_LABELS)
def loss_beside_own():
    planned(OwnLoss(lambda *found: found))


@refused("loss function of a tuple", r"TypeError: cross_entropy_loss\(\).* be Tensor, not tuple", KEPT_LABELS)
def loss_of_a_tuple():
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = two_layers()

        def forward(self, x: torch.Tensor) -> object:
            return self.layers(x), None

    planned(Pair())
