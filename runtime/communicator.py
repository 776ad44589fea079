"""
`Communicator`: the collectives of a generated program, over the axes of a mesh.

Synchronous methods return their result; `start` and `wait` are the two halves of the same collectives. On a
CPU the library's threads move the bytes meanwhile. On CUDA the stream of NCCL moves them, and `wait` makes the current
stream wait for that stream; the CPU never blocks. Messages are packed and unpacked on the current stream, so that all
memory comes from its pool; only a hierarchical collective, whose phases wait for one another, has a separate stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch

from ..ir.mesh import Mesh
from .collectives import METHODS, begin
from .faults import ACTIVITY
from .groups import TIMEOUT, Axes, Handles, RankGroup, RankLayout, job_rank, make_groups, world_size
from .hierarchical import HIERARCHICAL, PHASED, begin_hierarchical
from .pieces import Sizes
from .requests import CheckedSequence, Pending, Request, even_sizes
from .step_recorder import RECORDING, named_range
from .transfers import Arrival, Channels

# The options of `start` by kind, and their names in `Request`.
_OPTIONS: dict[str, dict[str, str]] = {
    "all_reduce": {"reduction": "reduction", "donate": "donate", "method": "method"},
    "all_gather": {"dim": "dim", "sizes": "sizes", "method": "method"},
    "reduce_scatter": {"dim": "dim", "sizes": "sizes", "reduction": "reduction", "method": "method"},
    "all_to_all": {
        "split_dim": "dim",
        "split_sizes": "sizes",
        "concat_dim": "concat_dim",
        "concat_sizes": "concat_sizes",
        "method": "method",
    },
    "broadcast": {"root": "root", "method": "method"},
}


@dataclass(frozen=True)
class Token:
    """A collective in flight, returned by `start` and passed to `wait`."""

    request: Request
    pending: Pending


class Communicator:
    """
    The process groups of this rank, and the collectives over them; in a pipeline, the groups of its stage.

    Every rank of the job must construct one, and the ranks of a mesh must call the same collectives in the same order.
    Results are contiguous. Operands are never changed (except in `all_reduce`), and must not change between `start`
    and `wait`. `sizes` are the sizes of the parts of a split dim, in group order; an even split is the default.

    Args:
        groups: tuples of axes that collectives will run along.
        job: all meshes of the job, including this one, in the same order on every rank, or None if this mesh has all
            ranks.
        channels: channels to the other stages, if there are any.
        handles: process groups to reuse; new groups are added to them. They are the same on every rank.
        timeout: timeout of collectives along some of the axes; collectives along all axes have the timeout that the
            job was started with.
        checked: compare each collective over all ranks before it starts (slow; to find mismatched programs).

    Raises:
        ValueError: the numbers of ranks of the job and of the mesh differ.
    """

    def __init__(
        self,
        mesh: Mesh,
        groups: Iterable[Axes],
        device: torch.device | str = "cpu",
        *,
        job: Sequence[RankLayout] | None = None,
        channels: Channels | None = None,
        handles: Handles | None = None,
        timeout: timedelta = TIMEOUT,
        checked: bool = False,
    ) -> None:
        self.mesh = mesh
        self.device = torch.device(device)
        world, me = world_size(), job_rank()
        if job is None:
            if world != mesh.device_count:
                raise ValueError(f"mesh {mesh} has {mesh.device_count} ranks, this job {world}")
            job = [RankLayout(mesh, tuple(range(world)), tuple(groups))]
        if checked:
            job = [replace(layout, groups=(*layout.groups, _everywhere(layout.mesh))) for layout in job]
        # The creation of each group waits for all ranks.
        self._groups = ACTIVITY.wait("the groups of all ranks", lambda: make_groups(job, timeout, handles, self.device))
        self.rank = next(layout.ranks.index(me) for layout in job if me in layout.ranks)
        """The rank in the mesh, which differs from the rank in the job in a pipeline."""
        self._sequence = CheckedSequence(mesh, self._groups[_everywhere(mesh)]) if checked else None
        self._channels = channels
        self._streams: dict[Axes, torch.cuda.Stream] = {}

    def group(self, axes: Axes) -> RankGroup:
        """
        Return the group of this rank along `axes`.

        Raises:
            ValueError: no such group exists.
        """
        if (group := self._groups.get(axes)) is None:
            existing = ", ".join(str(list(axes)) for axes in self._groups)
            raise ValueError(
                f"no process group along axes {list(axes)}; there are groups along {existing or 'none'}: "
                "name it when making the communicator"
            )
        return group

    def part(self, axes: Axes) -> int:
        """Return the index of this rank's part of a dim split along `axes`."""
        return self.mesh.part(self.rank, axes)

    def all_reduce(
        self, x: torch.Tensor, axes: Axes, reduction: str = "sum", *, donate: bool = False, method: str | None = None
    ) -> torch.Tensor:
        """Reduce `x` over the group. With `donate` the result may overwrite a contiguous `x`."""
        return self._now(Request("all_reduce", (x,), axes, reduction=reduction, method=method, donate=donate))

    def all_gather(
        self, x: torch.Tensor, dim: int, axes: Axes, sizes: Sizes | None = None, method: str | None = None
    ) -> torch.Tensor:
        """Join the parts of the group along `dim`. Without `sizes`, all parts have the size of `x`."""
        return self._now(Request("all_gather", (x,), axes, dim=dim, sizes=sizes, method=method))

    def reduce_scatter(
        self,
        x: torch.Tensor,
        dim: int,
        axes: Axes,
        sizes: Sizes | None = None,
        reduction: str = "sum",
        method: str | None = None,
    ) -> torch.Tensor:
        """Reduce `x` over the group and return this rank's part along `dim`."""
        request = Request("reduce_scatter", (x,), axes, dim=dim, sizes=sizes, reduction=reduction, method=method)
        return self._now(request)

    def all_to_all(
        self,
        x: torch.Tensor,
        split_dim: int,
        concat_dim: int,
        axes: Axes,
        split_sizes: Sizes | None = None,
        concat_sizes: Sizes | None = None,
        method: str | None = None,
    ) -> torch.Tensor:
        """
        Split `x` along `split_dim`, send each part to its rank, and join the received parts along `concat_dim`.

        Without `concat_sizes`, all parts have the size of `x` along `concat_dim`. With one dim for both, and both
        sizes, the boundaries of the parts along the dim move.
        """
        request = Request(
            "all_to_all",
            (x,),
            axes,
            dim=split_dim,
            sizes=split_sizes,
            concat_dim=concat_dim,
            concat_sizes=concat_sizes,
            method=method,
        )
        return self._now(request)

    def broadcast(self, x: torch.Tensor, axes: Axes, root: int = 0) -> torch.Tensor:
        """Return the `x` of the part `root` of the group; on the other ranks `x` gives the shape and dtype."""
        return self._now(Request("broadcast", (x,), axes, root=root))

    def slice(self, x: torch.Tensor, dim: int, axes: Axes, sizes: Sizes | None = None) -> torch.Tensor:
        """Return this rank's part of `x` along `dim`, a view."""
        part = self.part(axes)
        if sizes is None:
            sizes = even_sizes(x.shape[dim], self.mesh.parts(axes))
        return x.narrow(dim, sum(sizes[:part]), sizes[part])

    def partial(self, x: torch.Tensor, axes: Axes) -> torch.Tensor:
        """Return values whose sum over `axes` is `x`: `x` itself on part 0, zeros elsewhere."""
        return x if self.part(axes) == 0 else torch.zeros_like(x)

    def start(self, kind: str, tensors: Sequence[torch.Tensor], axes: Axes, **options: Any) -> Token:
        """
        Start one collective on all `tensors`, which share a dtype.

        Args:
            kind: the name of a synchronous method that communicates.
            options: the other arguments of the method. A dim, or sizes, may differ per tensor, as a tuple.

        Raises:
            ValueError: the kind or an option is unknown, or operands do not fit the sizes.
        """
        names = _OPTIONS.get(kind)
        if names is None:
            raise ValueError(f"start({kind!r}): expected one of {', '.join(METHODS)}")
        if unknown := options.keys() - names.keys():
            raise ValueError(f"start({kind!r}) got {min(unknown)!r}; its options are {', '.join(names)}")
        named = {names[option]: value for option, value in options.items()}
        request = Request(kind, tuple(tensors), axes, **named)
        group = self._checked(request)
        with named_range(f"start {kind}", request.over):
            return Token(request, self._begin(group, request))

    def wait(self, token: Token) -> tuple[torch.Tensor, ...]:
        """Return the results of a collective, one per tensor that `start` received."""
        request = token.request
        with named_range(f"wait for {request.kind}", request.over):
            return ACTIVITY.wait(request, token.pending.wait)

    def send(self, label: str, part: int, value: torch.Tensor) -> None:
        """
        Begin to send this rank's part of a value to another stage, without waiting for other ranks.

        Args:
            part: index of the part over all temporal axes together.
            value: the value, which must not change before `finish_transfers`; its memory is released when it is sent.

        Raises:
            ValueError: this rank sends no such transfer, or `value` has an unexpected shape.
        """
        channels = self._connected(label)
        with named_range("send", label):
            if RECORDING.recorder is not None:
                RECORDING.recorder.sent(channels.transfer(label), part, value.nbytes)
            channels.send(label, part, value)

    def receive(self, label: str, part: int) -> Arrival:
        """
        Begin to receive this rank's part of a value from another stage, as early as memory for it is available.

        Raises:
            ValueError: this rank receives no such transfer.
        """
        channels = self._connected(label)
        with named_range("receive", label):
            arrival = channels.receive(label, part)
        recorder = RECORDING.recorder
        return arrival if recorder is None else recorder.received(channels.transfer(label), part, arrival)

    def arrived(self, arrival: Arrival) -> torch.Tensor:
        """Wait for a value that `receive` began to receive, and return it."""
        with named_range("wait for transfer", "stages"):
            return ACTIVITY.wait("a transfer from another stage", arrival.wait)

    def finish_transfers(self) -> None:
        """Wait until every transfer is sent; call this after every step, because all steps use the same numbers."""
        if self._channels is not None:
            finish, recorder = self._channels.finish, RECORDING.recorder
            wait = finish if recorder is None else lambda: recorder.waiting(finish)
            ACTIVITY.wait("transfers to other stages", wait)

    def _connected(self, label: str) -> Channels:
        if self._channels is None:
            raise ValueError(f"transfer {label!r}: this communicator has no channels to other stages")
        return self._channels

    def _now(self, request: Request) -> torch.Tensor:
        group = self._checked(request)
        if group.size == 1:
            return self._begin(group, request).wait()[0]
        with named_range(request.kind, request.over):
            return ACTIVITY.wait(request, lambda: self._begin(group, request, now=True).wait())[0]

    def _begin(self, group: RankGroup, request: Request, *, now: bool = False) -> Pending:
        """Begin a collective; with `now` the caller waits for it at once."""
        if RECORDING.recorder is None or group.size == 1:
            return self._begun(group, request, now)
        return RECORDING.recorder.collective(request, group.ranks, lambda: self._begun(group, request, now), now)

    def _begun(self, group: RankGroup, request: Request, now: bool) -> Pending:
        if request.method != HIERARCHICAL or request.kind not in PHASED or len(request.axes) == 1:
            return begin(group, request)
        return self._in_turn(request) if now or self.device.type != "cuda" else self._beside(request)

    def _checked(self, request: Request) -> RankGroup:
        group = self.group(request.axes)
        if self._sequence is not None:
            self._sequence.check(request)
        return group

    def _beside(self, request: Request) -> Pending:
        """Begin a collective in phases on a separate CUDA stream."""
        # Torch has a pool of 32 streams and reuses them in turn: a stream that is drawn and not used is lost to others.
        if request.axes not in self._streams:
            self._streams[request.axes] = torch.cuda.Stream(self.device)
        stream = self._streams[request.axes]
        # The current stream may use freed memory of this stream up to this point.
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            # On CUDA this queues work without blocking the CPU: only the stream waits.
            results = self._in_turn(request).wait()
            done = torch.cuda.Event()
            done.record(stream)
        return Pending([UntilEvent(done, self.device)], lambda: list(results))

    def _in_turn(self, request: Request) -> Pending:
        """Begin a collective in phases on the current stream."""
        across, inside = self.group(request.axes[:-1]), self.group(request.axes[-1:])
        return begin_hierarchical(across, inside, self.group(request.axes), request)


@dataclass(frozen=True)
class UntilEvent:
    """A handle like torch's that makes the current stream wait for an event."""

    event: torch.cuda.Event
    device: torch.device

    def wait(self) -> None:
        """Make the current stream wait for the event."""
        torch.cuda.current_stream(self.device).wait_event(self.event)

    def is_completed(self) -> bool:
        """Whether the event has happened."""
        return self.event.query()


def _everywhere(mesh: Mesh) -> Axes:
    return tuple(axis.name for axis in mesh.spatial)
