"""Weights made piece by piece are bitwise equal to one device, and the whole model never exists."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from shardwright.runtime.recording import initialize, named_tensors, record


class Everything(nn.Module):
    """A model that initialises its weights in every way that models do."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(50, 16, padding_idx=3)
        self.conv = nn.Conv2d(3, 8, 3)
        self.linear = nn.Linear(16, 24)
        self.norm = nn.LayerNorm(16)
        self.batch_norm = nn.BatchNorm2d(8)
        self.attention = nn.MultiheadAttention(16, 4)
        self.lstm = nn.LSTM(16, 8)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.token.weight
        self.class_token = nn.Parameter(torch.zeros(1, 1, 16))
        self.position = nn.Parameter(torch.randn(1, 10, 16) * 0.02)
        self.scale = nn.Parameter(torch.tensor([0.5, 2.0]))
        self.never_filled = nn.Parameter(torch.empty(0))
        self.register_buffer("mask", torch.tril(torch.ones(10, 10)).view(1, 1, 10, 10))
        self.register_buffer("ids", torch.arange(10), persistent=False)
        self.plain = torch.linspace(0, 1, 7)
        self.apply(self._init)
        nn.init.orthogonal_(self.linear.weight)
        nn.init.trunc_normal_(self.class_token, std=0.02)
        for name, parameter in self.named_parameters():
            if name.startswith("lstm.weight_hh"):
                parameter.data.mul_(0.25)
        with torch.no_grad():
            self.lstm.get_parameter("bias_ih_l0")[8:16].fill_(1.0)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 6))

    def _init(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        elif isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
            assert module.bias is not None
            nn.init.zeros_(module.bias)


class Deep(nn.Module):
    """Twelve equal layers, initialised again by `apply`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(12))
        self.apply(self._init)

    def _init(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight)


class Replaced(nn.Module):
    """A parameter whose tensor is replaced, one computed from another, and one that is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.rand(8, 8))
        self.first.data = torch.randn(8, 8)
        self.second = nn.Parameter(self.first.detach().T.clone() + 1)
        torch.randperm(9)
        self.third = nn.Parameter(torch.bernoulli(torch.full((8,), 0.5)))
        nn.Linear(8, 8)
        self.fourth = nn.Parameter(torch.rand(8))


def whole(build: Callable[[], nn.Module], seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return named_tensors(build())


@pytest.mark.parametrize("build", [Everything, Deep, Replaced])
@pytest.mark.parametrize("seed", [0, 7])
def test_weights_are_bitwise_equal_to_one_device(build: Callable[[], nn.Module], seed: int):
    expected = whole(build, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = initialize(build, seed, lambda _, tensor: tensor)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
        assert found[name].dtype == tensor.dtype


def test_later_random_numbers_equal_one_device():
    whole(Everything, 3)
    expected = torch.rand(4)
    initialize(Everything, 3, lambda _, tensor: tensor)
    assert torch.equal(torch.rand(4), expected)


def test_tied_weights_are_one_tensor():
    found = initialize(Everything, 0, lambda _, tensor: tensor)
    assert found["head.weight"] is found["token.weight"]


def test_only_the_requested_weights_are_kept():
    found = initialize(Everything, 0, lambda name, tensor: tensor if name == "norm.weight" else None)
    assert found.keys() == {"norm.weight"}


def test_a_kept_slice_does_not_keep_the_full_tensor():
    found = initialize(Deep, 0, lambda _, tensor: tensor[:2])
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in found.values())


def test_only_one_full_weight_exists_at_a_time():
    largest = max(tensor.nbytes for tensor in whole(Deep, 0).values())
    assert record(Deep).replay(lambda _, tensor: tensor[:1]).peak_bytes == largest


def test_unused_calls_are_left_out():
    called: list[int] = []

    class Wasteful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(4, 4))
            nn.init.eye_(self.weight)
            nn.init.ones_(self.weight)
            called.append(1)

    peak = record(Wasteful).replay(lambda _, tensor: tensor).peak_bytes
    assert (peak, called) == (64, [1])


def test_weights_of_a_module_are_sliced():
    model = nn.Linear(4, 6)
    found = initialize(model, 0, lambda _, tensor: tensor[:3])
    assert torch.equal(found["weight"], model.weight[:3])
    assert not found["weight"].requires_grad


class ReadsNumbers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4))
        self.largest = self.weight.max().item()


class Seeds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.weight = nn.Parameter(torch.rand(4))


@pytest.mark.parametrize(
    ("build", "reason"),
    [(ReadsNumbers, "_local_scalar_dense"), (Seeds, "sets the state of torch's random generator")],
)
def test_initialize_falls_back_to_the_whole_model_with_a_warning(build: Callable[[], nn.Module], reason: str):
    expected = whole(build, 0)
    with pytest.warns(RuntimeWarning, match=reason):
        found = initialize(build, 0, lambda _, tensor: tensor)
    assert torch.equal(found["weight"], expected["weight"])


def test_an_error_of_the_model_is_raised_unchanged():
    def build() -> nn.Module:
        raise LookupError("no such configuration")

    with pytest.warns(RuntimeWarning), pytest.raises(LookupError, match="no such configuration"):
        initialize(build, 0, lambda _, tensor: tensor)
