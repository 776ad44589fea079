"""
The collectives, by kind and method.

==============  =================  ================================================================
kind            method             how
==============  =================  ================================================================
all_reduce      native             the library's; small tensors of a bucket travel as one message
all_gather      direct             each rank sends its part to every other rank (`Exchange`)
                padded             the library's: each large tensor with equal parts by itself, the other
                                   tensors in one message, parts padded to the largest (`rows.py`)
                grouped_broadcast  each part is broadcast by its owner, without padding
reduce_scatter  direct             each rank sends every other rank its part, and reduces the parts it receives
                padded             as for all_gather
                grouped_broadcast  each part is reduced to its owner, without padding
all_to_all      direct             each rank sends every other rank its part
                native             the library's, by element counts
broadcast       native             the library's
all others      hierarchical       over the last axis and the other axes in turn (`hierarchical.py`)
==============  =================  ================================================================

Every function starts its work and returns at once. Operands are not changed, except by a donated all-reduce. With
NCCL, the library calls for several tensors become one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from ..ir.collectives import ALONE_FROM_BYTES
from .groups import RankGroup
from .pieces import (
    Assembly,
    ReceiveBuffers,
    count_of,
    flatten,
    message,
    packed,
    parcels,
    parcels_of_bucket,
    piece_shape,
    put_all,
    unflatten,
)
from .requests import Pending, Request, Waitable
from .rows import RowLayout


class Exchange:
    """
    The messages between this rank and every other rank of a group, all started by the constructor.

    On gloo this was measured to be about twice as fast as the library's all_gather, reduce_scatter and all_to_all,
    which copy into staging buffers (gloo's reduce_scatter is an all_reduce in disguise). Here a contiguous block
    travels directly from its source to its destination. Parts of different sizes need no padding.

    Args:
        outgoing: the contiguous pieces to send to each part. They must not change before `wait`.
        incoming: the contiguous tensors to receive into, by the part that sends them.
    """

    def __init__(
        self, group: RankGroup, outgoing: Sequence[Sequence[torch.Tensor]], incoming: Sequence[Sequence[torch.Tensor]]
    ) -> None:
        self._works: list[Waitable] = []
        self._mail = ReceiveBuffers()
        # The buffers of messages in flight must outlive the messages.
        self._sent: list[torch.Tensor] = []
        handle, wire = group.handle, group.wire
        assert handle is not None
        for step in range(1, group.size):
            source, target = (group.part - step) % group.size, (group.part + step) % group.size
            for parcel in parcels(incoming[source]):
                self._works.append(handle.recv([self._mail.expect(parcel)], wire[source], 0))
            for parcel in parcels(outgoing[target]):
                self._sent.append(message(parcel))
                self._works.append(handle.send([self._sent[-1]], wire[target], 0))

    def wait(self) -> None:
        """Block until every message has been sent or received."""
        for work in self._works:
            work.wait()
        self._mail.unpack()


def _renamed(new: str, old: str) -> Callable[..., dist.Work]:
    """Return a function of torch.distributed by its new name, or its old one: new versions warn of the old names."""
    return getattr(dist, new, None) or getattr(dist, old)


_all_gather_single = _renamed("all_gather_single", "all_gather_into_tensor")
_reduce_scatter_single = _renamed("reduce_scatter_single", "reduce_scatter_tensor")


_REDUCE = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
_COMBINE: dict[str, Callable[..., torch.Tensor]] = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}


def _launch(
    group: RankGroup, function: Callable[..., Waitable | None], operands: Sequence[Sequence[object]]
) -> list[Waitable | None]:
    """Call a library function on several operands; NCCL does all calls in one launch."""
    if group.backend != "nccl" or len(operands) == 1:
        return [function(*args, group=group.handle, async_op=True) for args in operands]
    with _coalescing_manager(group.handle, async_ops=True) as launched:
        for args in operands:
            function(*args, group=group.handle, async_op=True)
    return [launched]


def _all_reduce(group: RankGroup, request: Request) -> Pending:
    messages, results = _to_reduce(request.tensors, request.donated())
    op = _REDUCE[request.reduction]
    return Pending(_launch(group, dist.all_reduce, [(tensor, op) for tensor in messages]), lambda: results)


def _to_reduce(
    tensors: Sequence[torch.Tensor], donated: Collection[int] = ()
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the messages to reduce in place (a bucket's small tensors as one), and each tensor's place in them."""
    results, small = list(tensors), list[int]()
    for i, tensor in enumerate(tensors):
        if len(tensors) > 1 and tensor.nbytes < ALONE_FROM_BYTES:
            small.append(i)
        elif not (i in donated and tensor.is_contiguous()):
            results[i] = tensor.clone(memory_format=torch.contiguous_format)
    messages = [tensor for i, tensor in enumerate(results) if i not in small]
    if small:
        messages.append(packed([tensors[i] for i in small]))
        for i, view in zip(small, unflatten(messages[-1], [tensors[i].shape for i in small]), strict=True):
            results[i] = view
    return messages, results


def _assemblies(group: RankGroup, request: Request) -> list[Assembly]:
    """Return the buffers of an all-gather's results, with this rank's parts in place."""
    parts = zip(request.tensors, request.dims(), request.gathered_sizes(group), strict=True)
    assemblies = [Assembly(tensor, dim, sizes) for tensor, dim, sizes in parts]
    put_all(assemblies, group.part, request.tensors)
    return assemblies


def _all_gather_direct(group: RankGroup, request: Request) -> Pending:
    whole = _assemblies(group, request)
    mine = [tensor.contiguous() for tensor in request.tensors]
    incoming = [[assembly.slots[part] for assembly in whole] for part in range(group.size)]
    exchange = Exchange(group, [mine] * group.size, incoming)
    return Pending([exchange], lambda: [assembly.whole() for assembly in whole])


def _all_gather_broadcast(group: RankGroup, request: Request) -> Pending:
    whole = _assemblies(group, request)
    mail, works = ReceiveBuffers(), list[dist.Work | None]()
    for part, root in enumerate(group.ranks):
        parcels = parcels_of_bucket([assembly.slots[part].contiguous() for assembly in whole])
        buffers = map(message if part == group.part else mail.expect, parcels)
        works += [dist.broadcast(buffer, root, group.handle, async_op=True) for buffer in buffers]

    def finish() -> list[torch.Tensor]:
        mail.unpack()
        return [assembly.whole() for assembly in whole]

    return Pending(works, finish)


def _all_gather_padded(group: RankGroup, request: Request) -> Pending:
    dims, sizes = request.dims(), request.gathered_sizes(group)
    whole = [piece_shape(t.shape, d, sum(s)) for t, d, s in zip(request.tensors, dims, sizes, strict=True)]
    layout = RowLayout(group, whole, dims, sizes, request.tensors[0].itemsize)
    rows = layout.to_gather(request.tensors)
    works = _launch(group, _all_gather_single, [(row.received, row.sent) for row in rows])
    return Pending(works, lambda: layout.gathered(rows))


def _reduce_scatter_direct(group: RankGroup, request: Request) -> Pending:
    rows = request.outgoing(group)
    mine = rows[group.part]
    outgoing = [[p.contiguous() for p in row] if row is not mine else [] for row in rows]
    incoming = [[torch.empty_like(p, memory_format=torch.contiguous_format) for p in mine] for _ in range(group.size)]
    exchange = Exchange(group, outgoing, incoming)
    incoming[group.part] = mine

    def combined(first: torch.Tensor, second: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        combine = _COMBINE[request.reduction]
        result = combine(first, second).contiguous()
        for piece in others:
            combine(result, piece, out=result)
        return result

    return Pending([exchange], lambda: [combined(*pieces) for pieces in zip(*incoming, strict=True)])


def _reduce_scatter_padded(group: RankGroup, request: Request) -> Pending:
    shapes = [tensor.shape for tensor in request.tensors]
    layout = RowLayout(group, shapes, request.dims(), request.scattered_sizes(group), request.tensors[0].itemsize)
    rows, op = layout.to_scatter(request.tensors), _REDUCE[request.reduction]
    works = _launch(group, _reduce_scatter_single, [(row.received, row.sent, op) for row in rows])
    return Pending(works, lambda: layout.scattered(rows))


def _reduce_scatter_grouped(group: RankGroup, request: Request) -> Pending:
    op, works = _REDUCE[request.reduction], list[dist.Work | None]()
    rows = [_to_reduce(row) for row in request.outgoing(group)]
    for root, (messages, _) in zip(group.ranks, rows, strict=True):
        works += [dist.reduce(tensor, root, op, group.handle, async_op=True) for tensor in messages if tensor.numel()]
    _, mine = rows[group.part]
    return Pending(works, lambda: mine)


def _all_to_all_direct(group: RankGroup, request: Request) -> Pending:
    # The buffers of the results have this rank's part of the split dim, and all of the concatenated dim.
    own = request.outgoing(group)[group.part]
    parts = zip(own, request.concat_dims(), request.gathered_sizes(group), strict=True)
    whole = [Assembly(mine, dim, sizes) for mine, dim, sizes in parts]
    put_all(whole, group.part, own)
    outgoing = [[p.contiguous() for p in row] for row in request.outgoing(group)]
    incoming = [[assembly.slots[part] for assembly in whole] for part in range(group.size)]
    return Pending([Exchange(group, outgoing, incoming)], lambda: [assembly.whole() for assembly in whole])


def _all_to_all_native(group: RankGroup, request: Request) -> Pending:
    rows, dims = request.outgoing(group), request.concat_dims()
    sizes = request.gathered_sizes(group)
    shapes = [
        [piece_shape(p.shape, d, s[part]) for p, d, s in zip(rows[group.part], dims, sizes, strict=True)]
        for part in range(group.size)
    ]
    by_wire = sorted(range(group.size), key=group.wire.__getitem__)
    sent_counts = [count_of([p.shape for p in rows[part]]) for part in by_wire]
    counts = [count_of(shapes[part]) for part in by_wire]
    sent = flatten([p for part in by_wire for p in rows[part]], sum(sent_counts))
    received = sent.new_empty(sum(counts))
    work = dist.all_to_all_single(received, sent, counts, sent_counts, group.handle, async_op=True)

    def finish() -> list[torch.Tensor]:
        by_place = received.split(counts)
        arrived = [unflatten(by_place[w], row) for w, row in zip(group.wire, shapes, strict=True)]
        return [torch.cat(parts, dim) for parts, dim in zip(zip(*arrived, strict=True), dims, strict=True)]

    return Pending([work], finish)


def _broadcast(group: RankGroup, request: Request) -> Pending:
    results = [tensor.clone(memory_format=torch.contiguous_format) for tensor in request.tensors]
    root = group.ranks[request.root]
    works = [dist.broadcast(r, root, group.handle, async_op=True) for r in results if r.numel()]
    return Pending(works, lambda: results)


METHODS: dict[str, dict[str, Callable[[RankGroup, Request], Pending]]] = {
    "all_reduce": {"native": _all_reduce},
    "all_gather": {
        "direct": _all_gather_direct,
        "padded": _all_gather_padded,
        "grouped_broadcast": _all_gather_broadcast,
    },
    "reduce_scatter": {
        "direct": _reduce_scatter_direct,
        "padded": _reduce_scatter_padded,
        "grouped_broadcast": _reduce_scatter_grouped,
    },
    "all_to_all": {"direct": _all_to_all_direct, "native": _all_to_all_native},
    "broadcast": {"native": _broadcast},
}

USUAL: dict[str, dict[str, str]] = {
    "gloo": {
        "all_reduce": "native",
        "all_gather": "direct",
        "reduce_scatter": "direct",
        "all_to_all": "direct",
        "broadcast": "native",
    },
    "nccl": {
        "all_reduce": "native",
        "all_gather": "padded",
        "reduce_scatter": "padded",
        "all_to_all": "native",
        "broadcast": "native",
    },
}
"""The default method of each kind, by backend."""


def begin(group: RankGroup, request: Request) -> Pending:
    """
    Start a collective. A group of one rank does nothing.

    Raises:
        ValueError: the backend has no such method.
    """
    if group.size == 1:
        return Pending([], lambda: list(request.tensors))
    method = request.method or USUAL[group.backend][request.kind]
    methods = METHODS[request.kind]
    if method not in methods or (method == "direct" and group.backend != "gloo"):
        raise ValueError(
            f"{request} has no method {method!r} on {group.backend}; expected one of {', '.join(methods)}"
            + ("" if group.backend == "gloo" else " (direct is for gloo alone)")
        )
    return methods[method](group, request)
