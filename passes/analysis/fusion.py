"""
The ops that become one kernel if the computation between collectives is compiled, and their costs.

Inductor compiles a function with `train.compiled` stretch by stretch. Ops over elements (pointwise ops, sums,
normalisations, losses, constants) that use one another's results become one kernel, with one launch. The kernel reads
each input once, writes the results that other ops use, and keeps all other values in registers. Products of matrices,
attention, convolutions, updates, random draws and ops that gather or scatter rows stay separate kernels.

    kernel of an op   =  the ops of its stretch that are connected to it and have as many other kernels on the longest
                         path to them, so that none of them waits for another kernel that waits for one of them
    seconds of an op  =  max(flops / rate, bytes that the kernel moves for it / bandwidth)  [+ launch, for its first op]

Views move nothing and are skipped. The functions of equal layers in the program end stretches, too, but are not known
here: a chain from one layer to the next counts as one kernel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, OpResult, SSAValue

from ...dialects.aten import AtenOp
from ...dialects.compute import ComputeOp
from ...dialects.pipe import FragmentOp
from ...dialects.spmd import FreeOp, SliceOp
from ...dialects.step import COMPILED
from ...ir.op_cost import KernelPart

Parts: TypeAlias = Mapping[Operation, KernelPart]
"""Map ops to their parts in kernels of several ops; ops that are kernels by themselves are missing."""

ALONE: Parts = {}
"""The parts if every op is a kernel by itself."""

_FUSING = frozenset({"elementwise", "reductions", "normalisation", "losses", "factories"})
"""The families of ops over elements."""

_APART = frozenset({"attention", "contractions", "windows", "linalg", "indexing", "resampling"})
"""The families of ops that are separate kernels within a stretch; ops of other families end the stretch."""


def is_compiled(func: FuncOp) -> bool:
    """Return whether the computation of a step between collectives will be compiled."""
    return COMPILED in func.attributes


def fuses(op: Operation) -> bool:
    """Return whether an op works on elements, so that it can share one kernel with others."""
    # An op with `arguments` is a function of the runtime that loops over rows.
    return isinstance(op, AtenOp) and op.spec.arguments is None and op.spec.family in _FUSING and not op.spec.view


def fused_parts(func: FuncOp) -> Parts:
    """Return the part of each op of a function in its kernel; empty if the function will not be compiled."""
    if not is_compiled(func):
        return ALONE
    body = func.body.block
    blocks = [body, *(op.body.block for op in body.ops if isinstance(op, FragmentOp))]
    kernels = (kernel for block in blocks for kernel in _KernelWalk().run(block.ops) if len(kernel) > 1)
    return {op: part for kernel in kernels for op, part in _parts(kernel)}


def least_parts(func: FuncOp) -> Parts:
    """
    Return the least part of each op, whatever collectives come in between; empty for a function that is not compiled.

    An op reads only operands that another kind of kernel produces and no other fusing op reads, and writes only results
    that another kind of kernel reads; launches are free. A bound from these parts holds for every program of the step.
    """
    if not is_compiled(func):
        return ALONE
    fusing = [op for op in func.body.block.ops if isinstance(op, ComputeOp) and fuses(op)]
    readers: defaultdict[SSAValue, set[Operation]] = defaultdict(set)
    for op in fusing:
        for value in op.args:
            readers[_base(value)].add(op)
    single = {base for base, takers in readers.items() if len(takers) == 1 and not _is_of(base, fuses)}
    return {op: KernelPart(_moved(op, single.__contains__, fuses), launches=False) for op in fusing}


def _parts(kernel: Sequence[ComputeOp]) -> Iterator[tuple[Operation, KernelPart]]:
    """Yield the part of each op of a kernel; an input of the kernel is read for the first op that uses it."""
    members, read = set[Operation](kernel), set[SSAValue]()

    def comes_in(base: SSAValue) -> bool:
        return base not in read and not _is_of(base, members.__contains__)

    for op in kernel:
        yield op, KernelPart(_moved(op, comes_in, members.__contains__), launches=op is kernel[0])
        read |= set(map(_base, op.args))


def _moved(
    op: ComputeOp, comes_in: Callable[[SSAValue], bool], is_inside: Callable[[Operation], bool]
) -> frozenset[int]:
    """Return the positions of the operands that are read for an op, and of the results that are written for others."""
    bases = [_base(value) for value in op.args]
    read = [at for at, base in enumerate(bases) if base not in bases[:at] and comes_in(base)]
    outs = enumerate(op.outs, len(bases))
    return frozenset([*read, *(at for at, value in outs if not all(map(is_inside, _takers(value))))])


class _KernelWalk:
    """Walks over a block once and joins each op with its producers in the same stretch and depth; used once."""

    def __init__(self) -> None:
        self.stretch = 0
        self.depth: dict[Operation, int] = {}
        self.place: dict[Operation, tuple[int, int]] = {}
        """The stretch and depth of each op that fuses."""
        self.kernel: dict[Operation, list[Operation]] = {}

    def run(self, ops: Iterable[Operation]) -> list[list[ComputeOp]]:
        """Return the kernels of the ops that fuse, each in the order of the block."""
        for op in ops:
            if _is_nothing(op):
                continue
            makers = [base.op for value in op.operands if isinstance(base := _base(value), OpResult)]
            before = max((self.depth.get(maker, 0) for maker in makers), default=0)
            self.depth[op] = before if fuses(op) else before + 1
            if fuses(op):
                self._join(op, makers)
            elif not (isinstance(op, AtenOp) and op.spec.family in _APART):
                self.stretch += 1
        kernels: defaultdict[int, list[ComputeOp]] = defaultdict(list)
        for op in self.kernel:
            if isinstance(op, ComputeOp):
                kernels[id(self.kernel[op])].append(op)
        return list(kernels.values())

    def _join(self, op: Operation, makers: Iterable[Operation]) -> None:
        here = self.place[op] = self.stretch, self.depth[op]
        mine = self.kernel[op] = [op]
        for maker in makers:
            if self.place.get(maker) == here and (other := self.kernel[maker]) is not mine:
                small, mine = sorted((mine, other), key=len)
                mine += small
                self.kernel.update(dict.fromkeys(small, mine))


def _is_nothing(op: Operation) -> bool:
    """Return whether an op costs nothing, so that kernels ignore it."""
    return isinstance(op, SliceOp | FreeOp) or (isinstance(op, AtenOp) and op.spec.view)


def _base(value: SSAValue) -> SSAValue:
    """Return the value that a value is a view of, or the value itself."""
    while isinstance(value, OpResult) and _is_nothing(value.op):
        value = value.op.operands[0]
    return value


def _is_of(value: SSAValue, accepted: Callable[[Operation], bool]) -> bool:
    return isinstance(value, OpResult) and accepted(value.op)


def _takers(value: SSAValue) -> Iterator[Operation]:
    """Yield the ops that use a value or a view of it."""
    for use in value.uses:
        if not _is_nothing(use.operation):
            yield use.operation
        else:
            for result in use.operation.results:
                yield from _takers(result)
