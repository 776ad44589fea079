"""Rules of op families whose factors depend on the shapes and arguments of each use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..rules import Dim, Rule, Value
from ..sharding import Reduction
from .spec import OpInstance, RuleFunction, Shape


def named(shape: Shape, prefix: str = "d") -> tuple[Value, dict[str, int]]:
    """One factor per dim of `shape`, and their sizes."""
    value = tuple((f"{prefix}{i}",) for i in range(len(shape)))
    return value, {dim[0]: size for dim, size in zip(value, shape, strict=True)}


def wrapped(dims: int | Iterable[int] | None, rank: int) -> tuple[int, ...]:
    """Dim arguments as non-negative numbers; none or an empty list means all."""
    listed = (dims,) if isinstance(dims, int) else tuple(dims or range(rank))
    return tuple(dim % rank for dim in listed) if rank else ()


def pointwise(op: OpInstance) -> Rule:
    """Element by element with broadcasting; all results have the first one's shape."""
    value, sizes = named(op.results[0])

    def operand(shape: Shape) -> Value:
        aligned = value[len(value) - len(shape) :]
        return tuple(d if s == sizes[d[0]] else () for d, s in zip(aligned, shape, strict=True))

    return Rule(tuple(map(operand, op.operands)), (value,) * len(op.results), sizes)


def along(argument: str) -> RuleFunction:
    """Element by element, but for the dims that `argument` names, which must stay whole (softmax, cumsum, flip)."""

    def rule(op: OpInstance) -> Rule:
        base = pointwise(op)
        whole = wrapped(op.argument(argument), len(op.results[0]))
        return Rule(base.operands, base.results, base.sizes, replicated=frozenset(f"d{d}" for d in whole))

    return rule


def reduction(kind: Reduction | None, results: int = 1) -> RuleFunction:
    """A reduction over `dim`; `kind` is how parts combine, None where they do not."""

    def rule(op: OpInstance) -> Rule:
        shape = op.operands[0]
        value, sizes = named(shape)
        reduced = set(wrapped(op.argument("dim"), len(shape)))
        keep = bool(op.argument("keepdim", False))
        kept: list[Dim] = [
            () if i in reduced else dim for i, dim in enumerate(value) if keep or i not in reduced
        ]
        factors = [f"d{i}" for i in sorted(reduced)]
        reductions = dict.fromkeys(factors, kind) if kind is not None else {}
        whole = frozenset[str]() if kind is not None else frozenset(factors)
        return Rule((value,), (tuple(kept),) * results, sizes, reductions, whole)

    return rule


def factory(op: OpInstance) -> Rule:
    """A tensor made from arguments alone: every device can make its own part."""
    value, sizes = named(op.results[0])
    return Rule((), (value,), sizes)


def reshape(op: OpInstance) -> Rule:
    """
    A view of other sizes: the dims' common factors (what splits a dim of either side evenly splits the
    other).
    """
    source, target = op.operands[0], op.results[0]
    sizes: dict[str, int] = {}
    before: list[list[str]] = [[] for _ in source]
    after: list[list[str]] = [[] for _ in target]
    i = j = 0
    left, right = _size(source, i), _size(target, j)
    while i < len(source) or j < len(target):
        if left == 1 and i < len(source):
            i, left = i + 1, _size(source, i + 1)
        elif right == 1 and j < len(target):
            j, right = j + 1, _size(target, j + 1)
        else:
            step, factor = min(left, right), f"f{len(sizes)}"
            if step == 0 or max(left, right) % step:
                return _unrelated(op)
            sizes[factor] = step
            before[i].append(factor)
            after[j].append(factor)
            left, right = left // step, right // step
    operand, result = tuple(map(tuple, before)), tuple(map(tuple, after))
    return Rule((operand,), (result,), sizes)


def _size(shape: Shape, index: int) -> int:
    return shape[index] if index < len(shape) else 1


def _unrelated(op: OpInstance) -> Rule:
    """Dims whose sizes share no common refinement: only the leading dims that are equal go together."""
    source, sizes = named(op.operands[0], "s")
    target, more = named(op.results[0], "t")
    common = 0
    for a, b in zip(op.operands[0], op.results[0], strict=False):
        if a != b:
            break
        common += 1
    target = (*source[:common], *target[common:])
    sizes |= {f: n for f, n in more.items() if int(f[1:]) >= common}
    whole = frozenset(dim[0] for dim in (*source[common:], *target[common:]))
    return Rule((source,), (target,), sizes, replicated=whole)


def permuted(order: Callable[[OpInstance, int], Sequence[int]]) -> RuleFunction:
    """A reordering of dims; `order` gives, per result dim, the operand's dim."""

    def rule(op: OpInstance) -> Rule:
        value, sizes = named(op.operands[0])
        return Rule((value,), (tuple(value[d] for d in order(op, len(value))),), sizes)

    return rule


def swap(op: OpInstance, rank: int) -> list[int]:
    """The order of `transpose.int` (dim0, dim1) and of `t`."""
    order = list(range(rank))
    if rank >= 2:
        a, b = op.argument("dim0", 0) % rank, op.argument("dim1", 1) % rank
        order[a], order[b] = order[b], order[a]
    return order


def permutation(op: OpInstance, rank: int) -> list[int]:
    """The order of `permute` (dims)."""
    return [d % rank for d in op.argument("dims")]


def expand(op: OpInstance) -> Rule:
    """Dims of size 1, or new ones, repeated to the result's size."""
    return pointwise(op)


def unsqueeze(op: OpInstance) -> Rule:
    """A dim of size 1 put in at `dim`."""
    value, sizes = named(op.operands[0])
    at = op.argument("dim") % len(op.results[0])
    return Rule((value,), ((*value[:at], (), *value[at:]),), sizes)


def squeeze(op: OpInstance) -> Rule:
    """The dims of size 1 named by `dim` (all where it is not given) taken out."""
    value, sizes = named(op.operands[0])
    dims = set(wrapped(op.argument("dim"), len(value)))
    kept = tuple(d for i, d in enumerate(value) if not (i in dims and sizes[d[0]] == 1))
    return Rule((value,), (kept,), sizes)


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


def addmm(op: OpInstance) -> Rule:
    """
    bias + mat1 @ mat2; the bias broadcasts, and must be partial where k is split, so that it is added once.
    """
    (rows, inner), (_, columns) = op.operands[1], op.operands[2]
    result: Value = (("i",), ("j",))
    sizes = {"i": rows, "k": inner, "j": columns}
    bias = result[2 - len(op.operands[0]) :]
    bias = tuple(d if n == sizes[d[0]] else () for d, n in zip(bias, op.operands[0], strict=True))
    operands: tuple[Value, ...] = (bias, (("i",), ("k",)), (("k",), ("j",)))
    return Rule(operands, (result,), sizes, {"k": Reduction.SUM}, additive=frozenset({0}))


def baddbmm(op: OpInstance) -> Rule:
    """self + batch1 @ batch2, batched."""
    (batch, rows, inner), (_, _, columns) = op.operands[1], op.operands[2]
    result: Value = (("b",), ("i",), ("j",))
    sizes = {"b": batch, "i": rows, "k": inner, "j": columns}
    bias = result[3 - len(op.operands[0]) :]
    bias = tuple(d if n == sizes[d[0]] else () for d, n in zip(bias, op.operands[0], strict=True))
    operands: tuple[Value, ...] = (bias, (("b",), ("i",), ("k",)), (("b",), ("k",), ("j",)))
    return Rule(operands, (result,), sizes, {"k": Reduction.SUM}, additive=frozenset({0}))


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


def layer_norm(op: OpInstance) -> Rule:
    """(input, weight?, bias?) -> (output, mean, rstd): the normalised dims stay whole."""
    value, sizes = named(op.operands[0])
    lead = len(value) - len(op.argument("normalized_shape"))
    inner = value[lead:]
    statistics = (*value[:lead], *(() for _ in inner))
    operands = (value, *(inner for _ in op.operands[1:]))
    return Rule(
        operands, (value, statistics, statistics), sizes, replicated=frozenset(dim[0] for dim in inner)
    )


def layer_norm_backward(op: OpInstance) -> Rule:
    """(grad_out, input, mean, rstd, weight?, bias?) -> (grad_input, grad_weight, grad_bias)."""
    value, sizes = named(op.operands[0])
    lead = len(value) - len(op.argument("normalized_shape"))
    inner = value[lead:]
    statistics: Value = (*value[:lead], *(() for _ in inner))
    operands = (value, value, statistics, statistics, *(inner for _ in op.operands[4:]))
    results = tuple(v if wanted else () for v, wanted in zip((value, inner, inner), _wanted(op), strict=True))
    outer = [dim[0] for dim in value[:lead]]
    return Rule(
        operands, results, sizes, dict.fromkeys(outer, Reduction.SUM), frozenset(dim[0] for dim in inner)
    )


def _wanted(op: OpInstance) -> tuple[bool, ...]:
    """Which results the `output_mask` asks for; the others are empty placeholders of no dims."""
    return tuple(op.argument("output_mask", (True,) * len(op.results)))


def convolution(op: OpInstance) -> Rule:
    """(input, weight, bias?) -> output: batch and channels may be split, windows not."""
    x, w, y, sizes, whole = _convolved(op, op.operands[0], op.operands[1], op.results[0])
    bias: list[Value] = [(("o",),)] if len(op.operands) > 2 else []
    additive = frozenset({2} if bias else ())
    return Rule((x, w, *bias), (y,), sizes, {"i": Reduction.SUM}, whole, additive=additive)


def convolution_backward(op: OpInstance) -> Rule:
    """(grad_output, input, weight) -> (grad_input, grad_weight, grad_bias)."""
    x, w, y, sizes, whole = _convolved(op, op.operands[1], op.operands[2], op.operands[0])
    results = tuple(v if wanted else () for v, wanted in zip((x, w, (("o",),)), _wanted(op), strict=True))
    return Rule((y, x, w), results, sizes, {"n": Reduction.SUM, "o": Reduction.SUM}, whole)


def _convolved(
    op: OpInstance, x: Shape, w: Shape, y: Shape
) -> tuple[Value, Value, Value, dict[str, int], frozenset[str]]:
    """
    Input, weight and output of a convolution, the factors' sizes and those that stay whole.

    With groups the channels of input, weight and output are not one another's: all of them stay whole.
    """
    sizes = {"n": x[0], "i": x[1], "o": y[1]}
    windows: list[Value] = []
    for prefix, shape in (("h", x), ("k", w), ("y", y)):
        window, more = named(shape[2:], prefix)
        sizes |= more
        windows.append(window)
    whole = {factor for factor in sizes if factor[0] in "hky"}
    outer, inner = ("i", "o") if op.argument("transposed", False) else ("o", "i")
    if op.argument("groups", 1) != 1:
        inner = "g"
        sizes["g"] = w[1]
        whole |= {"g", "i", "o"}
    before, kernel, after = windows
    values = (("n",), ("i",), *before), ((outer,), (inner,), *kernel), (("n",), ("o",), *after)
    return (*values, sizes, frozenset(whole))


def pooling(op: OpInstance) -> Rule:
    """
    Windows over the last two dims; batch and channels may be split. All operands and results are images.
    """
    images = [*op.operands, *op.results]
    sizes: dict[str, int] = {}
    values: list[Value] = []
    for index, shape in enumerate(images):
        lead, more = named(shape[:-2])
        sizes |= more | {f"w{index}y": shape[-2], f"w{index}x": shape[-1]}
        values.append((*lead, (f"w{index}y",), (f"w{index}x",)))
    whole = frozenset(f for f in sizes if f.startswith("w"))
    count = len(op.operands)
    return Rule(tuple(values[:count]), tuple(values[count:]), sizes, replicated=whole)


def batch_norm(op: OpInstance) -> Rule:
    """Statistics over batch and space: only channels may be split."""
    return _channels(op)


def _channels(op: OpInstance) -> Rule:
    """Every value of two dims or more has its channels at dim 1, every vector is of channels."""
    sizes: dict[str, int] = {"c": op.operands[0][1]}

    def value(prefix: str, shape: Shape) -> Value:
        if len(shape) == 1:
            if shape[0] == sizes["c"]:
                return (("c",),)
            sizes[f"{prefix}0"] = shape[0]
            return ((f"{prefix}0",),)
        dims, more = named(shape, prefix)
        sizes.update({f: n for f, n in more.items() if f != f"{prefix}1"})
        return tuple(("c",) if i == 1 else dim for i, dim in enumerate(dims))

    operands = tuple(value(f"o{i}_", shape) for i, shape in enumerate(op.operands))
    results = tuple(value(f"r{i}_", shape) for i, shape in enumerate(op.results))
    return Rule(operands, results, sizes, replicated=frozenset(sizes) - {"c"})


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


def triangle(op: OpInstance) -> Rule:
    """`tril` and `triu` look at the indices of the last two dims, which stay whole."""
    value, sizes = named(op.operands[0])
    return Rule((value,), (value,), sizes, replicated=frozenset(dim[0] for dim in value[-2:]))


def nll_loss(op: OpInstance) -> Rule:
    """(scores [b, c], target [b], weight? [c]) -> (loss, total_weight); a mean's parts do not add up."""
    scores, target = _scores(op.operands[0])
    sizes = _score_sizes(op.operands[0])
    kind = op.argument("reduction")
    loss: Value = target if kind == 0 else ()
    operands: tuple[Value, ...] = (scores, target, (("c",),))[: len(op.operands)]
    whole = frozenset({"c"} if kind != 1 else sizes)
    return Rule(operands, (loss, ()), sizes, {"b": Reduction.SUM} if "b" in sizes else {}, whole)


def nll_loss_backward(op: OpInstance) -> Rule:
    """(grad, scores, target, weight?, total_weight) -> grad_scores."""
    scores, target = _scores(op.operands[1])
    sizes = _score_sizes(op.operands[1])
    loss: Value = target if op.argument("reduction") == 0 else ()
    weight: tuple[Value, ...] = ((("c",),),) if len(op.operands) == 5 else ()
    return Rule((loss, scores, target, *weight, ()), (scores,), sizes, replicated=frozenset({"c"}))


def _scores(shape: Shape) -> tuple[Value, Value]:
    return ((("b",), ("c",)), (("b",),)) if len(shape) == 2 else ((("c",),), ())


def _score_sizes(shape: Shape) -> dict[str, int]:
    return {"b": shape[0], "c": shape[1]} if len(shape) == 2 else {"c": shape[0]}


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
