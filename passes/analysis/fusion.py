"""
Which ops become one kernel where the computation between collectives is compiled, and their costs then.

A function with `train.compiled` is run by Inductor, stretch by stretch. Ops that go over elements (pointwise ops, sums,
normalisations, losses, constants) and hand values to one another are one kernel, with one launch. It reads what comes
from elsewhere once, writes what somebody else takes, and keeps the rest in registers. Products of matrices, attention,
convolutions, updates, random draws and whatever gathers or scatters rows stay kernels of their own.

    kernel of an op   =  the ops that it is connected to, of its stretch, with as many other kernels on the longest way
                         that leads to them: so that none of them waits for another kernel that waits for one of them
    seconds of an op  =  max(flops / rate, bytes that the kernel moves for it / bandwidth)  [+ launch, of its first op]

Views move nothing, and are looked through. The functions that equal layers have in the program end stretches too, and
are not known here: a chain from one layer to the next counts as one kernel.
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
"""By op, what it does of a kernel of several; those that are kernels by themselves are not in it."""

ALONE: Parts = {}
"""Where every op is a kernel by itself."""

_FUSING = frozenset({"elementwise", "reductions", "normalisation", "losses", "factories"})
"""The families of ops that go over elements."""

_APART = frozenset({"attention", "contractions", "windows", "linalg", "indexing", "resampling"})
"""Those of ops that are kernels of their own within a stretch; any other op ends it."""


def is_compiled(func: FuncOp) -> bool:
    """Whether the computation of a step between collectives will be compiled."""
    return COMPILED in func.attributes


def fuses(op: Operation) -> bool:
    """Whether an op goes over elements, so that it is computed in one kernel with others."""
    return isinstance(op, AtenOp) and _is_torchs(op) and op.spec.family in _FUSING and not op.spec.view


def fused_parts(func: FuncOp) -> Parts:
    """What each op of a function does of the kernels that it will be in; nothing where it will not be compiled."""
    if not is_compiled(func):
        return ALONE
    body = func.body.block
    blocks = [body, *(op.body.block for op in body.ops if isinstance(op, FragmentOp))]
    kernels = (kernel for block in blocks for kernel in _KernelWalk().run(block.ops) if len(kernel) > 1)
    return {op: part for kernel in kernels for op, part in _parts(kernel)}


def least_parts(func: FuncOp) -> Parts:
    """
    What each op does at the least, whatever collectives come between; nothing where it will not be compiled.

    For it is read what another kind of kernel made and no other such op takes, and written what another kind of kernel
    takes; no launch is counted. So a bound of a step by these holds for every program that it becomes.
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
    """What each op of a kernel does: what comes from elsewhere is read for the first op that takes it."""
    members, known = set[Operation](kernel), set[SSAValue]()

    def comes_in(base: SSAValue) -> bool:
        return base not in known and not _is_of(base, members.__contains__)

    for op in kernel:
        yield op, KernelPart(_moved(op, comes_in, members.__contains__), launches=op is kernel[0])
        known |= set(map(_base, op.args))


def _moved(
    op: ComputeOp, comes_in: Callable[[SSAValue], bool], is_inside: Callable[[Operation], bool]
) -> frozenset[int]:
    """The positions of the operands that are read for an op, and of the results that are written for others."""
    bases = [_base(value) for value in op.args]
    read = [at for at, base in enumerate(bases) if base not in bases[:at] and comes_in(base)]
    outs = enumerate(op.outs, len(bases))
    return frozenset([*read, *(at for at, value in outs if not all(map(is_inside, _takers(value))))])


class _KernelWalk:
    """Goes through a block once, and joins each op with those of its stretch and depth that it takes from; one use."""

    def __init__(self) -> None:
        self.stretch = 0
        self.depth: dict[Operation, int] = {}
        self.place: dict[Operation, tuple[int, int]] = {}
        """By op that fuses, its stretch and depth."""
        self.kernel: dict[Operation, list[Operation]] = {}

    def run(self, ops: Iterable[Operation]) -> list[list[ComputeOp]]:
        """The kernels of what fuses, each in the order of the block."""
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
        found: defaultdict[int, list[ComputeOp]] = defaultdict(list)
        for op in self.kernel:
            if isinstance(op, ComputeOp):
                found[id(self.kernel[op])].append(op)
        return list(found.values())

    def _join(self, op: Operation, makers: Iterable[Operation]) -> None:
        here = self.place[op] = self.stretch, self.depth[op]
        mine = self.kernel[op] = [op]
        for maker in makers:
            if self.place.get(maker) == here and (other := self.kernel[maker]) is not mine:
                small, mine = sorted((mine, other), key=len)
                mine += small
                self.kernel.update(dict.fromkeys(small, mine))


def _is_torchs(op: AtenOp) -> bool:
    """Whether an op is one of torch's own, and no function of the runtime that goes over rows."""
    return op.spec.arguments is None


def _is_nothing(op: Operation) -> bool:
    """Whether an op moves and computes nothing, so that it is looked through."""
    return isinstance(op, SliceOp | FreeOp) or (isinstance(op, AtenOp) and op.spec.view)


def _base(value: SSAValue) -> SSAValue:
    """The value that one is a view of, itself where it is none."""
    while isinstance(value, OpResult) and _is_nothing(value.op):
        value = value.op.operands[0]
    return value


def _is_of(value: SSAValue, accepted: Callable[[Operation], bool]) -> bool:
    return isinstance(value, OpResult) and accepted(value.op)


def _takers(value: SSAValue) -> Iterator[Operation]:
    """The ops that take a value or a view of it."""
    for use in value.uses:
        if not _is_nothing(use.operation):
            yield use.operation
        else:
            for result in use.operation.results:
                yield from _takers(result)
