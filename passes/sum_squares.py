"""
Joint computation of the sums of squares of gradients that `clip-gradients` writes, in one call: for `join-updates`.

    %a.squared = mul %a, %a     %b.squared = mul %b, %b
    %a.squares = sum %a.squared %b.squares = sum %b.squared         =>     %total = train.sum_of_squares %a, %b
    %total = add %a.squares, %b.squares

Squares are joined if they are between the same collectives, and partial over the same axes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from xdsl.ir import Attribute, Block, Operation, SSAValue

from ..dialects.aten import AtenOp, typed_op
from ..dialects.compute import SIGNATURE, ComputeOp, dtype_of, sum_dtype
from ..dialects.sharding_attrs import SignatureAttr
from ..dialects.spmd import SliceOp
from ..dialects.train import EACH_GRADIENT, SumOfSquaresOp
from ..ir.sharding import Sharding
from ..ir.signatures import Signature


@dataclass(frozen=True)
class _Squared:
    """The op that squares all elements of a tensor, and the op that sums the squares."""

    square: AtenOp
    total: AtenOp

    @property
    def tensor(self) -> SSAValue:
        return self.square.args[0]


def sum_squares(block: Block) -> None:
    """Write one op for the squares of several tensors that are added to one another, in place."""
    segments: dict[Operation, int] = {}
    runs = groupby(list(block.ops), key=lambda op: isinstance(op, ComputeOp | SliceOp))
    for number, (computes, ops) in enumerate(runs):
        segments |= dict.fromkeys(ops, number) if computes else {}
    additions = {op for op in segments if isinstance(op, AtenOp) and _is_addition(op)}
    for root in [op for op in segments if op in additions]:
        assert isinstance(root, AtenOp)
        if not _is_inside(root, additions):
            _sum_up(root, additions, segments)


def _sum_up(root: AtenOp, additions: Collection[Operation], segments: Mapping[Operation, int]) -> None:
    """Join the squares among the terms of a sum that are between the same collectives."""
    chain = list(_chain(root, additions))
    within = set(chain)
    addends = [value for op in chain for value in op.args if value.owner not in within]
    groups: dict[object, list[_Squared]] = {}
    for squared in filter(None, (_squared(value, segments) for value in addends)):
        groups.setdefault((segments[squared.total], dtype_of(squared.tensor)), []).append(squared)
    several = [group for group in groups.values() if len(group) > 1]
    if several:
        summed = {squared.total.outs[0] for group in several for squared in group}
        _replace(root, chain, several, [value for value in addends if value not in summed])


def _is_addition(op: AtenOp) -> bool:
    """Return whether an op adds two numbers that are partial over the same axes."""
    if op.overload != "add.Tensor" or EACH_GRADIENT not in op.attributes or op.arguments():
        return False
    signed = op.signature
    return signed is None or len({*signed.operands, *signed.results}) == 1


def _is_inside(op: AtenOp, additions: Collection[Operation]) -> bool:
    """Return whether another addition is the only user of a sum."""
    users = [use.operation for use in op.outs[0].uses]
    return len(users) == 1 and users[0] in additions and _sharding(users[0]) == _sharding(op)


def _sharding(op: Operation) -> Sharding | None:
    assert isinstance(op, AtenOp)
    return op.signature.results[0] if op.signature is not None else None


def _chain(root: AtenOp, additions: Collection[Operation]) -> Iterator[AtenOp]:
    """Yield the additions of a sum, in order."""
    for value in root.args:
        if isinstance(value.owner, AtenOp) and value.owner in additions and _is_inside(value.owner, {root}):
            yield from _chain(value.owner, additions)
    yield root


def _squared(value: SSAValue, segments: Mapping[Operation, int]) -> _Squared | None:
    """Return the ops that compute a number as the sum of a tensor's squares, or None if other ops do or use it."""
    total = value.owner
    if not isinstance(total, AtenOp) or total.overload != "sum" or total not in segments or not _has_one_use(value):
        return None
    square = total.args[0].owner
    if not isinstance(square, AtenOp) or square.overload != "mul.Tensor":
        return None
    is_square = square.args[0] is square.args[1] and EACH_GRADIENT in square.attributes and _has_one_use(square.outs[0])
    return _Squared(square, total) if is_square and sum_dtype(dtype_of(square.args[0])) == dtype_of(value) else None


def _has_one_use(value: SSAValue) -> bool:
    return len(list(value.uses)) == 1


def _replace(
    root: AtenOp, chain: Sequence[AtenOp], groups: Sequence[Sequence[_Squared]], others: Sequence[SSAValue]
) -> None:
    """Write the sum of each group after its last member, and add the other terms at the end."""
    block = root.parent_block()
    assert block is not None
    addends = list(others)
    for group in groups:
        last = max((pair.total for pair in group), key=block.get_operation_index)
        joined = _sum_of(group, root)
        block.insert_op_after(joined, last)
        addends.append(joined.outs[0])
    total, *rest = addends
    for value in rest:
        added = typed_op(root.overload, [total, value], [()], root.attributes)
        added.location = root.location
        added.outs[0].name_hint = root.outs[0].name_hint
        block.insert_op_before(added, root)
        total = added.outs[0]
    root.outs[0].replace_all_uses_with(total)
    for op in (*reversed(chain), *(op for group in groups for pair in group for op in (pair.total, pair.square))):
        op.detach()
        op.erase()


def _sum_of(squared: Sequence[_Squared], like: AtenOp) -> SumOfSquaresOp:
    attributes: dict[str, Attribute] = {}
    attribute, signatures = like.attributes.get(SIGNATURE), [member.square.signature for member in squared]
    if isinstance(attribute, SignatureAttr):
        operands = tuple(signature.operands[0] for signature in signatures if signature is not None)
        attributes[SIGNATURE] = SignatureAttr.of(attribute.data.mesh, Signature(operands, attribute.signature.results))
    joined = SumOfSquaresOp([member.tensor for member in squared], [squared[0].total.outs[0].type], attributes)
    joined.location = like.location
    joined.outs[0].name_hint = like.outs[0].name_hint
    return joined
