"""The ranks of a program as threads of one process, with a communicator that checks its preconditions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from shardwright.ir.mesh import Mesh

_REDUCE = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}


class Meeting:
    """The barrier at which the ranks of one program exchange values: all ranks take part in every collective."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.barrier = threading.Barrier(mesh.device_count, timeout=20)
        self.shown: list[Any] = [None] * mesh.device_count

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """Contribute `value` and return the values of all ranks."""
        self.shown[rank] = value
        self.barrier.wait()
        seen = list(self.shown)
        self.barrier.wait()
        return seen


class ThreadCommunicator:
    """
    The runtime's communicator for one rank of a `Meeting`, in a separate, plain implementation.

    A group of one returns its operand. A donated operand is overwritten, and an operand of `start` must be
    unchanged at `wait`: a program that reads a donated value computes wrong numbers, or fails.
    """

    device = torch.device("cpu")

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.mesh, self.rank = meeting, meeting.mesh, rank

    def all_reduce(
        self,
        x: torch.Tensor,
        axes: tuple[str, ...],
        reduction: str = "sum",
        *,
        donate: bool = False,
        method: str | None = None,
    ) -> torch.Tensor:
        if self.mesh.parts(axes) == 1:
            return x
        result = _REDUCE[reduction](torch.stack(self._parts("all_reduce", x, axes)), dim=0)
        return x.copy_(result) if donate else result

    def all_gather(
        self,
        x: torch.Tensor,
        dim: int,
        axes: tuple[str, ...],
        sizes: tuple[int, ...] | None = None,
        method: str | None = None,
    ) -> torch.Tensor:
        if self.mesh.parts(axes) == 1:
            return x
        parts = self._parts("all_gather", x, axes)
        assert tuple(part.shape[dim] for part in parts) == (sizes or (x.shape[dim],) * len(parts))
        return torch.cat(parts, dim)

    def reduce_scatter(
        self,
        x: torch.Tensor,
        dim: int,
        axes: tuple[str, ...],
        sizes: tuple[int, ...] | None = None,
        reduction: str = "sum",
        method: str | None = None,
    ) -> torch.Tensor:
        if self.mesh.parts(axes) == 1:
            return x
        whole = _REDUCE[reduction](torch.stack(self._parts("reduce_scatter", x, axes)), dim=0)
        return self._cut(whole, dim, axes, sizes).contiguous()

    def all_to_all(
        self,
        x: torch.Tensor,
        split_dim: int,
        concat_dim: int,
        axes: tuple[str, ...],
        split_sizes: tuple[int, ...] | None = None,
        concat_sizes: tuple[int, ...] | None = None,
    ) -> torch.Tensor:
        if self.mesh.parts(axes) == 1:
            return x
        parts = self._parts("all_to_all", x, axes)
        if split_dim == concat_dim:
            # The boundaries of one dim move: every rank tells the others the sizes it sends.
            sizes = [part.tolist() for part in self._parts("all_to_all", torch.tensor(split_sizes), axes)]
            own = self.mesh.part(self.rank, axes)
            assert tuple(each[own] for each in sizes) == concat_sizes
            pieces = [part.split(each, split_dim)[own] for part, each in zip(parts, sizes, strict=True)]
            return torch.cat(pieces, concat_dim)
        assert tuple(p.shape[concat_dim] for p in parts) == (concat_sizes or (x.shape[concat_dim],) * len(parts))
        return torch.cat([self._cut(part, split_dim, axes, split_sizes) for part in parts], concat_dim)

    def slice(
        self, x: torch.Tensor, dim: int, axes: tuple[str, ...], sizes: tuple[int, ...] | None = None
    ) -> torch.Tensor:
        return self._cut(x, dim, axes, sizes)

    def partial(self, x: torch.Tensor, axes: tuple[str, ...]) -> torch.Tensor:
        return x if self.mesh.part(self.rank, axes) == 0 else torch.zeros_like(x)

    def start(self, kind: str, tensors: Sequence[torch.Tensor], axes: tuple[str, ...], **options: Any) -> Any:
        donate = options.pop("donate", False)
        donated = range(len(tensors)) if donate is True else donate or ()
        results = []
        for i, tensor in enumerate(tensors):
            own = {name: value[i] if _is_each(name, value) else value for name, value in options.items()}
            results.append(getattr(self, kind)(tensor, axes=axes, **own))
        not_donated = [tensor for i, tensor in enumerate(tensors) if i not in donated]
        shown = [tensor.clone() for tensor in not_donated]
        if self.mesh.parts(axes) > 1:
            for tensor in (tensors[i] for i in donated):
                whole = not tensor.is_floating_point() and not tensor.is_complex()
                tensor.fill_(torch.iinfo(tensor.dtype).max if whole else torch.nan)
        return not_donated, shown, results

    def wait(self, token: Any) -> tuple[torch.Tensor, ...]:
        tensors, shown, results = token
        for tensor, before in zip(tensors, shown, strict=True):
            assert torch.equal(tensor, before), "an operand changed while its collective was under way"
        return tuple(results)

    def _parts(self, kind: str, x: torch.Tensor, axes: tuple[str, ...]) -> list[torch.Tensor]:
        seen = self.meeting.exchange(self.rank, (kind, axes, x.clone()))
        assert {(other, along) for other, along, _ in seen} == {(kind, axes)}, "the ranks run different programs"
        return [seen[rank][2] for rank in self.mesh.group(self.rank, axes)]

    def _cut(self, x: torch.Tensor, dim: int, axes: tuple[str, ...], sizes: tuple[int, ...] | None) -> torch.Tensor:
        count, part = self.mesh.parts(axes), self.mesh.part(self.rank, axes)
        if sizes is None:
            bounds = [i * x.shape[dim] // count for i in range(count + 1)]
            sizes = tuple(after - before for before, after in pairwise(bounds))
        assert len(sizes) == count, f"{sizes} for {count} parts"
        return x.split(sizes, dim)[part]


def _is_each(name: str, value: Any) -> bool:
    """Return whether an option of `start` is one value per tensor."""
    if not isinstance(value, tuple):
        return False
    return name.endswith("dim") or any(item is None or isinstance(item, tuple) for item in value)


def run_threads(body: Callable[[Any], Any], places: Sequence[Any], barriers: Sequence[threading.Barrier]) -> list[Any]:
    """Run `body` for every place and return the results; raise the first error."""
    results: list[Any] = [None] * len(places)
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            results[index] = body(places[index])
        except BaseException as error:
            errors.append(error)
            for barrier in barriers:
                barrier.abort()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(places))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
    return results
