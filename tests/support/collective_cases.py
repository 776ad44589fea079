"""Cases for every collective, their expected results by numpy, and a function that runs all of them on each rank."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

import numpy as np
import torch

from shardwright.ir.mesh import Mesh
from shardwright.runtime.communicator import Communicator
from shardwright.runtime.requests import even_sizes

MESHES = {2: Mesh.of(dp=2), 3: Mesh.of(dp=3), 4: Mesh.of(dp=2, tp=2)}
AXES: dict[int, tuple[tuple[str, ...], ...]] = {
    2: (("dp",),),
    3: (("dp",),),
    4: (("dp",), ("tp",), ("dp", "tp"), ("tp", "dp")),
}
METHODS: dict[str, tuple[str | None, ...]] = {
    "all_reduce": (None,),
    "all_gather": (None, "direct", "padded", "grouped_broadcast"),
    "reduce_scatter": (None, "direct", "padded", "grouped_broadcast"),
    "all_to_all": (None, "direct", "native"),
    "broadcast": (None,),
}
REDUCTIONS = {"sum": np.add, "max": np.maximum, "min": np.minimum}
SPLITS = ("even", "uneven", "empty")
SMALL, LARGE = (4, 3, 5), (64, 96, 90)


@dataclass(frozen=True)
class Case:
    """One call of a collective: `split` names the sizes of the parts of the dims, `count` is the number of tensors."""

    kind: str
    axes: tuple[str, ...]
    method: str | None = None
    dim: int = 0
    concat_dim: int = 1
    split: str = "even"
    reduction: str = "sum"
    dtype: torch.dtype = torch.float32
    shape: tuple[int, ...] = SMALL
    count: int = 1
    started: bool = False
    strided: bool = False
    root: int = 0

    @property
    def moves(self) -> bool:
        """Return whether an all-to-all moves the boundaries of one dim, from the sizes of `split` to the reverse."""
        return self.kind == "all_to_all" and self.dim == self.concat_dim

    def __str__(self) -> str:
        given = ((f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default)
        return " ".join(f"{name}={value}".replace("torch.", "") for name, value in given)


def cases(world: int) -> list[Case]:
    """Return all cases for a number of ranks."""
    return list(dict.fromkeys(_cases(world)))


def _cases(world: int) -> Iterator[Case]:
    for axes in AXES[world]:
        for kind, methods in METHODS.items():
            for method, dim, split in product(methods, (0, 1, 2), SPLITS):
                yield Case(kind, axes, method, dim, (dim + 1) % 3, split)
            for method, split in product(methods, SPLITS):
                yield Case(kind, axes, method, 1, 0, split, count=3, started=True)
                yield Case(kind, axes, method, 0, 2, split, shape=LARGE, count=2, started=True)
            for method, dim, split in product(METHODS["all_to_all"], (0, 2), ("uneven", "empty")):
                yield Case("all_to_all", axes, method, dim, dim, split)
            for dtype in (torch.float64, torch.bfloat16, torch.int64, torch.bool):
                yield Case(kind, axes, dtype=dtype, reduction="max" if dtype == torch.bool else "sum")
            for method in methods:
                yield Case(kind, axes, method, strided=True, split="uneven")
                yield Case(kind, axes, method, reduction="max")
                yield Case(kind, axes, method, reduction="min", root=1)
        if len(axes) > 1:
            yield from _hierarchical(axes)
    yield Case("all_reduce", AXES[world][0], shape=())
    yield Case("all_reduce", AXES[world][0], shape=(0, 3))


def _hierarchical(axes: tuple[str, ...]) -> Iterator[Case]:
    for shape, reduction in product((SMALL, LARGE, (), (1,), (0, 3)), REDUCTIONS):
        yield Case("all_reduce", axes, "hierarchical", shape=shape, reduction=reduction)
    yield Case("all_reduce", axes, "hierarchical", shape=LARGE, count=3, started=True)
    yield Case("all_reduce", axes, "hierarchical", dtype=torch.bfloat16, strided=True)
    for kind in ("all_gather", "reduce_scatter", "all_to_all"):
        for dim, split in product((0, 1, 2), SPLITS):
            yield Case(kind, axes, "hierarchical", dim, (dim + 1) % 3, split)
        for split in SPLITS:
            yield Case(kind, axes, "hierarchical", 1, 0, split, count=3, started=True)
            yield Case(kind, axes, "hierarchical", 0, 2, split, shape=LARGE, count=2, started=True)
        for dtype in (torch.float64, torch.bfloat16, torch.int64):
            yield Case(kind, axes, "hierarchical", 1, 2, "uneven", dtype=dtype, strided=True)
    for reduction in ("max", "min"):
        yield Case("reduce_scatter", axes, "hierarchical", split="uneven", reduction=reduction)


def sizes_of(split: str, parts: int, least: int) -> tuple[int, ...]:
    """Return the sizes of the parts of a dim: equal, rising, or with an empty first part."""
    if split == "even":
        return (least,) * parts
    return tuple(least + i for i in range(parts)) if split == "uneven" else (0, *(least,) * (parts - 1))


def values(case: Case, rank: int, part: int, parts: int) -> list[np.ndarray]:
    """Return the operands of a rank: small whole numbers, so that every sum is exact in every dtype."""
    return [
        (np.arange(int(np.prod(shape))) * 5 + 3 * rank + i).reshape(shape) % 7
        for i, shape in enumerate(_local_shapes(case, part, parts))
    ]


def tensor_of(case: Case, value: np.ndarray) -> torch.Tensor:
    """Return an array as a tensor of the dtype of the case."""
    return torch.as_tensor(np.asarray(value)).to(case.dtype)


def _local_shapes(case: Case, part: int, parts: int) -> Iterator[tuple[int, ...]]:
    for i in range(case.count):
        shape = [size + i for size in case.shape]
        if case.kind == "all_gather":
            shape[case.dim] = sizes_of(case.split, parts, 2 + i)[part]
        elif case.kind == "reduce_scatter":
            shape[case.dim] = sum(sizes_of(case.split, parts, 2 + i))
        elif case.moves:
            shape[case.dim] = sizes_of(case.split, parts, 2 + i)[part]
        elif case.kind == "all_to_all":
            shape[case.dim] = sum(sizes_of(case.split, parts, 2 + i))
            shape[case.concat_dim] = sizes_of(case.split, parts, 3 + i)[part]
        yield tuple(shape)


def expected(case: Case, mesh: Mesh, rank: int) -> list[np.ndarray]:
    """Return the expected results of the call on `rank`."""
    group = mesh.group(rank, case.axes)
    parts, part = len(group), group.index(rank)
    operands_by_part = [values(case, member, i, parts) for i, member in enumerate(group)]
    return [
        _expected_one(case, [operands[i] for operands in operands_by_part], part, parts, i) for i in range(case.count)
    ]


def _expected_one(case: Case, given: list[np.ndarray], part: int, parts: int, i: int) -> np.ndarray:
    def piece(whole: np.ndarray) -> np.ndarray:
        bounds = np.cumsum(sizes_of(case.split, parts, 2 + i))[:-1]
        return np.split(whole, bounds, axis=case.dim)[part]

    if case.moves:
        wanted = np.cumsum(sizes_of(case.split, parts, 2 + i)[::-1])[:-1]
        return np.split(np.concatenate(given, axis=case.dim), wanted, axis=case.dim)[part]
    if case.dtype == torch.bool:
        given = [operand.astype(bool) for operand in given]
    match case.kind:
        case "all_gather":
            return np.concatenate(given, axis=case.dim)
        case "all_to_all":
            return np.concatenate([piece(operand) for operand in given], axis=case.concat_dim)
        case "broadcast":
            return given[case.root]
        case _:
            reduced = REDUCTIONS[case.reduction].reduce(np.stack(given), axis=0)
            return piece(reduced) if case.kind == "reduce_scatter" else reduced


def moved_sizes(case: Case, part: int, parts: int) -> dict[str, tuple[int, ...]]:
    """Return the sizes that a part sends to each part and receives from each."""
    sizes = sizes_of(case.split, parts, 2)
    before, after = (np.cumsum((0, *each)) for each in (sizes, sizes[::-1]))

    def common(sender: int, receiver: int) -> int:
        ends = min(before[sender + 1], after[receiver + 1])
        return max(int(ends - max(before[sender], after[receiver])), 0)

    sent = tuple(common(part, other) for other in range(parts))
    return {"split_sizes": sent, "concat_sizes": tuple(common(other, part) for other in range(parts))}


def _options(case: Case, part: int, parts: int) -> dict[str, Any]:

    def sizes(least: int) -> Any:
        if case.split == "even":
            return None
        each = tuple(sizes_of(case.split, parts, least + i) for i in range(case.count))
        return each if case.started else each[0]

    method = {"method": case.method} if case.method else {}
    match case.kind:
        case "all_gather":
            return {"dim": case.dim, "sizes": sizes(2), **method}
        case "reduce_scatter":
            return {"dim": case.dim, "sizes": sizes(2), "reduction": case.reduction, **method}
        case "all_to_all":
            dims = {"split_dim": case.dim, "concat_dim": case.concat_dim}
            if case.moves:
                return {**dims, **moved_sizes(case, part, parts), **method}
            return {**dims, "split_sizes": sizes(2), "concat_sizes": sizes(3), **method}
        case "broadcast":
            return {"root": case.root}
        case _:
            return {"reduction": case.reduction, **method}


def call(case: Case, comm: Communicator) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Make the call; return its operands and its results."""
    group = comm.group(case.axes)
    operands = [tensor_of(case, value) for value in values(case, comm.rank, group.part, group.size)]
    if case.strided:
        operands = [x.transpose(0, -1).contiguous().transpose(0, -1) for x in operands]
    options = _options(case, group.part, group.size)
    if case.started:
        token = comm.start(case.kind, operands, case.axes, **options)
        return operands, list(comm.wait(token))
    return operands, [getattr(comm, case.kind)(operands[0], axes=case.axes, **options)]


def problem(case: Case, comm: Communicator) -> str:
    """Return the fault of the results of the call; an empty text if they are right."""
    operands, results = call(case, comm)
    group = comm.group(case.axes)
    before = values(case, comm.rank, group.part, group.size)
    for found, want in zip(results, expected(case, comm.mesh, comm.rank), strict=True):
        wanted = tensor_of(case, want)
        if not found.is_contiguous() or found.dtype != case.dtype:
            return f"got strides {found.stride()} and {found.dtype}"
        if not torch.equal(found, wanted):
            return f"got {found.tolist()}, expected {wanted.tolist()}"
    for operand, value in zip(operands, before, strict=True):
        if not torch.equal(operand, tensor_of(case, value)):
            return "the operand was changed"
    return ""


def try_all(world: int) -> dict[str, str]:
    """Run on each rank: return the problem of every case, an empty text if it passes."""
    comm = Communicator(MESHES[world], AXES[world])
    problems: dict[str, str] = {}
    for case in cases(world):
        try:
            problems[str(case)] = problem(case, comm)
        except Exception:
            problems[str(case)] = traceback.format_exc()
    return problems


def many_at_once() -> list[str]:
    """Start collectives of all kinds at once and wait for them in another order; return the wrong ones."""
    comm = Communicator(MESHES[4], AXES[4])
    chosen = [case for case in cases(4) if case.shape == LARGE and case.split != "empty"]
    tokens = []
    for case in chosen:
        group = comm.group(case.axes)
        operands = [tensor_of(case, v) for v in values(case, comm.rank, group.part, group.size)]
        tokens.append(comm.start(case.kind, operands, case.axes, **_options(case, group.part, group.size)))
    wrong: list[str] = []
    for case, token in reversed(list(zip(chosen, tokens, strict=True))):
        for found, want in zip(comm.wait(token), expected(case, comm.mesh, comm.rank), strict=True):
            if not torch.equal(found, tensor_of(case, want)):
                wrong.append(str(case))
    return wrong


def local_steps() -> list[bool]:
    """Check that gathering `slice` and reducing `partial` give the value back."""
    comm = Communicator(MESHES[4], AXES[4])
    x = torch.arange(35.0).view(5, 7)
    axes = ("dp", "tp")
    partial = comm.all_reduce(comm.partial(x, axes), axes)
    even = comm.all_gather(comm.slice(x, 1, axes), 1, axes, even_sizes(7, 4))
    uneven = comm.all_gather(comm.slice(x, 0, ("tp",), (4, 1)), 0, ("tp",), (4, 1))
    donated = x.clone()
    reduced = comm.all_reduce(donated, axes, donate=True)
    return [torch.equal(y, x) for y in (partial, even, uneven)] + [reduced is donated]
