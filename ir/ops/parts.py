"""Parts of a dim, and tensors put together along one."""

from __future__ import annotations

from collections.abc import Iterator

from ..rules import Dim, Rule, Value
from .common import named, rows
from .spec import OpInstance, OpSpec, RuleFunction


def cut(*, drop: bool = False, sized: bool = False) -> RuleFunction:
    """
    A part along `dim` (slice, select, split, unbind): that dim stays whole, unless the part is all of it.

    With `drop` the dim disappears; with `sized` an argument gives the parts' exact sizes.
    """

    def rule(op: OpInstance) -> Rule:
        shape = op.operands[0]
        value, sizes = named(shape)
        at = op.argument("dim", 0) % len(shape)
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
    """The backward of `cut`: a part put into zeros along `dim`."""

    def rule(op: OpInstance) -> Rule:
        value, sizes = named(op.results[0])
        at = op.argument("dim", 0) % len(value)
        sizes["c"] = 1 if dropped else op.operands[0][at]
        part: Value = value[:at] + (() if dropped else (("c",),)) + value[at + 1 :]
        return Rule((part,), (value,), sizes, replicated=frozenset({"c", f"d{at}"}))

    return rule


def joined(op: OpInstance) -> Rule:
    """Tensors put end to end along `dim` (cat)."""
    value, sizes = named(op.results[0])
    at = op.argument("dim", 0) % len(value)
    operands: list[Value] = []
    for i, shape in enumerate(op.operands):
        sizes[f"c{i}"] = shape[at]
        operands.append((*value[:at], (f"c{i}",), *value[at + 1 :]))
    whole = frozenset({f"d{at}", *(f"c{i}" for i in range(len(op.operands)))})
    return Rule(tuple(operands), (value,), sizes, replicated=whole)


def stacked(op: OpInstance) -> Rule:
    """Tensors put beside one another along a new `dim` (stack)."""
    value, sizes = named(op.results[0])
    at = op.argument("dim", 0) % len(value)
    part = (*value[:at], *value[at + 1 :])
    return Rule((part,) * len(op.operands), (value,), sizes, replicated=frozenset({f"d{at}"}))


def padded(op: OpInstance) -> Rule:
    """`constant_pad_nd`: a dim with padding stays whole."""
    value, sizes = named(op.operands[0])
    result: list[Dim] = []
    for i, (dim, size, out) in enumerate(zip(value, op.operands[0], op.results[0], strict=True)):
        result.append(dim if size == out else (f"p{i}",))
        sizes |= {} if size == out else {f"p{i}": out}
    changed = {f"{prefix}{i}" for i, dim in enumerate(result) if dim[0].startswith("p") for prefix in "dp"}
    return Rule((value,), (tuple(result),), sizes, replicated=frozenset(changed))


def parts_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from rows("slice.Tensor", "self", cut(), linear="self", view=True)
    yield from rows("select.int", "self", cut(drop=True), linear="self", view=True)
    yield from rows("split.Tensor chunk", "self", cut(), linear="self", view=True, results=0)
    yield from rows("split_with_sizes", "self", cut(sized=True), linear="self", view=True, results=0)
    yield from rows("unbind.int", "self", cut(drop=True), linear="self", view=True, results=0)
    yield from rows(
        "slice_backward", "grad_output", uncut(), linear="grad_output", localize={"input_sizes": "result0"}
    )
    yield from rows(
        "select_backward",
        "grad_output",
        uncut(dropped=True),
        linear="grad_output",
        localize={"input_sizes": "result0"},
    )
    yield from rows("cat", "*tensors", joined, linear="*")
    yield from rows("stack", "*tensors", stacked, linear="*")
    yield from rows("constant_pad_nd", "self", padded)
