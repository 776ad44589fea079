"""Ending a job: on any failure, one rank prints one message, and all ranks exit with an error code."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from .faults import ACTIVITY, FaultBounds, is_lost_peer
from .lifetime import ended_ranks
from .plan import PlanError
from .watch import Watch, job_store

_PACKAGE = __name__.split(".", maxsplit=1)[0]

_MOST_BETWEEN_LOOKS = 0.5
"""The longest pause between two checks for missing ranks, in seconds."""

_MISSING = (
    "check what they do before parallelize, whether torchrun was started on every machine, or raise start of "
    "FaultBounds if that may take so long"
)

_MEMORY = (
    "keep less for backward (keep_activations=), give it fewer rows (micro_batches=), or plan for a cluster whose file "
    "says how much memory there is"
)


def watch_job(name: str, bounds: FaultBounds) -> Watch | None:
    """
    Start a watch over the job of this process; every rank must call this.

    Returns:
        The watch, or None if this rank is alone or the job has no TCP store to communicate through.
    """
    if dist.get_world_size() == 1 or (store := job_store()) is None:
        return None
    # The process group may have been created long before.
    await_ranks(name, store, dist.get_rank(), dist.get_world_size(), bounds)
    return Watch(name, bounds, store)


def verify_launcher(name: str, seconds: float) -> None:
    """
    Check that torchrun, which holds the job's store, still listens; otherwise starting ranks would be reported as dead.

    Args:
        seconds: torchrun counts as gone after its port has refused connections for this time.

    Raises:
        SystemExit: torchrun is gone; the first rank of this machine has reported it.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    deadline = time.monotonic() + seconds
    while _refuses(address, port):
        if time.monotonic() > deadline:
            if os.environ.get("LOCAL_RANK", "0") == "0":
                gone = f"torchrun, which holds the job's store, is gone: nothing listens on {address}:{port}"
                print(f"{name}: rank {os.environ['RANK']}: {gone}; start the job again", file=sys.stderr, flush=True)
            raise SystemExit(1)
        time.sleep(min(_MOST_BETWEEN_LOOKS, seconds / 8))


def _refuses(address: str, port: int) -> bool:
    """Whether a port refuses connections; other faults of the connection are found later."""
    try:
        socket.create_connection((address, port), timeout=_MOST_BETWEEN_LOOKS).close()
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False


def await_ranks(name: str, store: Store, rank: int, world: int, bounds: FaultBounds) -> None:
    """
    Wait until all ranks of a job have arrived.

    Raises:
        SystemExit: some ranks ended or did not arrive in time; the first rank that noticed has reported them.
    """
    prefix = f"shardwright/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    keys = [f"{prefix}/here/{other}" for other in range(world)]
    counter, told = f"{prefix}/come", f"{prefix}/told"
    store.set(keys[rank], "here")
    come, began = store.add(counter, 1), time.monotonic()
    # Poll with short waits: torch logs a wait that takes too long, on each rank.
    while come < world:
        waited = time.monotonic() - began
        # A launcher may need this time to start its other ranks.
        ended = ended_ranks() if waited > bounds.gone else set[int]()
        if ended or waited >= bounds.start or store.check([told]):
            if store.add(f"{prefix}/noticed", 1) == 1:
                missing = sorted(ended) or [other for other, key in enumerate(keys) if not store.check([key])]
                how = "ended before all had come" if ended else f"did not arrive within {bounds.start:g} s"
                text = f"ranks {', '.join(map(str, missing))} of the job {how}: {_MISSING}"
                print(f"{name}: rank {rank}: {text}", file=sys.stderr, flush=True)
                store.set(told, "yes")
            with suppress(RuntimeError):
                store.wait([told], timedelta(seconds=bounds.gone))
            raise SystemExit(1)
        time.sleep(min(_MOST_BETWEEN_LOOKS, 0.01 + waited / 10))
        come = store.add(counter, 0)


def report_errors_once(watch: Watch) -> None:
    """Make one rank report an error that ends this rank's script, and end all ranks; effective from now on."""
    shown = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if ACTIVITY.forked:
            shown(kind, error, trace)
        else:
            fail(watch, error, shown)

    sys.excepthook = hook


Show: TypeAlias = "Callable[[type[BaseException], BaseException, TracebackType | None], object]"


def fail(watch: Watch, error: BaseException, shown: Show | None = None) -> None:
    """
    Report the error of this rank, unless another rank is the cause or has reported its own, and end the other ranks.

    Args:
        shown: function that prints an error with its traceback, for errors whose message does not explain them; no
            traceback is printed if None.
    """
    if ACTIVITY.phase == "failed":
        return
    cause = error.__cause__ if error.__cause__ is not None and is_lost_peer(error.__cause__) else error
    ACTIVITY.failed(cause)
    text = f"{watch.judge.named(dist.get_rank())}: {error_text(error, ACTIVITY.place)}"

    def tell() -> None:
        print(f"{watch.name}: {text}", file=sys.stderr, flush=True)
        if shown is not None and not explains_itself(error):
            shown(type(error), error, error.__traceback__)

    watch.fail(text, tell)


def explains_itself(error: BaseException) -> bool:
    """Whether the message of an error is a sufficient explanation without a traceback."""
    ours = type(error).__module__.split(".", maxsplit=1)[0] == _PACKAGE
    return ours or is_out_of_memory(error) or isinstance(error, KeyboardInterrupt) or is_lost_peer(error)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is a failure to allocate a tensor on the host or on a device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    words = ("not enough memory", "can't allocate memory", "out of memory")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def error_text(error: BaseException, where: str = "") -> str:
    """
    Return an error in one line.

    Args:
        where: where the error happened, as in `RankActivity.place`.
    """
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    first = str(error).strip().partition("\n")[0]
    if is_out_of_memory(error):
        return f"ran out of memory{where}: {first or type(error).__name__}; {_MEMORY}"
    if is_lost_peer(error):
        return f"lost the connection to another rank{where}: {first}"
    return str(error) if isinstance(error, PlanError) else f"{type(error).__name__}{where}: {first}"


def stay_on_loopback() -> None:
    """Listen on the loopback interface if all ranks are on this machine, unless the user chose another interface."""
    local, world = (os.environ.get(name) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    if sys.platform == "linux" and local is not None and local == world:
        for library in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
