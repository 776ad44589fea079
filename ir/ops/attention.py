"""Fused attention, as import normalises every backend's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..rules import Rule, Value
from ..sharding import Reduction
from .common import rows
from .spec import OpInstance, OpSpec, Shape


def attention(op: OpInstance) -> Rule:
    """(q [b,h,s,e], k [b,h,t,e], v [b,h,t,f], mask?) -> (out [b,h,s,f], logsumexp [b,h,s])."""
    q, k, v, mask, sizes, whole = _attention(op, op.operands)
    operands = (q, k, v, *mask)
    return Rule(operands, ((*q[:3], ("f",)), q[:3]), sizes, replicated=whole)


def attention_backward(op: OpInstance) -> Rule:
    """(grad_out, q, k, v, out, logsumexp, mask?) -> (grad_q, grad_k, grad_v)."""
    q, k, v, mask, sizes, whole = _attention(op, (*op.operands[1:4], *op.operands[6:]))
    out = (*q[:3], ("f",))
    reductions = {} if "s" in whole else {"s": Reduction.SUM}
    return Rule((out, q, k, v, out, q[:3], *mask), (q, k, v), sizes, reductions, whole)


def _attention(
    op: OpInstance, shapes: Sequence[Shape]
) -> tuple[Value, Value, Value, tuple[Value, ...], dict[str, int], frozenset[str]]:
    """Queries may be split where no causal mask compares their positions with the keys'."""
    (b, h, s, e), (_, _, t, f) = shapes[0], shapes[2]
    sizes = {"b": b, "h": h, "s": s, "t": t, "e": e, "f": f}
    q, k, v = ((("b",), ("h",), (x,), (y,)) for x, y in (("s", "e"), ("t", "e"), ("t", "f")))
    full: Value = (("b",), ("h",), ("s",), ("t",))
    masks = tuple(
        tuple(d if n == sizes[d[0]] else () for d, n in zip(full[4 - len(shape) :], shape, strict=True))
        for shape in shapes[3:]
    )
    whole = {"t", "e", "f"} | ({"s"} if op.argument("is_causal", False) else set[str]())
    return q, k, v, masks, sizes, frozenset(whole)


def attention_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from rows("attention", "query key value attn_mask", attention, flops="4*b*h*s*t*e", results=2)
    yield from rows(
        "attention_backward",
        "grad_out query key value out logsumexp attn_mask",
        attention_backward,
        linear="grad_out",
        flops="10*b*h*s*t*e",
        results=3,
    )
