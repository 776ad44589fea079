"""
Trace an optimizer's code with tensors in place of Python numbers, so that learning rate and step are inputs.

Optimizers compute with numbers (``step_size = lr / (1 - beta1**step)``) that change from step to step and so must not
become constants of a graph. This module represents such a number by a 0-d float64 tensor that behaves as a number:
``item()`` of a tensor returns one; ``math.sqrt``, ``max``, ``alpha=`` and ``value=`` accept one; it never changes in
place, and it takes the dtype of a tensor that it is combined with. Uses that require a Python value, such as an index,
raise `NumberNeededError`.

An ``if`` on the value of a tensor has two branches. The code runs once for each path through its conditions, and
`by_branches` selects among the results of the paths.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import math
from collections.abc import Callable, Generator, Sequence
from typing import Any, NoReturn, TypeAlias

import torch
from torch.overrides import TorchFunctionMode

from .rewrites import rewritten

_Function: TypeAlias = Callable[..., object]
_Number: TypeAlias = torch.Tensor | float

_MARK = "_shardwright_number"


class NumberNeededError(RuntimeError):
    """The code needs the value of a tensor, which is not known before it runs."""


def number(tensor: torch.Tensor) -> torch.Tensor:
    """Mark a tensor as standing for a Python number, and return it."""
    setattr(tensor, _MARK, True)
    return tensor


def is_number(value: object) -> bool:
    """Return whether `value` is a tensor that stands for a Python number."""
    return isinstance(value, torch.Tensor) and getattr(value, _MARK, False)


class Branches:
    """
    A path through the conditions of some code.

    Args:
        choices: the outcomes of the first conditions; all later conditions are true.
        most: the maximum number of conditions.
    """

    def __init__(self, choices: Sequence[bool], most: int) -> None:
        self.choices, self.most = list(choices), most
        self.conditions: list[torch.Tensor] = []

    def choose(self, condition: torch.Tensor) -> bool:
        """Record the next condition and return its outcome on this path."""
        place = len(self.conditions)
        if place == self.most:
            raise NumberNeededError(f"conditions on values of tensors with more than {place} possible outcomes")
        self.conditions.append(condition.detach().reshape(()) != 0)
        if place == len(self.choices):
            self.choices.append(True)
        return self.choices[place]


def by_branches(
    run: Callable[[Branches], Sequence[torch.Tensor]], most: int, choices: Sequence[bool] = ()
) -> list[torch.Tensor]:
    """
    Return the results of `run` for any outcome of its conditions, as selections among the results of all paths.

    Args:
        run: the function to call once for each path.
        most: the maximum number of paths.

    Raises:
        NumberNeededError: `run` has more than `most` paths.
    """
    remaining = [most]

    def outcome(choices: Sequence[bool]) -> list[torch.Tensor]:
        remaining[0] -= 1
        if remaining[0] < 0:
            raise NumberNeededError(f"conditions on values of tensors with more than {most} possible outcomes")
        branches = Branches(choices, most)
        results = list(run(branches))
        for place in range(len(branches.conditions) - 1, len(choices) - 1, -1):
            others = outcome([*branches.choices[:place], False])
            condition = branches.conditions[place]
            pairs = zip(results, others, strict=True)
            results = [torch.where(condition, result, other.to(result.dtype)) for result, other in pairs]
        return results

    return outcome(choices)


class Numbers(TorchFunctionMode):
    """A mode that makes marked tensors behave as numbers, and conditions follow the path `branches`."""

    def __init__(self, branches: Branches) -> None:
        super().__init__()
        self.branches = branches

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        kwargs = kwargs or {}
        func = rewritten(func, args, kwargs)
        if args and is_number(args[0]):
            func = _OUT_OF_PLACE.get(func, func)
        if func is torch.Tensor.__bool__:
            return self.branches.choose(args[0])
        if (special := _SPECIAL.get(func)) is not None:
            with self:
                result = special(func, *args, **kwargs)
            if result is not NotImplemented:
                return result
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        numbers = [value for value in tensors if is_number(value)]
        if numbers and len(numbers) < len(tensors):
            args = _as_others(args, tensors)
        result = func(*args, **kwargs)
        if numbers and len(numbers) == len(tensors) and isinstance(result, torch.Tensor):
            return number(result)
        return result


def _as_others(args: tuple[Any, ...], tensors: list[torch.Tensor]) -> tuple[Any, ...]:
    """Return the arguments with numbers cast to the dtype of the other tensors, if all other tensors are 0-d."""
    others = [value for value in tensors if not is_number(value)]
    if any(value.dim() for value in others):
        return args
    dtype = functools.reduce(torch.promote_types, (value.dtype for value in others))
    return tuple(value.to(dtype) if is_number(value) and dtype.is_floating_point else value for value in args)


@contextlib.contextmanager
def numbers_as_tensors(branches: Branches) -> Generator[None, None, None]:
    """Run code whose numbers are tensors, on the path `branches` through its conditions."""
    with contextlib.ExitStack() as stack:
        for name in _MATH:
            stack.enter_context(_patched(math, name, getattr(torch, name)))
        stack.enter_context(_patched(math, "pow", torch.pow))
        for name, bound, function in (("min", "max", torch.minimum), ("max", "min", torch.maximum)):
            stack.enter_context(_extreme(name, bound, function))
        stack.enter_context(Numbers(branches))
        yield


_MATH = ("sqrt", "exp", "expm1", "log", "log1p", "log2", "log10", "cos", "sin", "tan", "tanh", "atan", "floor", "ceil")


@contextlib.contextmanager
def _patched(module: object, name: str, replacement: Callable[..., torch.Tensor]) -> Generator[None, None, None]:
    """Let a function of numbers accept tensors too."""
    original = getattr(module, name)

    def either(*args: object) -> object:
        tensors = any(isinstance(value, torch.Tensor) for value in args)
        return replacement(*args) if tensors else original(*args)

    setattr(module, name, either)
    try:
        yield
    finally:
        setattr(module, name, original)


@contextlib.contextmanager
def _extreme(name: str, bound: str, function: Callable[..., torch.Tensor]) -> Generator[None, None, None]:
    """Let `min` or `max` accept 0-d tensors."""
    original = getattr(builtins, name)

    def two(one: Any, other: Any) -> torch.Tensor:
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            dtype = torch.promote_types(one.dtype, other.dtype)
            return function(one.to(dtype), other.to(dtype))
        tensor, bound_value = (one, other) if isinstance(one, torch.Tensor) else (other, one)
        return tensor.clamp(**{bound: bound_value})

    def either(*args: object, **kwargs: object) -> object:
        if len(args) > 1 and not kwargs and any(isinstance(arg, torch.Tensor) and not arg.dim() for arg in args):
            return functools.reduce(two, args)
        return original(*args, **kwargs)

    setattr(builtins, name, either)
    try:
        yield
    finally:
        setattr(builtins, name, original)


def _refuse(what: str) -> Callable[..., NoReturn]:
    def refused(func: object, x: torch.Tensor, *_: object, **__: object) -> NoReturn:
        raise NumberNeededError(what)

    return refused


def _item(func: object, x: torch.Tensor) -> torch.Tensor:
    """Return the current value of a one-element tensor as a number."""
    if x.numel() != 1:
        raise RuntimeError(f"item() of a tensor of shape {tuple(x.shape)}")
    return number(x.detach().reshape(()).to(torch.float64, copy=True))


def _tensor_of(func: object, x: object, *args: object, dtype: torch.dtype | None = None, **kwargs: object) -> object:
    """Return a tensor with the value of `x`; a number becomes a tensor of torch's default dtype."""
    if not isinstance(x, torch.Tensor):
        return NotImplemented
    if dtype is None:
        dtype = torch.get_default_dtype() if is_number(x) else x.dtype
    # The detached alias is unmarked, so the result no longer stands for a number.
    return x.detach().clone().to(dtype) if is_number(x) or func is torch.tensor else x.to(dtype)


def _get_data(func: object, x: torch.Tensor) -> torch.Tensor:
    return x.detach()


def _set_data(func: object, x: torch.Tensor, value: torch.Tensor) -> None:
    x.detach().copy_(value)


def _set_item(func: object, x: torch.Tensor, place: object, value: _Number) -> object:
    """Assign to a 0-d tensor by a 0-d mask; `rewritten` handles all other masks."""
    if not isinstance(place, torch.Tensor) or place.dtype is not torch.bool or place.dim() or x.dim():
        return NotImplemented
    x.copy_(torch.where(place, value, x))
    return None


def _added(func: _Function, x: _Number, other: _Number, *, alpha: _Number = 1, **kwargs: object) -> object:
    """Handle `add` and `sub` whose `alpha` is a tensor."""
    return func(x, other * alpha, **kwargs) if isinstance(alpha, torch.Tensor) else NotImplemented


def _combined(combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> _Function:
    """Return a handler of `addcmul` or `addcdiv` for a `value` that is a tensor."""

    def function(
        func: _Function, x: torch.Tensor, one: torch.Tensor, other: torch.Tensor, *, value: _Number = 1, **kwargs: Any
    ) -> object:
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        added = combine(one, other) * value
        return x.add_(added) if _is_in_place(func) else torch.add(x, added, **kwargs)

    return function


def _lerp(func: _Function, x: torch.Tensor, end: torch.Tensor, weight: _Number) -> object:
    if not is_number(weight):
        return NotImplemented
    step = (end - x) * weight
    return x.add_(step) if _is_in_place(func) else x + step


def _clamp(func: _Function, x: torch.Tensor, min: _Number | None = None, max: _Number | None = None) -> object:
    if not isinstance(min, torch.Tensor) and not isinstance(max, torch.Tensor):
        return NotImplemented
    result = x
    for limit, name, extreme in ((min, "min", torch.maximum), (max, "max", torch.minimum)):
        if isinstance(limit, torch.Tensor):
            result = extreme(result, limit.to(x.dtype))
        elif limit is not None:
            result = result.clamp(**{name: limit})
    return x.copy_(result) if _is_in_place(func) else result


def _filled_like(func: _Function, x: torch.Tensor, fill_value: object, **kwargs: Any) -> object:
    if not isinstance(fill_value, torch.Tensor):
        return NotImplemented
    return torch.zeros_like(x, **kwargs).add_(fill_value)


def _filled(func: _Function, size: Sequence[int], fill_value: object, **kwargs: Any) -> object:
    if not isinstance(fill_value, torch.Tensor):
        return NotImplemented
    return torch.zeros(size, **kwargs).add_(fill_value)


def _is_in_place(func: _Function) -> bool:
    return func.__name__.endswith("_")


_TENSOR = torch.Tensor

_OUT_OF_PLACE: dict[object, _Function] = {
    getattr(_TENSOR, f"{name}_"): getattr(_TENSOR, name)
    for name in ("add", "sub", "mul", "div", "floor_divide", "remainder", "pow")
}
"""In-place method (``x += y``) -> its functional form, since numbers never change in place."""

_SPECIAL: dict[object, _Function] = {
    _TENSOR.item: _item,
    _TENSOR.tolist: _refuse("tolist() of a tensor"),
    _TENSOR.numpy: _refuse("numpy() of a tensor"),
    _TENSOR.__float__: _refuse("float() of a tensor"),
    _TENSOR.__int__: _refuse("int() of a tensor"),
    _TENSOR.__index__: _refuse("an index that is the value of a tensor"),
    _TENSOR.data.__get__: _get_data,  # type: ignore[attr-defined]
    _TENSOR.data.__set__: _set_data,  # type: ignore[attr-defined]
    _TENSOR.__setitem__: _set_item,
    torch.tensor: _tensor_of,
    torch.as_tensor: _tensor_of,
    torch.full_like: _filled_like,
    torch.full: _filled,
    **dict.fromkeys((torch.add, _TENSOR.add, _TENSOR.add_), _added),
    **dict.fromkeys((torch.sub, _TENSOR.sub, _TENSOR.sub_), _added),
    **dict.fromkeys((torch.addcmul, _TENSOR.addcmul, _TENSOR.addcmul_), _combined(lambda a, b: a * b)),
    **dict.fromkeys((torch.addcdiv, _TENSOR.addcdiv, _TENSOR.addcdiv_), _combined(lambda a, b: a / b)),
    **dict.fromkeys((torch.lerp, _TENSOR.lerp, _TENSOR.lerp_), _lerp),
    **dict.fromkeys((torch.clamp, _TENSOR.clamp, _TENSOR.clamp_), _clamp),
}
