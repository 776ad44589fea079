"""
A guard on a module that a step trains: its own weights are not the trained ones.

The step keeps parts of its own of all parameters and buffers, so what the module holds is what they were at first. A
guarded module says so, and what to do, wherever its weights are read or called for.
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

_STALE = f"its weights are trained by the step that parallelize returned, and those here are of before: {STALE.instead}"
_CHANGED = f"the step that parallelize returned was planned for the module as it was: {SURGERY.instead}"


class StaleModuleError(RuntimeError):
    """A module was used whose weights a step trains."""


@dataclass
class Guard:
    """
    Decides whether the modules of one model may be used.

    Args:
        name: of the model, for messages.
        is_open: whether they may be.
    """

    name: str
    is_open: bool = False

    def check(self, what: str) -> None:
        """
        Raises:
            StaleModuleError: the module may not be used now.
        """
        if not self.is_open:
            raise StaleModuleError(f"{what} of {self.name} was requested after parallelize; {_STALE}")

    def check_change(self, name: str) -> None:
        """
        Raises:
            StaleModuleError: no layer, parameter or buffer may be set or removed now.
        """
        if not self.is_open:
            raise StaleModuleError(f"{name!r} of {self.name} was changed after parallelize; {_CHANGED}")

    @contextmanager
    def open(self) -> Generator[None, None, None]:
        """Let the module be used."""
        before, self.is_open = self.is_open, True
        try:
            yield
        finally:
            self.is_open = before


def guard(model: nn.Module) -> Guard:
    """Guard a module and all inside it; one that is guarded already gets another guard."""
    made = Guard(type(model).__name__)
    for module in model.modules():
        if isinstance(module, _Guarded):
            module.__dict__[_GUARD] = made
            continue
        # Of a few modules, those of TorchScript among them, the class cannot be changed.
        with suppress(TypeError):
            module.__class__ = _guarded(type(module))
            module.__dict__[_GUARD] = made
    return made


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
"""Methods of a module that mean its weights or its training, and what messages call that."""

_CHANGES = ("register_parameter", "register_buffer", "add_module", "register_module", "__delattr__")
"""Methods of a module whose first argument names a layer, parameter or buffer that is then another."""


class _Guarded(nn.Module):
    """A guarded module, which asks the guard first; so do the methods of `_USES`."""

    def _shardwright_check(self, what: str) -> None:
        found = self.__dict__.get(_GUARD)
        if found is not None:
            found.check(what)

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
        state = {name: value for name, value in self.__dict__.items() if name != _GUARD}
        return _remade, (kind, state)


def _asking(name: str, what: str) -> Callable[..., object]:
    """A method that asks the guard, and then does what it did."""

    def method(self: _Guarded, *args: object, **kwargs: object) -> object:
        self._shardwright_check(what)
        return getattr(super(_Guarded, self), name)(*args, **kwargs)

    method.__name__ = name
    return method


def _asking_of_change(method_name: str) -> Callable[..., object]:
    """The same, of a change."""

    def method(self: _Guarded, name: str, *args: object, **kwargs: object) -> object:
        if method_name != "__delattr__" or _is_registered(self, name):
            _check_change(self, name)
        return getattr(super(_Guarded, self), method_name)(name, *args, **kwargs)

    method.__name__ = method_name
    return method


def _is_registered(module: nn.Module, name: str) -> bool:
    """Whether a name is that of a layer, a parameter or a buffer."""
    return any(name in module.__dict__.get(table, ()) for table in ("_parameters", "_buffers", "_modules"))


def _check_change(module: nn.Module, name: str) -> None:
    found = module.__dict__.get(_GUARD)
    if found is not None:
        found.check_change(name)


for _name, _what in _USES.items():
    setattr(_Guarded, _name, _asking(_name, _what))
for _name in _CHANGES:
    setattr(_Guarded, _name, _asking_of_change(_name))


def _remade(kind: type[nn.Module], state: dict[str, object]) -> nn.Module:
    """A module that is not guarded, of what a guarded one holds."""
    made = kind.__new__(kind)
    made.__dict__.update(state)
    return made
