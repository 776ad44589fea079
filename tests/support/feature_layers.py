"""Scripts about layers and losses."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from features import (
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

import shardwright as sw
from shardwright.ir.not_supported import (
    AVERAGED_STATISTICS,
    LOSS_BY_ROW,
    MAX_NORM,
    OUTSIDE_WEIGHT,
    SPARSE_GRADIENT,
    SYNCED_BATCH_NORM,
    TRAINED_LOSS,
    VALUE,
)


def tokens(length: int | None = None) -> list[Any]:
    shape = (6,) if length is None else (6, length)
    return [(torch.randint(9, shape), torch.randint(3, (6,))) for _ in range(2)]


# Layers


@works("convolution, channels_last")
def convolution():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    model(torch.randn(1, 3, 5, 5))
    given = [(x.to(memory_format=torch.channels_last), y) for x, y in batches(6, 3, 5, 5)]
    trains_alike(model, given=given)
    trains_alike(nn.Sequential(nn.Conv2d(3, 3, 5), nn.Flatten()), given=given)


@works("batch norm")
def batch_norm():
    trains_alike(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))


@refused(
    "batch norm of average statistics",
    "module '1' is a BatchNorm1d with momentum=None; give it a momentum",
    AVERAGED_STATISTICS,
)
def batch_norm_without_momentum():
    planned(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 3)))


@refused("SyncBatchNorm", "module '1' is a SyncBatchNorm; keep the original BatchNorm", SYNCED_BATCH_NORM)
def sync_batch_norm():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))
    planned(model)


@works("dropout")
def dropout():
    trains_alike(nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 3)), drawing=sw.counter_random)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.cells, self.out = kind(4, 5, batch_first=True, **options), nn.LazyLinear(3)  # pyright: ignore[reportArgumentType]
        self(torch.randn(2, 7, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cells(x)[0][:, -1])


@works("RNN")
def rnn():
    trains_alike(Recurrent(nn.RNN), given=batches(6, 7, 4))


@works("LSTM in two directions")
def lstm():
    trains_alike(Recurrent(nn.LSTM, bidirectional=True, num_layers=2), given=batches(6, 7, 4))


@works("GRU")
def gru():
    trains_alike(Recurrent(nn.GRU), given=batches(6, 7, 4))


@refused("packed sequences", "needs the values of a tensor", VALUE)
def packed():
    class Packed(Recurrent):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            lengths = (x[:, :, 0] < 9).sum(1)
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
            return self.out(nn.utils.rnn.pad_packed_sequence(self.cells(packed)[0], batch_first=True)[0][:, -1])

    planned(Packed(nn.GRU), batch=batches(6, 7, 4)[0])


@works("embedding with padding_idx")
def embedding():
    trains_alike(nn.Sequential(nn.Embedding(9, 8, padding_idx=0), nn.Linear(8, 3)), given=tokens())


@refused("sparse embedding", "module '0' is a Embedding with sparse=True; use dense ones", SPARSE_GRADIENT)
def sparse_embedding():
    planned(nn.Sequential(nn.Embedding(9, 8, sparse=True), nn.Linear(8, 3)), batch=tokens()[0])


@refused("embedding with max_norm", r"module '0' is a Embedding with max_norm=1\.0; leave max_norm out", MAX_NORM)
def renormed_embedding():
    planned(nn.Sequential(nn.Embedding(9, 8, max_norm=1.0), nn.Linear(8, 3)), batch=tokens()[0])


@works("EmbeddingBag")
def embedding_bag():
    trains_alike(nn.Sequential(nn.EmbeddingBag(9, 8, mode="sum"), nn.Linear(8, 3)), given=tokens(5))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend, self.out = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.attend(x, x, x, need_weights=False)[0].mean(1))


@works("MultiheadAttention")
def attention():
    trains_alike(Attention(), given=batches(6, 7, 8))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encode, self.out = nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padding = torch.zeros(x.shape[:2], dtype=torch.bool)
        padding[:, -2:] = True
        return self.out(self.encode(x, src_key_padding_mask=padding).mean(1))


@works("TransformerEncoder with padding")
def encoder():
    trains_alike(Encoder(), given=batches(6, 7, 8))


@works("TransformerEncoder in eval mode")
def encoder_fast_path():
    trains_alike(Encoder().eval(), given=batches(6, 7, 8))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 3)
        self.register_buffer("mask", torch.ones(7, 7).tril().bool())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=self.get_buffer("mask"))
        return self.out(attended.transpose(1, 2).flatten(2).mean(1))


@works("attention with a mask")
def masked_attention():
    trains_alike(Masked(), given=batches(6, 7, 8))


# Losses


@refused("CTC loss", r"ctc_loss, by way of aten\._ctc_loss\.default, needs the values of a tensor", VALUE)
def ctc():
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(4, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(x).log_softmax(-1).transpose(0, 1)

    def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.ctc_loss(output, labels, [7] * 6, [3] * 6)  # pyright: ignore[reportArgumentType]

    planned(Steps(), loss, (torch.randn(6, 7, 4), torch.randint(1, 5, (6, 3))))


@refused("penalty on the model's own weights in the loss", "outside the model that requires a gradient", OUTSIDE_WEIGHT)
def penalty():
    model = two_layers()

    def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(output, labels) + 0.1 * sum(each.square().sum() for each in model.parameters())

    planned(model, loss)


@works("loss module with weights of classes")
def weighted_loss():
    trains_alike(two_layers(), nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 0.5]), label_smoothing=0.1))


@refused("loss module that is trained", "make the loss part of the model", TRAINED_LOSS)
def trained_loss():
    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return cross_entropy(output * self.scale, labels)

    planned(two_layers(), Trained())


@works("several losses")
def several_losses():
    def losses(output: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return cross_entropy(output, labels), output.square().mean()

    trains_alike(two_layers(), losses, in_plain=lambda model, batch: sum(losses(model(batch[0]), batch[1])))  # pyright: ignore[reportArgumentType, reportReturnType]


@refused("loss for each row", r"returned a tensor of shape \(6,\).* with \.mean\(\)", LOSS_BY_ROW)
def loss_by_row():
    planned(two_layers(), partial(cross_entropy, reduction="none"))


@refused("loss that needs no gradient", "does not depend on any parameter that requires a gradient")
def loss_without_gradient():
    planned(two_layers(), lambda output, labels: cross_entropy(output.detach(), labels))


@refused("loss as a number", "returned a float where the loss was expected")
def loss_as_number():
    planned(two_layers(), lambda output, labels: 1.0)


@refused("loss read by .item()", "needs the values of a tensor", VALUE)
def loss_item():
    planned(two_layers(), lambda output, labels: cross_entropy(output, labels) / output.abs().max().item())


@works("loss that is not a number")
def nan_loss():
    def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(output, labels) * float("nan")

    model, given = two_layers(), batches()[:1]
    plain = copy.deepcopy(model)
    train_plainly(plain, given, loss)
    step = planned(model, loss, on_nan="ignore")
    assert torch.isnan(step(given[0]))
    assert_same_weights(step, plain, equal_nan=True)
