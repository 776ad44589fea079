"""Stand-ins for `torch.cuda` and NCCL that record the actions of a rank (`trace`)."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from shardwright.runtime import collectives, transfers

from .trace import Clock, Launch, Queued, Trace, line, tensors

NCCL_DTYPES = {torch.int8, torch.uint8, torch.bool, torch.int32, torch.int64, torch.float16, torch.bfloat16}
NCCL_DTYPES |= {torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2}

_ALLOCATIONS = {f"aten::{name}" for name in ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")}

MOVES = {f"aten::{name}" for name in ("copy_", "clone", "cat", "stack", "split_with_sizes_copy", "_chunk_cat")}
MOVES |= {"aten::_foreach_copy_", "fsdp::all_gather_copy_in", "fsdp::split_with_sizes_copy", "fsdp::chunk_cat"}
"""Ops that only move values."""

_running: list[Trace] = []


def now() -> Trace:
    """Return the trace of the running rank."""
    return _running[-1]


class Event:
    """Stand-in for `torch.cuda.Event`."""

    def __init__(self, *_: object, **__: object) -> None:
        self.seen: Clock = {}

    def record(self, stream: Stream | None = None) -> None:
        self.seen = dict(now().clocks[(stream or current_stream()).name])

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_event(self)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        now().tell("sync", f"Event.synchronize at {line()}")


class Stream:
    """Stand-in for `torch.cuda.Stream`: a stream of the pool, unless it has a name."""

    def __init__(self, device: object = None, priority: int = 0, name: str = "") -> None:
        del device, priority
        self.name = name or now().new_stream()

    def wait_event(self, event: Event) -> None:
        now().wait(self.name, event.seen)

    def wait_stream(self, other: Stream) -> None:
        now().wait(self.name, now().clocks[other.name])

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        now().tell("sync", f"Stream.synchronize at {line()}")


def current_stream(*_: object) -> Stream:
    """Stand-in for `torch.cuda.current_stream`."""
    return Stream(name=now().current)


@contextmanager
def _on_stream(stream: Stream) -> Generator[None, None, None]:
    before, now().current = now().current, stream.name
    try:
        yield
    finally:
        now().current = before


def record_stream(tensor: torch.Tensor, stream: Stream) -> None:
    """Stand-in for `Tensor.record_stream`."""
    now().memory(tensor).recorded.add(stream.name)


class Work:
    """
    An operation of NCCL, on the stream of its communicator. A collective holds its tensors until `wait`; a send or
    receive records its stream on them.
    """

    def __init__(
        self,
        communicator: str,
        what: tuple[object, ...],
        reads: Sequence[torch.Tensor],
        writes: Sequence[torch.Tensor],
        on: str = "",
    ) -> None:
        trace, self._held = now(), None
        for each in (*reads, *writes):
            if each.device.type != "cuda":
                raise RuntimeError(f"{what[0]}: NCCL cannot take a tensor on {each.device}")
            if not each.is_contiguous():
                raise RuntimeError(f"{what[0]}: NCCL cannot take a tensor that is not contiguous")
            if each.dtype not in NCCL_DTYPES:
                raise TypeError(f"{what[0]}: NCCL has no {each.dtype}")
        if (on := on or communicator) not in trace.streams_of_nccl:
            trace.streams_of_nccl[on] = trace.new_stream()
        stream = trace.streams_of_nccl[on]
        trace.wait(stream, trace.clocks[trace.current])
        number = trace.kernel(stream, reads, writes, str(what[0]))
        trace.queued.append(Queued(stream, len(trace.launches), {}))
        trace.launches.append(Launch(communicator, what, stream, number, line()))
        self._seen = dict(trace.clocks[stream])
        if communicator.startswith("pair"):
            for each in (*reads, *writes):
                trace.memory(each).recorded.add(stream)
        else:
            self._held = (*reads, *writes)

    def wait(self, *_: object) -> bool:
        now().wait(now().current, self._seen)
        self._held = None
        return True

    def is_completed(self) -> bool:
        return True


def collective(kind: str) -> Callable[..., Any]:
    """Return a stand-in for a collective of torch.distributed."""

    def run(*args: Any, group: Any = None, async_op: bool = False, **named: object) -> Any:
        group = group or next((each for each in args if isinstance(each, dist.ProcessGroup)), None)
        ranks = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
        tensors = [each for each in (*args, *named.values()) if isinstance(each, torch.Tensor)]
        result, source = tensors if len(tensors) == 2 else (tensors[0], tensors[0])
        parts = {"all_gather": (source, result), "reduce_scatter": (result, source)}.get(kind)
        if parts is not None and parts[0].numel() * len(ranks) != parts[1].numel():
            raise RuntimeError(f"{kind} of {source.numel()} elements into {result.numel()} on {len(ranks)} ranks")
        splits = tuple(tuple(each) for each in args if isinstance(each, list))
        details = [str(each) for each in args if isinstance(each, int | dist.ReduceOp.RedOpType)]
        size = None if splits else min(result.numel(), source.numel())
        what = (kind, str(result.dtype), size, *details)
        if (together := now().together) is not None:
            return together.append((f"group {ranks}", what, source, result))
        work = Work(f"group {ranks}", what, [source], [result])
        return work if async_op else work.wait()

    return run


@contextmanager
def _in_one_launch(group: Any = None, device: Any = None, async_ops: bool = False) -> Generator[_Together, None, None]:
    """Stand-in for torch's `_coalescing_manager`: all collectives called within it are one launch."""
    del group, device, async_ops
    launched = _Together()
    now().together = calls = list[Any]()
    try:
        yield launched
    finally:
        now().together = None
    communicators, whats, reads, writes = zip(*calls, strict=True)
    if len(set(communicators)) > 1:
        raise RuntimeError(f"{whats[0][0]}: one launch on several communicators, {sorted(set(communicators))}")
    launched.works.append(Work(communicators[0], (whats[0][0], *whats), reads, writes))


class _Together:
    """Stand-in for the object that torch's `_coalescing_manager` yields."""

    def __init__(self) -> None:
        self.works: list[Work] = []

    def wait(self) -> None:
        for each in self.works:
            each.wait()


def _message(sends: bool) -> Callable[..., Work]:
    """Return a stand-in for a message: all messages of a group share a stream, as with eagerly made communicators."""

    def run(self: Any, chunk: torch.Tensor, tag: int) -> Work:
        me, members = dist.get_rank(), dist.get_process_group_ranks(self.group)
        other = members[self.place]
        pair = (me, other) if sends else (other, me)
        what = ("send" if sends else "receive", str(chunk.dtype), chunk.numel(), f"message {tag}")
        of_group = f"messages of {self.group.group_name}"
        return Work(f"pair {pair}", what, [chunk] if sends else [], [] if sends else [chunk], of_group)

    return run


class _Kernels(TorchDispatchMode):
    """A mode that records the tensors that ops on `cuda` read and write, and the ops that make the host wait."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        kwargs, name = kwargs or {}, func._schema.name
        given = tensors((args, kwargs))
        on_gpu = [each for each in given if each.device.type == "cuda"]
        if name == "aten::_local_scalar_dense" and on_gpu:
            now().tell("sync", f"item() at {line()}")
            return 1
        now().ran(func, args, kwargs)
        result = _fused(func, args, kwargs) if name.startswith("aten::_fused_") else func(*args, **kwargs)
        made = [each for each in tensors(result) if each.device.type == "cuda"]
        if not on_gpu and not made:
            return result
        if name in ("aten::_to_copy", "aten::copy_"):
            source = args[1] if name == "aten::copy_" else args[0]
            kinds = {each.device.type for each in (*given, *made)}
            waits_not = kwargs.get("non_blocking") or (name == "aten::copy_" and args[2:] == (True,))
            if kinds == {"cpu", "cuda"} and not (waits_not and hasattr(source, "_is_pinned")):
                now().tell("sync", f"copy from {source.device.type} that blocks at {line()}")
        written = [each for each in _written(func, args, kwargs) if each.device.type == "cuda"]
        if name == "fsdp::all_gather_copy_in":
            # Its schema does not declare that it writes the first result, a view of an operand.
            written.append(made[0])
        known = {each.untyped_storage()._cdata for each in on_gpu}
        fresh = [each for each in made if each.untyped_storage()._cdata not in known]
        if name in _ALLOCATIONS:
            for each in fresh:
                now().memory(each)
        elif written or fresh:
            reads = [each for each in on_gpu if not any(each is one for one in written)]
            now().kernel(now().current, reads, [*written, *fresh], name)
            now().kernels[name] += _launches(name, args)
            if name in MOVES:
                now().copied[name] += sum(each.nbytes for each in (*written, *fresh))
        return result


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the operands that an op writes."""
    found: list[torch.Tensor] = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += tensors(args[index] if index < len(args) else kwargs.get(argument.name))
    return found


def _launches(name: str, args: tuple[Any, ...]) -> int:
    """Return 1, or the number of tensors of a `_foreach_` op that CUDA processes one by one."""
    if not name.startswith("aten::_foreach_"):
        return 1
    given = tensors(args)
    alike = len({each.dtype for each in given}) == 1 and all(each.is_contiguous() for each in given)
    return 1 if alike else len(args[0])


def _fused(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """
    Check the operands of a fused update, which has no fake kernel: all are on one device, and the rate, the count of
    updates and `found_inf` have the dtype that the CUDA kernels read.
    """
    name = func._schema.name
    for index, value in enumerate(args):
        if any(each.device != args[0][0].device for each in tensors(value)):
            raise RuntimeError(f"{name}: operand {index} is not on {args[0][0].device}")
    for value in tensors((args[5:], kwargs)):
        if value.device.type == "cuda" and value.dtype != torch.float32:
            raise RuntimeError(f"{name}: expected scalar type Float but found {value.dtype}")
    rate = kwargs.get("lr")
    if isinstance(rate, torch.Tensor) and rate.device.type == "cuda" and func._overloadname != "tensor_lr":
        now().tell("sync", f"learning rate on the device at {line()}")


def _to_list(tensor: torch.Tensor) -> Any:
    if not isinstance(tensor, FakeTensor) or tensor.device.type == "cpu":
        return _TO_LIST(tensor)
    now().tell("sync", f"tolist() at {line()}")
    return [index + 1 for index in range(tensor.numel())]


_TO_LIST = torch.Tensor.tolist


def _pin_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Stand-in for `Tensor.pin_memory`, which a build of torch without CUDA lacks."""
    pinned = tensor.clone()
    pinned._is_pinned = True  # pyright: ignore[reportAttributeAccessIssue]
    return pinned


_STAND_INS: Sequence[tuple[object, Mapping[str, object]]] = (
    (torch.cuda, {"get_device_capability": lambda _=None: (9, 0)}),
    (torch.cuda, {"Stream": Stream, "Event": Event, "current_stream": current_stream, "stream": _on_stream}),
    (torch.Tensor, {"record_stream": lambda tensor, stream: record_stream(tensor, stream), "tolist": _to_list}),
    (torch.Tensor, {"pin_memory": _pin_memory, "is_pinned": lambda tensor: hasattr(tensor, "_is_pinned")}),
    (dist, {name: collective(name) for name in ("all_reduce", "broadcast", "reduce", "all_to_all_single")}),
    (dist, {"get_backend_config": lambda *_: "cuda:nccl"}),
    (collectives, {f"_{name}_single": collective(name) for name in ("all_gather", "reduce_scatter")}),
    (collectives, {"_coalescing_manager": _in_one_launch}),
    (transfers._LineEnd, {"send": _message(True), "receive": _message(False)}),
)
"""The stand-ins, by the object whose attributes they replace."""


@contextmanager
def simulated_rank(rank: int, world: int, trace: Trace) -> Generator[None, None, None]:
    """Make this process act as one rank of a job on GPUs with NCCL."""
    add_device_guard()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    _running.append(trace)
    try:
        with ExitStack() as stack:
            for home, stand_ins in _STAND_INS:
                for name, stand_in in stand_ins.items():
                    stack.enter_context(patch.object(home, name, stand_in))
            stack.enter_context(FakeTensorMode())
            stack.enter_context(_Kernels())
            yield
    finally:
        _running.pop()
        dist.destroy_process_group()


@cache
def add_device_guard() -> None:
    """
    Register a no-op guard for CUDA devices: indexing needs one, and a build of torch without CUDA has none.

    This needs a C++ compiler (g++) and the headers in torch's package.
    """
    try:
        with FakeTensorMode():
            torch.empty(2, device="cuda")[0]
        return
    except RuntimeError:
        pass
    text = "#include <c10/core/impl/DeviceGuardImplInterface.h>\n"
    text += "namespace c10::impl { C10_REGISTER_GUARD_IMPL(CUDA, NoOpDeviceGuardImpl<c10::DeviceType::CUDA>) }\n"
    with tempfile.TemporaryDirectory() as folder:
        torch.ops.load_library(str(build_library(text, Path(folder))))


def build_library(text: str, folder: Path) -> Path:
    """Compile a C++ extension of torch to a library in `folder`."""
    from torch.utils import cpp_extension

    source, library = folder / "library.cpp", folder / "library.so"
    source.write_text(text)
    flags = [f"-I{each}" for each in cpp_extension.include_paths()]
    flags += [f"-L{each}" for each in cpp_extension.library_paths()]
    flags.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}")
    build = ["g++", "-std=c++20", "-shared", "-fPIC", str(source), "-o", str(library), *flags, "-lc10", "-ltorch_cpu"]
    subprocess.run(build, check=True)
    return library
