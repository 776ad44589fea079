"""Elements found by index."""

from __future__ import annotations

from collections.abc import Iterator

from ..rules import Dim, Rule, Value
from ..sharding import Reduction
from .common import named, rows
from .spec import OpInstance, OpSpec, Shape


def embedding(op: OpInstance) -> Rule:
    """Rows of a table by index."""
    indices, sizes = named(op.operands[1], "b")
    sizes |= {"v": op.operands[0][0], "e": op.operands[0][1]}
    return Rule(((("v",), ("e",)), indices), ((*indices, ("e",)),), sizes, replicated=frozenset({"v"}))


def embedding_backward(op: OpInstance) -> Rule:
    """The gradient of `embedding`: rows summed by index."""
    indices, sizes = named(op.operands[1], "b")
    sizes |= {"v": op.results[0][0], "e": op.results[0][1]}
    factors = [dim[0] for dim in indices]
    # The frequency by which rows are scaled is that among all indices.
    whole = {"v", *(factors if op.argument("scale_grad_by_freq", False) else ())}
    reductions = dict.fromkeys(factors, Reduction.SUM)
    return Rule(((*indices, ("e",)), indices), ((("v",), ("e",)),), sizes, reductions, frozenset(whole))


def picked(op: OpInstance) -> Rule:
    """`gather`, `scatter` and their kin: every dim but `dim` goes together where the sizes agree."""
    value, sizes = named(op.operands[0])
    at = op.argument("dim") % len(value) if value else 0
    whole = {f"d{at}"}

    def other(prefix: str, shape: Shape) -> Value:
        dims: list[Dim] = []
        for i, size in enumerate(shape):
            if i != at and size == op.operands[0][i]:
                dims.append(value[i])
                continue
            sizes[f"{prefix}{i}"] = size
            whole.update({f"{prefix}{i}", f"d{i}"})
            dims.append((f"{prefix}{i}",))
        return tuple(dims)

    operands = (value, *(other(f"o{i}_", shape) for i, shape in enumerate(op.operands[1:])))
    results = tuple(other(f"r{i}_", shape) for i, shape in enumerate(op.results))
    return Rule(operands, results, sizes, replicated=frozenset(whole))


def indexing_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from rows("gather", "self index", picked, linear="self")
    yield from rows("scatter.value", "self index", picked)
    yield from rows("embedding", "weight indices", embedding, linear="weight")
    yield from rows(
        "embedding_dense_backward", "grad_output indices", embedding_backward, linear="grad_output"
    )
