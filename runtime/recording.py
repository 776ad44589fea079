"""
A model's construction, recorded on fake tensors and replayed with real ones, one tensor at a time.

Recording runs the model's own code and allocates nothing: it leaves a list of the torch calls that made the
weights. The replay makes the calls again, in order, so that the random numbers are those of the model's own
construction. What it need not do it leaves out: a call is made only if it draws random numbers or if
something that is kept depends on it, and memory exists only from the first call that writes it to the last
that reads it.

The unit of both is a storage: a parameter, its `.data` and all views of it share one. A call that
overwrites all of a storage starts a new version of it, for which nothing before matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

Keep = Callable[[str, torch.Tensor], torch.Tensor | None]
Storage = int

# In-place ops that read nothing of what they write to, their first argument.
_OVERWRITING = {
    "aten::bernoulli_",
    "aten::cauchy_",
    "aten::copy_",
    "aten::exponential_",
    "aten::fill_",
    "aten::geometric_",
    "aten::log_normal_",
    "aten::normal_",
    "aten::random_",
    "aten::uniform_",
    "aten::zero_",
}

# Ops that only reserve memory.
_RESERVING = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
}


# Functions of `torch.nn.init` that look at the numbers that they draw, to draw again.
_COMPOSITES = ("_no_grad_trunc_normal_",)


class RecordingError(RuntimeError):
    """A construction that cannot be replayed; the message says why."""


@dataclass(frozen=True)
class _StorageWindow:
    """A tensor as a window on a storage."""

    storage: Storage
    nbytes: int
    device: torch.device
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def covers(self) -> bool:
        """Whether it shows every element of its storage."""
        return math.prod(self.shape) * self.dtype.itemsize == self.nbytes and 0 not in self.stride


def _place(tensor: torch.Tensor) -> _StorageWindow:
    storage = tensor.untyped_storage()
    return _StorageWindow(
        storage._cdata,
        storage.nbytes(),
        tensor.device,
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
        int(tensor.storage_offset()),
    )


@dataclass(frozen=True)
class _RecordedCall:
    """One recorded call, with places for its fake tensors, and what it does to which storages."""

    func: Callable[..., object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    outputs: tuple[_StorageWindow, ...]
    reads: frozenset[Storage]
    writes: frozenset[Storage]
    overwrites: frozenset[Storage]
    draws: bool
    """Whether it takes random numbers."""


class _Recorder(TorchDispatchMode):
    """Writes down every call that reaches a fake tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_RecordedCall] = []
        # Fake tensors have to outlive the recording, or two storages could have one address.
        self._alive: list[object] = []
        self._known: set[Storage] = set()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._alive.append((args, kwargs, result))
        outputs = tuple(map(_place, _fakes(result)))
        made = {place.storage for place in outputs} - self._known
        self._known |= made
        if func._schema.name not in _RESERVING:
            self._record(func, args, kwargs, outputs, frozenset(made))
        return result

    def _record(
        self,
        func: OpOverload,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        outputs: tuple[_StorageWindow, ...],
        made: frozenset[Storage],
    ) -> None:
        written = [_place(tensor) for tensor in _written(func, args, kwargs)]
        overwriting = func._schema.name in _OVERWRITING
        read = _fakes((args[1:] if overwriting else args, kwargs))
        self.calls.append(
            _RecordedCall(
                func,
                tree_map(_placed, args),
                tree_map(_placed, kwargs),
                outputs,
                reads=frozenset(_place(tensor).storage for tensor in read),
                writes=made | {place.storage for place in written},
                overwrites=made | {place.storage for place in written if overwriting and place.covers},
                draws=torch.Tag.nondeterministic_seeded in func.tags,
            )
        )

    def composite(self, func: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """`func`, which fills its first argument with random numbers, as one call to be recorded."""

        def recorded(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
            if not isinstance(tensor, FakeTensor):
                return func(tensor, *args, **kwargs)
            place = _place(tensor)
            storage = frozenset({place.storage})
            overwrites = storage if place.covers else frozenset[Storage]()
            call = _RecordedCall(func, (place, *args), kwargs, (place,), frozenset(), storage, overwrites, draws=True)
            self.calls.append(call)
            return tensor

        return recorded


def _fakes(values: object) -> Iterator[torch.Tensor]:
    return (value for value in tree_iter(values) if isinstance(value, FakeTensor))


def _placed(value: object) -> object:
    return _place(value) if isinstance(value, FakeTensor) else value


def _written(func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Iterator[torch.Tensor]:
    """The arguments that the schema says are written to."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.is_write:
            yield from _fakes(args[index] if index < len(args) else kwargs.get(argument.name))


class _Storages:
    """The storages that exist during a replay."""

    def __init__(self) -> None:
        self._held: dict[Storage, torch.UntypedStorage] = {}
        self.peak_bytes = 0

    def tensor(self, place: _StorageWindow) -> torch.Tensor:
        """The tensor at a place; memory that does not exist yet is made, with arbitrary contents."""
        if place.storage not in self._held:
            self._hold(place.storage, torch.UntypedStorage(place.nbytes, device=place.device))
        empty = torch.empty(0, dtype=place.dtype, device=place.device)
        return empty.set_(self._held[place.storage], place.offset, place.shape, place.stride)

    def run(self, call: _RecordedCall) -> None:
        """Make a call again."""
        args, kwargs = tree_map(self._real, call.args), tree_map(self._real, call.kwargs)
        made = (value for value in tree_iter(call.func(*args, **kwargs)) if isinstance(value, torch.Tensor))
        for place, result in zip(call.outputs, made, strict=True):
            if place.storage in self._held:
                continue
            if result.stride() == place.stride and result.storage_offset() == place.offset:
                self._hold(place.storage, result.untyped_storage())
            else:
                self.tensor(place).copy_(result)

    def free(self, storage: Storage) -> None:
        """Forget a storage."""
        self._held.pop(storage, None)

    def _real(self, value: object) -> object:
        return self.tensor(value) if isinstance(value, _StorageWindow) else value

    def _hold(self, storage: Storage, real: torch.UntypedStorage) -> None:
        self._held[storage] = real
        self.peak_bytes = max(self.peak_bytes, sum(held.nbytes() for held in self._held.values()))


@dataclass(frozen=True)
class _Schedule:
    """Per call: whether to make it, and which storages are then in their final state, or of no more use."""

    needed: list[bool]
    finished: list[frozenset[Storage]]
    dead: list[frozenset[Storage]]


def _schedule(calls: Sequence[_RecordedCall], final: frozenset[Storage]) -> _Schedule:
    """Walk the calls backwards: `live` are the storages whose present contents are read later, or kept."""
    nothing = frozenset[Storage]()
    needed, finished, dead = [False] * len(calls), [nothing] * len(calls), [nothing] * len(calls)
    live, unfinished = final, final
    for i in reversed(range(len(calls))):
        call = calls[i]
        if not (call.draws or call.writes & live):
            continue
        touched = call.reads | call.writes
        needed[i], finished[i], dead[i] = True, touched & unfinished, touched - live
        unfinished -= touched
        live = (live - call.overwrites) | call.reads
    return _Schedule(needed, finished, dead)


@dataclass(frozen=True)
class Replayed:
    """What a replay kept, by every name, and the most bytes of full tensors that it held at once."""

    kept: dict[str, torch.Tensor]
    peak_bytes: int


@dataclass(frozen=True)
class Recording:
    """
    The calls that make a model.

    Args:
        calls: in the model's order.
        places: by name, where its tensors end up; tied ones are in one place.
        given: by name, those that it did not make itself.
    """

    calls: list[_RecordedCall]
    places: dict[str, _StorageWindow]
    given: dict[str, torch.Tensor]

    def replay(self, keep: Keep) -> Replayed:
        """
        Make the tensors again.

        Args:
            keep: called with the first name of each tensor and the tensor, as soon as it is finished. What
                it returns is kept under all of the tensor's names (None: try the next name, then drop it);
                the tensor is dropped.
        """
        named: dict[Storage, dict[_StorageWindow, list[str]]] = {}
        for name, place in self.places.items():
            named.setdefault(place.storage, {}).setdefault(place, []).append(name)
        schedule, memory, kept = _schedule(self.calls, frozenset(named)), _Storages(), dict[str, torch.Tensor]()

        def finish(storage: Storage) -> None:
            for place, names in named.pop(storage).items():
                kept.update(_keep_one(keep, names, memory.tensor(place)))
            memory.free(storage)

        with torch.no_grad():
            for call, needed, finished, dead in zip(
                self.calls, schedule.needed, schedule.finished, schedule.dead, strict=True
            ):
                if needed:
                    memory.run(call)
                for storage in finished:
                    finish(storage)
                for storage in dead:
                    memory.free(storage)
            for storage in list(named):
                finish(storage)
        return Replayed({**kept, **keep_all(keep, self.given)}, memory.peak_bytes)


def keep_all(keep: Keep, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What `keep` returns of each of the tensors; names of one tensor share it."""
    names: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), []).append(name)
    kept: dict[str, torch.Tensor] = {}
    for same in names.values():
        kept |= _keep_one(keep, same, tensors[same[0]].detach())
    return kept


def _keep_one(keep: Keep, names: Sequence[str], whole: torch.Tensor) -> dict[str, torch.Tensor]:
    for name in names:
        if (found := keep(name, whole)) is not None:
            shared = found.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
            return dict.fromkeys(names, found.clone() if shared else found)
    return {}


def record(build: Callable[[], nn.Module]) -> Recording:
    """
    Build a model on fake tensors and write down how.

    Raises:
        RecordingError: the construction sets or reads the state of torch's random numbers, or returns no
        module. Exception: whatever it raises itself because its tensors have no numbers.
    """
    state = torch.get_rng_state()
    recorder = _Recorder()
    with _composites(recorder), FakeTensorMode(), recorder:
        model = build()
        if not isinstance(model, nn.Module):
            raise RecordingError(f"it returns a {type(model).__name__}, expected a torch.nn.Module")
        tensors = named_tensors(model)
        places = {name: _place(t) for name, t in tensors.items() if isinstance(t, FakeTensor)}
    if not torch.equal(state, torch.get_rng_state()):
        raise RecordingError("it sets the state of torch's random generator")
    given = {name: tensor for name, tensor in tensors.items() if name not in places}
    return Recording(recorder.calls, places, given)


@contextmanager
def _composites(recorder: _Recorder) -> Generator[None, None, None]:
    """Meanwhile `torch.nn.init` calls the composites through the recorder."""
    originals = {name: found for name in _COMPOSITES if (found := getattr(nn.init, name, None)) is not None}
    try:
        for name, func in originals.items():
            setattr(nn.init, name, recorder.composite(func))
        yield
    finally:
        for name, func in originals.items():
            setattr(nn.init, name, func)


def named_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, buffers and the tensors that modules hold as plain attributes, by every name."""
    found: dict[str, torch.Tensor] = {}
    found |= model.named_parameters(remove_duplicate=False)
    found |= model.named_buffers(remove_duplicate=False)
    for path, module in model.named_modules(remove_duplicate=False):
        plain = ((name, value) for name, value in vars(module).items() if isinstance(value, torch.Tensor))
        found |= {f"{path}.{name}" if path else name: value for name, value in plain}
    return found
