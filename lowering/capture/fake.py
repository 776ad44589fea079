"""
Fake models: modules whose tensors have shapes but no storage.

Capture places all tensors on one CPU, regardless of their device in the user's model: a plan does not depend on the
device, and `normalize` expects the ops that torch dispatches to on the CPU.
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
"""The errors of fake tensors for an op whose result or shape depends on values."""


class CheckedValuesError(RuntimeError):
    """An op checks the values of its operand, as linear algebra that raises for a singular matrix does."""


_DTYPE_OF_INPUT = {torch.ops.aten.native_group_norm_backward.default: 1}
"""
Op -> number of the operand that gives the first result its dtype; fake tensors promote it with the weight's dtype.
"""


class _FakeTensorMode(FakeTensorMode):
    """
    A fake tensor mode that records, for an op that needs values, the forward call that it differentiates.

    Results have the dtypes of torch's kernels. `needed_by` is the autograd sequence number of the forward call, or None
    if the op itself belongs to the forward.

    Raises:
        CheckedValuesError: an op raises an error for some values of its operand.
    """

    needed_by: int | None = None

    def dispatch(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] = MappingProxyType({}),
    ) -> object:
        if func is torch.ops.aten._linalg_check_errors.default:
            # torch 2.11 would drop the check from the graph; later versions raise an error before they come here.
            raise CheckedValuesError
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
    A factory of fake twins of modules and tensors.

    Args:
        dtype: the dtype for every floating-point tensor, or None to keep their dtypes.
    """

    def __init__(self, dtype: torch.dtype | None) -> None:
        # Tensors outside the model, such as class weights in a loss function, become constants of the graph.
        self.mode = _FakeTensorMode(allow_non_fake_inputs=True)
        self.dtype = dtype

    def module(self, source: nn.Module | Callable[[], nn.Module]) -> nn.Module:
        """
        Return a fake twin of a module, or of the module that a function builds under fake tensors.

        Raises:
            CaptureError: the function does not return a module, `first_refusal` refuses the module, or two parameters
                share memory.
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
            # The module existed before this call, even if a function returned it, so it must not be modified.
            with FakeCopyMode(self.mode):
                module = copy.deepcopy(module)
        _attributes_to_buffers(module)
        self._convert(module)
        return module

    def _made(self, make: Callable[[], nn.Module]) -> nn.Module:
        """Call a function that builds a module, without allocating its tensors."""
        try:
            with self.mode:
                return make()
        except DataDependentOutputException:
            # The function reads values of tensors that it creates on the CPU explicitly, as in
            # torch.linspace(0, p, n, device="cpu").tolist(). On the meta device such tensors are real.
            with torch.device("meta"):
                return make()

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a fake twin on the CPU, in the requested dtype, without a gradient."""
        fake = tensor if isinstance(tensor, FakeTensor) else self.mode.from_tensor(tensor)
        dtype = self.dtype if self.dtype is not None and fake.is_floating_point() else fake.dtype
        if fake.fake_mode is self.mode and fake.dtype == dtype and fake.device == _CPU:
            return fake.detach()
        with self.mode:
            return torch.empty_strided(fake.shape, fake.stride(), dtype=dtype, device=_CPU)

    def _convert(self, module: nn.Module) -> None:
        """Replace every parameter and buffer by its twin; tied tensors share a twin."""
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
    """Return the names of the buffers that the state dict of a module does not hold."""
    return frozenset(
        f"{path}.{name}" if path else name
        for path, owner in module.named_modules(remove_duplicate=False)
        for name in owner._non_persistent_buffers_set
    )


Held = TypeVar("Held")


def first_names(named: Iterator[tuple[str, Held]]) -> tuple[dict[str, Held], dict[str, tuple[str, ...]]]:
    """
    Group names by the tensor that they stand for.

    Returns:
        the tensors by first name, and the other names of each tied tensor by first name.
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
