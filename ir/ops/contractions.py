"""Matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..rules import Rule, Value, parse_rule
from ..sharding import Reduction
from .common import along, broadcast, named, rows, wanted_part, wanted_results
from .spec import OpInstance, OpSpec, RuleFunction, Shape


def biased(left: str, right: str, out: str) -> RuleFunction:
    """
    Return the rule of a bias plus a product; letters give the dims of the product's factors and result: `ik`, `kj`,
    `ij`.

    The bias broadcasts, and must be partial where a reduced factor is split, so that it is added once.
    """
    result: Value = tuple((letter,) for letter in out)
    factors: tuple[Value, ...] = tuple(tuple((letter,) for letter in side) for side in (left, right))
    reductions = {letter: Reduction.SUM for letter in left if letter not in out}

    def rule(op: OpInstance) -> Rule:
        bias, *shapes = op.operands
        pairs = zip((left, right), shapes, strict=True)
        sizes = {letter: size for side, shape in pairs for letter, size in zip(side, shape, strict=True)}
        operands = (broadcast(bias, result, sizes), *factors)
        return Rule(operands, (result,), sizes, reductions, additive=frozenset({0}))

    return rule


def distances(op: OpInstance) -> Rule:
    """`cdist`, (x1 [.., p, m], x2 [.., r, m]) -> [.., p, r]: the points may be split, their coordinates not."""
    x1, x2, out, sizes = _points(op.operands[0], op.operands[1], op.results[0])
    return Rule((x1, x2), (out,), sizes, replicated=frozenset({"m"}))


def distances_backward(op: OpInstance) -> Rule:
    """(grad, x1, x2, distances) -> the gradient of x1 [.., p, m], of every batch: a sum over the points of x2."""
    x1, x2, out, sizes = _points(op.operands[1], op.operands[2], op.operands[0])
    return Rule((out, x1, x2, out), ((*out[:-1], ("m",)),), sizes, {"r": Reduction.SUM}, frozenset({"m"}))


def _points(x1: Shape, x2: Shape, out: Shape) -> tuple[Value, Value, Value, dict[str, int]]:
    batch, sizes = named(out[:-2])
    sizes |= {"p": x1[-2], "r": x2[-2], "m": x1[-1]}
    first, second = ((*broadcast(shape[:-2], batch, sizes), (dim,), ("m",)) for shape, dim in ((x1, "p"), (x2, "r")))
    return first, second, (*batch, ("p",), ("r",)), sizes


def _gradients(notation: str) -> RuleFunction:
    """Return the rule of the gradients of the first two operands; `output_mask` may ask for only one."""
    parsed = parse_rule(notation)

    def rule(op: OpInstance) -> Rule:
        bound = parsed.bind(op.operands, op.operands[:2])
        results = (value if wanted else () for value, wanted in zip(bound.results, wanted_results(op), strict=True))
        return replace(bound, results=tuple(results))

    return rule


_PLACES = {"start": "operand0.start[0]", "first": "operand1.start[0]"}
_PLACES_IN_LISTS = {"start": "operand0.start[1]", "first": "operand1.start[0]"}


def _grouped_rows() -> Iterator[OpSpec]:
    # Rows are sorted by group. A device may hold some of the rows (s), and the matrices of some groups (e).
    yield from rows(
        "grouped_mm",
        "rows matrices ends",
        "([s, k], [e, k, n], [g]) -> ([s, n]) reduction={k, e} replicated={g}",
        linear="rows matrices",
        flops="2*s*k*n*e/g",
        localize=_PLACES,
        arguments="",
    )
    yield from rows(
        "grouped_mm_backward",
        "rows matrices ends grad",
        _gradients("([s, k], [e, k, n], [g], [s, n]) -> ([s, k], [e, k, n]) reduction={s, n, e} replicated={g}"),
        linear="grad",
        flops="4*s*k*n*e/g",
        scale=wanted_part,
        localize=_PLACES,
        results=2,
        arguments="bool[2] output_mask=[True, True]",
    )
    # Several lists of rows (p), each sorted separately.
    yield from rows(
        "grouped_bmm",
        "rows matrices ends",
        "([p, s, k], [e, k, n], [p, g]) -> ([p, s, n]) reduction={k, e} replicated={g}",
        linear="rows matrices",
        flops="2*p*s*k*n*e/g",
        localize=_PLACES_IN_LISTS,
        arguments="",
    )
    yield from rows(
        "grouped_bmm_backward",
        "rows matrices ends grad",
        _gradients(
            "([p, s, k], [e, k, n], [p, g], [p, s, n]) -> ([p, s, k], [e, k, n]) reduction={p, s, n, e} replicated={g}"
        ),
        linear="grad",
        flops="4*p*s*k*n*e/g",
        scale=wanted_part,
        localize=_PLACES_IN_LISTS,
        results=2,
        arguments="bool[2] output_mask=[True, True]",
    )


def _recurrent_layers() -> Iterator[OpSpec]:
    # The rows of the batch (b) do not depend on each other; gates, states and steps do.
    names = "inputs state of_inputs of_state bias bias_of_state"
    tensors = "[t, b, i], [s, b, h], [g, i], [g, h], [g], [g]"
    arguments = 'str kind="lstm", bool reverse=False'
    yield from rows(
        "recurrent",
        names,
        f"({tensors}) -> ([t, b, h], [s, b, h]) replicated={{t, i, s, h, g}}",
        flops="2*t*b*g*(i+h)",
        results=2,
        arguments=arguments,
    )
    yield from rows(
        "recurrent_backward",
        f"grad grad_state {names}",
        f"([t, b, h], [s, b, h], {tensors}) -> ({tensors}) reduction={{b}} replicated={{t, i, s, h, g}}",
        flops="6*t*b*g*(i+h)",
        results=6,
        arguments=arguments,
    )


def contractions_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from rows(
        "mm", "self mat2", "([i, k], [k, j]) -> ([i, j]) reduction={k}", linear="self mat2", flops="2*i*j*k"
    )
    yield from rows("addmm", "self mat1 mat2", biased("ik", "kj", "ij"), linear="self+mat1 self+mat2", flops="2*i*j*k")
    yield from rows(
        "bmm",
        "self mat2",
        "([b, i, k], [b, k, j]) -> ([b, i, j]) reduction={k}",
        linear="self mat2",
        flops="2*b*i*j*k",
    )
    yield from rows(
        "baddbmm",
        "self batch1 batch2",
        biased("bik", "bkj", "bij"),
        linear="self+batch1 self+batch2",
        flops="2*b*i*j*k",
    )
    yield from rows(
        "addbmm",
        "self batch1 batch2",
        biased("bik", "bkj", "ij"),
        linear="self+batch1 self+batch2",
        flops="2*b*i*j*k",
    )
    yield from rows("addmv", "self mat vec", biased("ik", "k", "i"), linear="self+mat self+vec", flops="2*i*k")
    yield from rows("addr", "self vec1 vec2", biased("i", "j", "ij"), linear="self+vec1 self+vec2", flops="2*i*j")
    yield from rows("mv", "self vec", "([i, k], [k]) -> ([i]) reduction={k}", linear="self vec", flops="2*i*k")
    yield from _grouped_rows()
    yield from _recurrent_layers()
    for name, other in (("dot", "tensor"), ("vdot", "other")):
        yield from rows(name, f"self {other}", "([k], [k]) -> ([]) reduction={k}", linear=f"self {other}", flops="2*k")
    yield from rows("_cdist_forward _euclidean_dist", "x1 x2", distances, flops="3*p*r*m")
    yield from rows("_cdist_backward", "grad x1 x2 cdist", distances_backward, linear="grad", flops="4*p*r*m")
    yield from rows("linalg_cross", "self other", along("dim", -1), linear="self other")
