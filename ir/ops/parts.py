"""Parts of a dim, and tensors joined along a dim."""

from __future__ import annotations

from collections.abc import Iterator

from ..rules import Dim, Rule, Value
from .common import linear_where_zero, named, rows, together, whole, wrapped
from .spec import OpInstance, OpSpec, RuleFunction, Shape


def cut(*, drop: bool = False, sized: bool = False, default: int = 0) -> RuleFunction:
    """
    Return the rule of a part along `dim` (slice, select, split, unbind): this dim is whole, unless the part covers it.

    With `drop` the dim disappears; with `sized` an argument gives the exact sizes of the parts; `default` is the dim
    if the argument is missing.
    """

    def rule(op: OpInstance) -> Rule:
        shape = op.operands[0]
        value, sizes = named(shape)
        at = op.argument("dim", default) % len(shape)
        outs: list[Value] = []
        for i, out in enumerate(op.results):
            if drop:
                outs.append((*value[:at], *value[at + 1 :]))
                continue
            if out[at] == shape[at] and not sized:
                outs.append(value)
                continue
            sizes[f"c{i}"] = out[at]
            outs.append((*value[:at], (f"c{i}",), *value[at + 1 :]))
        whole = {f for f in sizes if f.startswith("c")}
        whole |= {f"d{at}"} if whole or drop else set()
        return Rule((value,), tuple(outs), sizes, replicated=frozenset(whole))

    return rule


def uncut(*, dropped: bool = False) -> RuleFunction:
    """Return the rule of the backward of `cut`: a part is put into zeros along `dim`."""

    def rule(op: OpInstance) -> Rule:
        value, sizes = named(op.results[0])
        at = op.argument("dim", 0) % len(value)
        sizes["c"] = 1 if dropped else op.operands[0][at]
        part: Value = value[:at] + (() if dropped else (("c",),)) + value[at + 1 :]
        return Rule((part,), (value,), sizes, replicated=frozenset({"c", f"d{at}"}))

    return rule


def overlaid(op: OpInstance) -> Rule:
    """`slice_scatter`, (self, part) -> self: `dim` is not split, unless the part covers it."""
    at = op.argument("dim", 0) % len(op.operands[0])
    return together(op, () if op.operands[0] == op.operands[1] else (at,))


def overlaid_once(op: OpInstance) -> Rule:
    """`select_scatter`, (self, part without `dim`) -> self."""
    value, sizes = named(op.operands[0])
    at = op.argument("dim") % len(value)
    return Rule((value, (*value[:at], *value[at + 1 :])), (value,), sizes, replicated=frozenset({f"d{at}"}))


def halved(op: OpInstance) -> Rule:
    """`glu_backward`, (grad [.., n], self [.., 2n]) -> self, whose halves lie along `dim`."""
    return together(op, wrapped(op.argument("dim"), len(op.operands[0])))


def unfolded(op: OpInstance) -> Rule:
    """`unfold`: windows over one dim, the elements of each in a new last dim."""
    return _in_windows(op, op.operands[0], op.results[0], op.argument("dimension"), forward=True)


def unfolded_backward(op: OpInstance) -> Rule:
    """The gradient of `unfold`."""
    return _in_windows(op, op.results[0], op.operands[0], op.argument("dim"), forward=False)


def _in_windows(op: OpInstance, shape: Shape, windows: Shape, dim: int, *, forward: bool) -> Rule:
    if not shape:
        return whole(op)
    value, sizes = named(shape)
    at = dim % len(value)
    sizes |= {"w": windows[at], "e": windows[-1]}
    cut_up: Value = (*value[:at], ("w",), *value[at + 1 :], ("e",))
    sides = (value, cut_up) if forward else (cut_up, value)
    return Rule(sides[:1], sides[1:], sizes, replicated=frozenset({f"d{at}", "w", "e"}))


def diagonal(sides: str, first: int | None = None, second: int | None = None) -> RuleFunction:
    """
    Return the rule of a diagonal over two dims that stay whole; the diagonal is the last dim of the result.

    Args:
        sides: for each operand and then the result, `m` for matrices or `d` for diagonals.
        first: default of `dim1`.
        second: default of `dim2`.
    """

    def rule(op: OpInstance) -> Rule:
        shapes = dict(zip(sides, (*op.operands, *op.results), strict=True))
        value, sizes = named(shapes["m"])
        pair = {d % len(value) for d in (op.argument("dim1", first), op.argument("dim2", second))}
        sizes["e"] = shapes["d"][-1]
        rest: Value = (*(dim for i, dim in enumerate(value) if i not in pair), ("e",))
        values = tuple(value if side == "m" else rest for side in sides)
        fixed = frozenset({"e", *(f"d{i}" for i in pair)})
        return Rule(values[:-1], values[-1:], sizes, replicated=fixed)

    return rule


def repeated(op: OpInstance) -> Rule:
    """The rule of `repeat`: the repetitions of a dim are split, or the dim itself if it is repeated once."""
    value, sizes = named(op.operands[0])
    result: list[Dim] = []
    for i, times in enumerate(op.argument("repeats")):
        sizes[f"r{i}"] = times
        own = i - (len(op.results[0]) - len(value))
        result.append((f"r{i}", *(value[own] if own >= 0 else ())))
    nothing = 0 in op.results[0]
    return Rule((value,), (tuple(result),), sizes, replicated=frozenset(sizes) if nothing else frozenset())


def joined(op: OpInstance) -> Rule:
    """The rule of `cat`: tensors joined along `dim`."""
    value, sizes = named(op.results[0])
    at = op.argument("dim", 0) % len(value)
    operands: list[Value] = []
    for i, shape in enumerate(op.operands):
        # Torch lets a tensor of one dim and no elements stand for an empty tensor of any shape.
        nothing = shape == (0,)
        sizes[f"c{i}"] = 0 if nothing else shape[at]
        operands.append(((f"c{i}",),) if nothing else (*value[:at], (f"c{i}",), *value[at + 1 :]))
    whole = frozenset({f"d{at}", *(f"c{i}" for i in range(len(op.operands)))})
    return Rule(tuple(operands), (value,), sizes, replicated=whole)


def stacked(op: OpInstance) -> Rule:
    """The rule of `stack`: tensors joined along a new `dim`."""
    value, sizes = named(op.results[0])
    at = op.argument("dim", 0) % len(value)
    part = (*value[:at], *value[at + 1 :])
    return Rule((part,) * len(op.operands), (value,), sizes, replicated=frozenset({f"d{at}"}))


def padded(op: OpInstance) -> Rule:
    """The rule of `constant_pad_nd`: a dim that gains or loses elements at an end is not split."""
    pad = op.argument("pad")
    rank = len(op.operands[0])
    changed = [rank - 1 - end // 2 for end, count in enumerate(pad) if count]
    return together(op, changed)


def parts_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from rows("slice.Tensor", "self", cut(), linear="self", view=True)
    yield from rows("select.int", "self", cut(drop=True), linear="self", view=True)
    yield from rows("split.Tensor chunk", "self", cut(), linear="self", view=True, results=0)
    yield from rows("split_with_sizes", "self", cut(sized=True), linear="self", view=True, results=0)
    yield from rows("unbind.int", "self", cut(drop=True), linear="self", view=True, results=0)
    yield from rows("slice_backward", "grad_output", uncut(), linear="grad_output", localize={"input_sizes": "result0"})
    yield from rows(
        "select_backward",
        "grad_output",
        uncut(dropped=True),
        linear="grad_output",
        localize={"input_sizes": "result0"},
    )
    yield from rows("cat", "*tensors", joined, linear="*")
    yield from rows("stack", "*tensors", stacked, linear="*")
    yield from rows("constant_pad_nd", "self", linear_where_zero(padded, "value", 0))
    yield from rows("repeat", "self", repeated, linear="self", localize={"repeats": "factor r*"})
    yield from _copied_rows()
    yield from _overlaid_rows()
    yield from _diagonal_rows()
    yield from rows("unfold", "self", unfolded, linear="self", view=True)
    yield from rows(
        "unfold_backward",
        "grad_in",
        unfolded_backward,
        linear="grad_in",
        localize={"input_sizes": "result0"},
    )
    yield from rows("glu", "self", cut(sized=True, default=-1), flops="10*each")
    yield from rows("glu_backward", "grad_output self", halved, linear="grad_output", flops="10*each")


def _copied_rows() -> Iterator[OpSpec]:
    yield from rows("unsafe_split.Tensor split_copy.Tensor", "self", cut(), linear="self", results=0)
    yield from rows("unsafe_split_with_sizes split_with_sizes_copy", "self", cut(sized=True), linear="self", results=0)
    yield from rows("unbind_copy.int", "self", cut(drop=True), linear="self", results=0)
    copied = {"self": "result0"}
    yield from rows("slice_copy.Tensor", "self", cut(), linear="self", reads=copied)
    yield from rows("narrow_copy", "self", cut(sized=True), linear="self", reads=copied)
    yield from rows("select_copy.int", "self", cut(drop=True), linear="self", reads=copied)


def _overlaid_rows() -> Iterator[OpSpec]:
    yield from rows("slice_scatter", "self src", overlaid, linear="self+src")
    yield from rows("select_scatter", "self src", overlaid_once, linear="self+src")
    yield from rows("diagonal_scatter", "self src", diagonal("mdm", 0, 1), linear="self+src")


def _diagonal_rows() -> Iterator[OpSpec]:
    yield from rows("diagonal", "self", diagonal("md", 0, 1), linear="self", view=True)
    yield from rows("diag_embed", "self", diagonal("dm", -2, -1), linear="self")
    yield from rows(
        "diagonal_backward",
        "grad_output",
        diagonal("dm"),
        linear="grad_output",
        localize={"input_sizes": "result0"},
    )
    yield from rows("trace", "self", "([i, j]) -> ([]) replicated={i, j}", linear="self")
