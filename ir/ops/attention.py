"""Fused attention, in the normal form that import gives every backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..rules import Dim, Rule, Value
from ..sharding import Reduction
from .common import rows
from .spec import OpInstance, OpSpec, Shape


def attention(op: OpInstance) -> Rule:
    """(q [b,h*r,s,e], k [b,h,t,e], v [b,h,t,f], mask?) -> (out [b,h*r,s,f], logsumexp [b,h*r,s])."""
    q, k, v, mask, sizes, whole = _attention(op, op.operands)
    operands = (q, k, v, *mask)
    return Rule(operands, ((*q[:3], ("f",)), q[:3]), sizes, replicated=whole)


def attention_backward(op: OpInstance) -> Rule:
    """(grad_out, q, k, v, out, logsumexp, mask?) -> (grad_q, grad_k, grad_v)."""
    q, k, v, mask, sizes, whole = _attention(op, (*op.operands[1:4], *op.operands[6:]))
    out = (*q[:3], ("f",))
    reductions = {factor: Reduction.SUM for factor in ("r", "s") if factor in sizes and factor not in whole}
    return Rule((out, q, k, v, out, q[:3], *mask), (q, k, v), sizes, reductions, whole)


def _attention(
    op: OpInstance, shapes: Sequence[Shape]
) -> tuple[Value, Value, Value, tuple[Value, ...], dict[str, int], frozenset[str]]:
    """
    Return factors of q, k, v and the masks, with their sizes, and the factors that must stay whole.

    Queries may be split unless a causal mask compares their positions with the keys'. Where r heads of queries share a
    head of keys, they are adjacent.
    """
    (b, heads, s, e), (_, h, _, _), (_, _, t, f) = shapes[:3]
    sizes = {"b": b, "h": h, "s": s, "t": t, "e": e, "f": f}
    if heads != h:
        sizes["r"] = heads // h
    of_queries: Dim = ("h", "r") if heads != h else ("h",)
    q: Value = (("b",), of_queries, ("s",), ("e",))
    k, v = ((("b",), ("h",), ("t",), (width,)) for width in ("e", "f"))
    full, extents = (*q[:3], ("t",)), (b, heads, s, t)
    masks = tuple(
        tuple(d if n == m else () for d, n, m in zip(full[-len(shape) :], shape, extents[-len(shape) :], strict=True))
        for shape in shapes[3:]
    )
    whole = {"t", "e", "f"} | ({"s"} if op.argument("is_causal", False) else set[str]())
    return q, k, v, masks, sizes, frozenset(whole)


_BLOCK = 128
"""Queries that a kernel processes at a time."""


def of_the_triangle(op: OpInstance) -> float:
    """Return the fraction of the scores that is computed under a causal mask: kernels skip masked blocks."""
    return 0.5 + 0.5 * min(1.0, _BLOCK / max(op.operands[0][2], 1)) if op.argument("is_causal", False) else 1.0


_ARGUMENTS = "Tensor? attn_mask=None, bool is_causal=False, float? scale=None"


def attention_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from rows(
        "attention",
        "query key value attn_mask",
        attention,
        flops="4*b*h*r*s*t*e",
        scale=of_the_triangle,
        results=2,
        arguments=_ARGUMENTS,
    )
    yield from rows(
        "attention_backward",
        "grad_out query key value out logsumexp attn_mask",
        attention_backward,
        linear="grad_out",
        flops="10*b*h*r*s*t*e",
        scale=of_the_triangle,
        results=3,
        arguments=_ARGUMENTS,
    )
