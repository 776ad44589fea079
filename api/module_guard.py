"""
A guard that prevents the use of a module's stale weights while a step trains it.

The step keeps its own parts of all parameters and buffers, so the module still has the initial values. When its weights
are read or the module is called, a guarded module raises an error that explains this and suggests an alternative.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, SupportsIndex

import torch
from torch import nn

from ..ir.not_supported import STALE, SURGERY

_GUARD = "_shardwright_guard"

_STALE = f"the step that parallelize returned trains its own weights, and this module has the old ones: {STALE.instead}"
_CHANGED = f"the step that parallelize returned was planned for the module before the change: {SURGERY.instead}"


class StaleModuleError(RuntimeError):
    """An error that reports the use of a module whose weights a step trains."""


@dataclass
class Guard:
    """
    A switch that allows or forbids the use of the modules of one model.

    Args:
        is_open: whether the modules may be used.
    """

    name: str
    is_open: bool = False

    def check(self, what: str) -> None:
        """
        Check that the module may be used; `what` is the use, for messages.

        Raises:
            StaleModuleError: the module may not be used now.
        """
        if not self.is_open:
            raise StaleModuleError(f"{what} of {self.name} was requested after parallelize; {_STALE}")

    def check_change(self, name: str) -> None:
        """
        Check that the layer, parameter or buffer `name` may be set or removed.

        Raises:
            StaleModuleError: it may not be changed now.
        """
        if not self.is_open:
            raise StaleModuleError(f"{name!r} of {self.name} was changed after parallelize; {_CHANGED}")

    @contextmanager
    def open(self) -> Generator[None, None, None]:
        """Allow the use of the module inside the context."""
        before, self.is_open = self.is_open, True
        try:
            yield
        finally:
            self.is_open = before


def guard(model: nn.Module) -> Guard:
    """Guard a module and all modules in it; a module that is already guarded gets the new guard."""
    shared = Guard(type(model).__name__)
    for module in model.modules():
        if isinstance(module, _Guarded):
            module.__dict__[_GUARD] = shared
            continue
        # The class of a few modules, such as the modules of TorchScript, cannot be changed.
        with suppress(TypeError):
            module.__class__ = _guarded(type(module))
            module.__dict__[_GUARD] = shared
    return shared


@cache
def _guarded(kind: type[nn.Module]) -> type[nn.Module]:
    body = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (_Guarded, kind), body)


_USES = {
    "__call__": "a result",
    "state_dict": "the state_dict()",
    "load_state_dict": "load_state_dict()",
    "named_parameters": "the parameters",
    "named_buffers": "the buffers",
    "_apply": "a conversion (to(), cuda(), float() and their like)",
    "register_forward_hook": "a hook",
    "register_forward_pre_hook": "a hook",
    "register_full_backward_hook": "a hook",
    "register_full_backward_pre_hook": "a hook",
}
"""Methods of a module that use its weights or its training, and the name of that use in messages."""

_CHANGES = ("register_parameter", "register_buffer", "add_module", "register_module", "__delattr__")
"""Methods of a module that set or remove the layer, parameter or buffer that their first argument names."""


class _Guarded(nn.Module):
    """A guarded module: it asks the guard before the uses in `_USES` and the changes in `_CHANGES`."""

    def _shardwright_check(self, what: str) -> None:
        module_guard = self.__dict__.get(_GUARD)
        if module_guard is not None:
            module_guard.check(what)

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, torch.Tensor):
            self._shardwright_check(f"{name!r}")
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Module | nn.Parameter) or _is_registered(self, name):
            _check_change(self, name)
        super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        self._shardwright_check("a copy")
        kind = type(self).__mro__[2]
        return _remade, (kind, {name: value for name, value in self.__dict__.items() if name != _GUARD})


def _asking(name: str, what: str) -> Callable[..., object]:

    def method(self: _Guarded, *args: object, **kwargs: object) -> object:
        self._shardwright_check(what)
        return getattr(super(_Guarded, self), name)(*args, **kwargs)

    method.__name__ = name
    return method


def _asking_of_change(method_name: str) -> Callable[..., object]:
    """Return a method that asks the guard about a change, and then calls the original method."""

    def method(self: _Guarded, name: str, *args: object, **kwargs: object) -> object:
        if method_name != "__delattr__" or _is_registered(self, name):
            _check_change(self, name)
        return getattr(super(_Guarded, self), method_name)(name, *args, **kwargs)

    method.__name__ = method_name
    return method


def _is_registered(module: nn.Module, name: str) -> bool:
    return any(name in module.__dict__.get(table, ()) for table in ("_parameters", "_buffers", "_modules"))


def _check_change(module: nn.Module, name: str) -> None:
    module_guard = module.__dict__.get(_GUARD)
    if module_guard is not None:
        module_guard.check_change(name)


for _name, _what in _USES.items():
    setattr(_Guarded, _name, _asking(_name, _what))
for _name in _CHANGES:
    setattr(_Guarded, _name, _asking_of_change(_name))


def _remade(kind: type[nn.Module], state: dict[str, object]) -> nn.Module:
    module = kind.__new__(kind)
    module.__dict__.update(state)
    return module
