"""
A model's construction, recorded on fake tensors and replayed with real ones, one tensor at a time.

Recording runs the model's own code without allocating memory, and lists the torch calls that produced the
weights. The replay repeats the calls in order, and draws the same random numbers as the model's own
construction. It skips unnecessary calls: a call is repeated only if it draws random numbers or if a kept tensor
depends on it, and memory exists only from the first call that writes it to the last call that reads it.

The unit of both is a storage: a parameter, its `.data` and all views of it share one storage. A call that
overwrites a whole storage starts a new version of it; earlier contents do not matter.

`initialize` gives every rank its part of the weights that the model has on one device under the same seed.
"""

from __future__ import annotations

import math
import warnings
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

# In-place ops that do not read their first argument, which they overwrite.
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

# Ops that only allocate memory.
_RESERVING = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"}


# Functions of `torch.nn.init` that check the numbers that they draw, and may draw again.
_COMPOSITES = ("_no_grad_trunc_normal_",)


class RecordingError(RuntimeError):
    """A construction that cannot be replayed; the message gives the reason."""


@dataclass(frozen=True)
class _StorageWindow:
    """A view of a storage that represents a tensor."""

    storage: Storage
    nbytes: int
    device: torch.device
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def covers(self) -> bool:
        """Whether the view contains every element of its storage."""
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
    """A recorded call, with windows in place of its fake tensors, and its effects on storages."""

    func: Callable[..., object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    outputs: tuple[_StorageWindow, ...]
    reads: frozenset[Storage]
    writes: frozenset[Storage]
    overwrites: frozenset[Storage]
    draws: bool
    """Whether the call draws random numbers."""


class _Recorder(TorchDispatchMode):
    """Records every call that reaches a fake tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_RecordedCall] = []
        # Fake tensors must outlive the recording; otherwise two storages could have the same address.
        self._alive: list[object] = []
        self._known: set[Storage] = set()

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._alive.append((args, kwargs, result))
        outputs = tuple(map(_place, _fakes(result)))
        created = {place.storage for place in outputs} - self._known
        self._known |= created
        if func._schema.name not in _RESERVING:
            self._record(func, args, kwargs, outputs, frozenset(created))
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
        """Wrap `func`, which fills its first argument with random numbers, so that it is recorded as one call."""

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
    """Yield the arguments that the op writes to, according to its schema."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.is_write:
            yield from _fakes(args[index] if index < len(args) else kwargs.get(argument.name))


class _Storages:
    """The storages that exist at present in a replay."""

    def __init__(self) -> None:
        self._held: dict[Storage, torch.UntypedStorage] = {}
        self.peak_bytes = 0

    def tensor(self, place: _StorageWindow) -> torch.Tensor:
        """Return the tensor at a place; allocate its storage, with arbitrary contents, if it does not exist."""
        if place.storage not in self._held:
            self._hold(place.storage, torch.UntypedStorage(place.nbytes, device=place.device))
        empty = torch.empty(0, dtype=place.dtype, device=place.device)
        return empty.set_(self._held[place.storage], place.offset, place.shape, place.stride)

    def run(self, call: _RecordedCall) -> None:
        args, kwargs = tree_map(self._real, call.args), tree_map(self._real, call.kwargs)
        results = (value for value in tree_iter(call.func(*args, **kwargs)) if isinstance(value, torch.Tensor))
        for place, result in zip(call.outputs, results, strict=True):
            if place.storage in self._held:
                continue
            if result.stride() == place.stride and result.storage_offset() == place.offset:
                self._hold(place.storage, result.untyped_storage())
            else:
                self.tensor(place).copy_(result)

    def free(self, storage: Storage) -> None:
        self._held.pop(storage, None)

    def _real(self, value: object) -> object:
        return self.tensor(value) if isinstance(value, _StorageWindow) else value

    def _hold(self, storage: Storage, real: torch.UntypedStorage) -> None:
        self._held[storage] = real
        self.peak_bytes = max(self.peak_bytes, sum(held.nbytes() for held in self._held.values()))


@dataclass(frozen=True)
class _Schedule:
    """By call: whether to repeat it, and which storages are then in their final state, or no longer needed."""

    needed: list[bool]
    finished: list[frozenset[Storage]]
    dead: list[frozenset[Storage]]


def _schedule(calls: Sequence[_RecordedCall], final: frozenset[Storage]) -> _Schedule:
    """Walk the calls backwards; `live` has the storages whose contents a later call reads or the caller keeps."""
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
    """The kept tensors of a replay, by every name, and the most bytes of full tensors that existed at once."""

    kept: dict[str, torch.Tensor]
    peak_bytes: int


@dataclass(frozen=True)
class Recording:
    """
    The calls that construct a model.

    Args:
        calls: calls in the model's order.
        places: final place of each named tensor; tied tensors share a place.
        given: named tensors that the construction did not create.
    """

    calls: list[_RecordedCall]
    places: dict[str, _StorageWindow]
    given: dict[str, torch.Tensor]

    def replay(self, keep: Keep) -> Replayed:
        """
        Construct the tensors.

        Args:
            keep: called with the first name of each tensor and the tensor, as soon as it is complete. Its result
                is kept under all of the tensor's names (for None, the next name is tried, and then the tensor is
                dropped); the full tensor is released.
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
    """Apply `keep` to each tensor; all names of a tensor share the result."""
    names: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), []).append(name)
    kept: dict[str, torch.Tensor] = {}
    for aliases in names.values():
        kept |= _keep_one(keep, aliases, tensors[aliases[0]].detach())
    return kept


def _keep_one(keep: Keep, names: Sequence[str], whole: torch.Tensor) -> dict[str, torch.Tensor]:
    for name in names:
        if (part := keep(name, whole)) is not None:
            shared = part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
            return dict.fromkeys(names, part.clone() if shared else part)
    return {}


def record(build: Callable[[], nn.Module]) -> Recording:
    """
    Build a model on fake tensors and record its calls.

    Raises:
        RecordingError: the construction sets or reads the state of torch's random numbers, or returns no
        module. Exception: any error that the construction raises because its tensors have no numbers.
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
    """Inside, make `torch.nn.init` call the composites through the recorder."""
    originals = {name: function for name in _COMPOSITES if (function := getattr(nn.init, name, None)) is not None}
    try:
        for name, func in originals.items():
            setattr(nn.init, name, recorder.composite(func))
        yield
    finally:
        for name, func in originals.items():
            setattr(nn.init, name, func)


def named_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters, buffers and tensors in plain attributes of modules, by every name."""
    tensors: dict[str, torch.Tensor] = {}
    tensors |= model.named_parameters(remove_duplicate=False)
    tensors |= model.named_buffers(remove_duplicate=False)
    for path, module in model.named_modules(remove_duplicate=False):
        plain = ((name, value) for name, value in vars(module).items() if isinstance(value, torch.Tensor))
        tensors |= {f"{path}.{name}" if path else name: value for name, value in plain}
    return tensors


@contextmanager
def drawn_alike(seed: int = 0) -> Generator[None, None, None]:
    """Inside, seed torch's random numbers with `seed` in every process; outside they continue as before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def initialize(model: nn.Module | Callable[[], nn.Module], seed: int | None, keep: Keep) -> dict[str, torch.Tensor]:
    """
    Build a model's tensors one at a time and keep a part of each.

    The parts equal the parts of ``torch.manual_seed(seed); model()`` bit for bit. A model that takes random numbers
    from elsewhere (`random`, numpy) must seed them itself.

    Args:
        model: the module, or a function that builds it. With a function only one of its tensors exists at a time,
            unless the model needs several at once.
        seed: seed of torch's random numbers; if None, torch's state is left alone.
        keep: function of a tensor's first name and the tensor that returns the part to keep, or None.

    Returns:
        The kept parts, by every name of every parameter, buffer and plain tensor attribute.

    Warns:
        RuntimeWarning: the full model is built, because it cannot be built tensor by tensor; the message says why.
    """
    if seed is not None:
        torch.manual_seed(seed)
    if isinstance(model, nn.Module):
        return keep_all(keep, named_tensors(model))
    state = torch.get_rng_state()
    try:
        recording = record(model)
    # The model's own code runs here, and may raise any error when it meets tensors without numbers.
    except Exception as error:
        warnings.warn(
            f"every rank builds the full model, because its construction cannot be recorded: "
            f"{type(error).__name__}: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        torch.set_rng_state(state)
        return keep_all(keep, named_tensors(model()))
    return recording.replay(keep).kept
