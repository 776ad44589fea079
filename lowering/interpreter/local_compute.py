"""Run one compute op: make its call on the shards of every rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...dialects.aten import AtenOp
from ...dialects.compute import ComputeOp, dtype_of, shape_of
from ...dialects.placed import parts_of
from ...ir.mesh import Mesh
from ...ir.sharding import Sharding, local_shape
from ...ir.signatures import Signature
from ..calls.calls import call_of, differs_by_rank
from ..calls.empty_shards import Constant, results_without_call
from ..calls.local_calls import make_call, working_dtype
from .errors import InterpreterError, value_text
from .local_values import Spread, active, check_shapes


def signature_of(op: ComputeOp) -> Signature:
    """Return the op's signature, or the replicated signature if it has none."""
    if op.signature is not None:
        return op.signature
    operands, results = (
        tuple(Sharding.replicated(len(shape_of(value))) for value in values) for values in (op.args, op.outs)
    )
    return Signature(operands, results)


def run_op(op: ComputeOp, operands: Sequence[Spread], mesh: Mesh, precision: torch.dtype | None) -> list[Spread]:
    """
    Return the results of `op` on the ranks that it runs for; `operands` have the shardings of its signature.

    Raises:
        InterpreterError: torch refuses the call, or the number, shapes or dtypes of its results differ from the
            op's types.
    """
    ranks, here = range(mesh.device_count), active(mesh, parts_of(op))
    calls = [call_of(op, mesh, rank) for rank in ranks] if differs_by_rank(op) else [call_of(op, mesh)] * len(ranks)
    results: dict[object, tuple[torch.Tensor, ...]] = {}
    by_rank: list[tuple[torch.Tensor | None, ...]] = []
    for rank in ranks:
        if not here[rank]:
            by_rank.append((None,) * len(op.outs))
            continue
        parts = [_present(op, operand, rank) for operand in operands]
        constants = results_without_call(op, mesh, rank)
        # Ranks with the same tensors compute the same results, so the call is made once.
        key = (calls[rank], constants, *map(id, parts))
        if key not in results:
            if constants is not None:
                dtypes = (working_dtype(dtype_of(value), precision) for value in op.outs)
                results[key] = tuple(
                    _constant(constant, parts, dtype) for constant, dtype in zip(constants, dtypes, strict=True)
                )
            else:
                try:
                    outputs = make_call(calls[rank], parts, precision)
                except (RuntimeError, TypeError, IndexError, ValueError) as error:
                    shapes = ", ".join(str(list(part.shape)) for part in parts)
                    raise InterpreterError(op, f"on rank {rank}, of operands {shapes}, torch says: {error}") from error
                if len(outputs) != len(op.outs):
                    raise InterpreterError(op, f"has {len(op.outs)} results, torch gives {len(outputs)}")
                results[key] = tuple(
                    _typed(op, index, output, precision, (mesh, rank)) for index, output in enumerate(outputs)
                )
        by_rank.append(results[key])
    return _spread(op, signature_of(op), by_rank, mesh)


def _present(op: ComputeOp, operand: Spread, rank: int) -> torch.Tensor:
    if (part := operand.parts[rank]) is None:
        raise InterpreterError(op, "has an operand that is computed only for another part of a temporal axis")
    return part


def _spread(
    op: ComputeOp, signature: Signature, by_rank: Sequence[tuple[torch.Tensor | None, ...]], mesh: Mesh
) -> list[Spread]:
    by_result = zip(*by_rank, strict=True)
    triples = zip(op.outs, signature.results, by_result, strict=True)
    results = [Spread(shape_of(value), sharding, parts, mesh) for value, sharding, parts in triples]
    for value, result in zip(op.outs, results, strict=True):
        try:
            check_shapes(result)
        except ValueError as error:
            raise InterpreterError(op, f"{value_text(value)}: {error}") from error
    return results


def _typed(
    op: ComputeOp, index: int, found: torch.Tensor | None, precision: torch.dtype | None, place: tuple[Mesh, int]
) -> torch.Tensor:
    """Convert a result to the dtype of its type; a result that the op does not compute becomes zeros."""
    value = op.outs[index]
    dtype = working_dtype(dtype_of(value), precision)
    if found is None:
        return torch.zeros(local_shape(shape_of(value), signature_of(op).results[index], *place), dtype=dtype)
    if found.dtype != dtype and isinstance(op, AtenOp) and op.result_dtypes()[index] is None:
        # The dtype depends on the device: on CPUs the statistics of narrow values have the dtype of the weight.
        return found
    if found.dtype != dtype and precision is None:
        raise InterpreterError(op, f"{value_text(value)} is of {dtype_of(value)}, torch gives {found.dtype}")
    return found.to(dtype)


def _constant(constant: Constant, parts: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    fill = constant.value
    if fill and not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        fill = limits.max if fill > 0 else limits.min
    result = torch.full(constant.shape, fill, dtype=dtype)
    for addend in constant.addends:
        result = result + addend.factor * parts[addend.operand].reshape(addend.shape)
    return result
