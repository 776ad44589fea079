"""
Fake models: modules whose tensors have shapes and no storage.

Everything is captured as if it were on one CPU, whatever device the user's tensors are on: a plan does not
depend on it, and the CPU's choice of ops is the one that capture normalises from.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar, cast

import torch
from torch import nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensor,
    FakeTensorMode,
)

from ...ir.not_supported import SHARED_MEMORY
from .captured import CaptureError
from .refusals import first_refusal

_CPU = torch.device("cpu")


VALUE_NEEDED = (DataDependentOutputException, DynamicOutputShapeException)
"""What fake tensors raise at an op that gives a number or a shape by the values of tensors."""


_DTYPE_OF_INPUT = {torch.ops.aten.native_group_norm_backward.default: 1}
"""
Ops whose first result has the dtype of the numbered operand, where fake tensors promote it with the weight's instead.
"""


class _FakeTensorMode(FakeTensorMode):
    """
    Fake tensors that note, where an op needs values, which call it is the gradient of.

    Results have the dtypes of torch's kernels. `needed_by` is the autograd sequence number of that call, None where the
    op is of the forward itself.
    """

    needed_by: int | None = None

    def dispatch(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] = MappingProxyType({}),
    ) -> object:
        try:
            results = super().dispatch(func, types, args, kwargs)
        except VALUE_NEEDED:
            node = torch._C._current_autograd_node()
            self.needed_by = node._sequence_nr() if node is not None else None
            raise
        operand = _DTYPE_OF_INPUT.get(func)
        if operand is None:
            return results
        first, *others = cast("tuple[torch.Tensor | None, ...]", results)
        with self:
            return None if first is None else first.to(cast(torch.Tensor, args[operand]).dtype), *others


class Fakes:
    """
    Makes fake twins of modules and tensors.

    Args:
        dtype: what every floating-point tensor becomes; None keeps each as it is.
    """

    def __init__(self, dtype: torch.dtype | None) -> None:
        # Tensors outside the model, such as class weights in a loss function, are allowed: they become
        # constants of the graph.
        self.mode = _FakeTensorMode(allow_non_fake_inputs=True)
        self.dtype = dtype

    def module(self, source: nn.Module | Callable[[], nn.Module]) -> nn.Module:
        """
        A fake twin of a module, or the module that a function makes while nothing is allocated.

        Raises:
            CaptureError: the function returned something else, or what `first_refusal` finds; or two parameters share
                memory.
        """
        if isinstance(source, nn.Module):
            module = source
        else:
            module = self._made(source)
        if not isinstance(module, nn.Module):
            raise CaptureError(f"the model's function returned a {type(module).__name__}, not a torch.nn.Module")
        if module is not source and (refusal := first_refusal(module)) is not None:
            raise CaptureError(f"the model's function returned a {type(module).__name__}, and {refusal}")
        _refuse_shared_memory(module)
        tensors = (*module.parameters(), *module.buffers())
        if module is source or not all(isinstance(tensor, FakeTensor) for tensor in tensors):
            # Not made here, even if a function returned it, and so not ours to change.
            with FakeCopyMode(self.mode):
                module = copy.deepcopy(module)
        _attributes_to_buffers(module)
        self._convert(module)
        return module

    def _made(self, make: Callable[[], nn.Module]) -> nn.Module:
        """What a function makes while nothing is allocated."""
        try:
            with self.mode:
                return make()
        except DataDependentOutputException:
            # It reads numbers that it puts on the CPU for that, as in torch.linspace(0, p, n, device="cpu").tolist():
            # these are real beside tensors of no device.
            with torch.device("meta"):
                return make()

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake twin on the CPU, in the requested dtype, without a gradient."""
        fake = tensor if isinstance(tensor, FakeTensor) else self.mode.from_tensor(tensor)
        dtype = self.dtype if self.dtype is not None and fake.is_floating_point() else fake.dtype
        if fake.fake_mode is self.mode and fake.dtype == dtype and fake.device == _CPU:
            return fake.detach()
        with self.mode:
            return torch.empty_strided(fake.shape, fake.stride(), dtype=dtype, device=_CPU)

    def _convert(self, module: nn.Module) -> None:
        """Put every parameter and buffer in its final form, tied ones once."""
        twins: dict[int, torch.Tensor] = {}
        for owner in module.modules():
            for table in (owner._parameters, owner._buffers):
                for name, tensor in table.items():
                    if tensor is None:
                        continue
                    if id(tensor) not in twins:
                        twins[id(tensor)] = self._twin(tensor)
                    table[name] = twins[id(tensor)]  # type: ignore[assignment]

    def _twin(self, tensor: torch.Tensor) -> torch.Tensor:
        twin = self.tensor(tensor)
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(twin, requires_grad=tensor.requires_grad)
        return twin


def _refuse_shared_memory(module: nn.Module) -> None:
    owners: dict[tuple[object, object], str] = {}
    for name, parameter in module.named_parameters():
        place = (parameter.untyped_storage()._cdata, parameter.storage_offset())
        if place in owners:
            raise CaptureError(
                f"the parameters {owners[place]!r} and {name!r} share memory but are two Parameter objects; "
                f"{SHARED_MEMORY.instead}"
            )
        owners[place] = name


def _attributes_to_buffers(module: nn.Module) -> None:
    """Register tensors that modules hold as plain attributes, so that they are inputs with a name."""
    for owner in module.modules():
        for name, value in list(vars(owner).items()):
            if isinstance(value, torch.Tensor):
                delattr(owner, name)
                owner.register_buffer(name, value, persistent=False)


def transient_buffers(module: nn.Module) -> frozenset[str]:
    """The names of the buffers that are not in the state dict of a module."""
    return frozenset(
        f"{path}.{name}" if path else name
        for path, owner in module.named_modules(remove_duplicate=False)
        for name in owner._non_persistent_buffers_set
    )


Held = TypeVar("Held")


def first_names(named: Iterator[tuple[str, Held]]) -> tuple[dict[str, Held], dict[str, tuple[str, ...]]]:
    """
    Group names by the tensor they stand for.

    Returns:
        the tensors by their first name, and the other names of each that has any.
    """
    first: dict[int, str] = {}
    tensors: dict[str, Held] = {}
    others: dict[str, tuple[str, ...]] = {}
    for name, tensor in named:
        if id(tensor) in first:
            others[first[id(tensor)]] = (*others.get(first[id(tensor)], ()), name)
        else:
            first[id(tensor)] = name
            tensors[name] = tensor
    return tensors, others
