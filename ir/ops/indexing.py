"""Elements found by index."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ..rules import Dim, Rule, Value, replicated_rule
from ..sharding import Reduction
from .common import broadcast, broadcast_shape, named, rows, whole
from .spec import OpInstance, OpSpec, RuleFunction, Shape


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


def scattered(*, adds: bool = False) -> RuleFunction:
    """
    (self, index, src?) put into `self` along `dim`; where they are added, split positions give partial sums.
    """

    def rule(op: OpInstance) -> Rule:
        shape, index = op.operands[0], op.operands[1]
        if not shape or len(index) != len(shape):
            return replicated_rule(op.operands, op.results)
        value, sizes = named(shape)
        at = op.argument("dim") % len(shape)
        sizes["j"], fixed = index[at], {f"d{at}", *(() if adds else ("j",))}

        def other(prefix: str, given: Shape) -> Value:
            dims: list[Dim] = []
            for i, size in enumerate(given):
                factor = "j" if i == at else f"d{i}"
                if size == sizes[factor]:
                    dims.append((factor,))
                    continue
                sizes[f"{prefix}{i}"] = size
                fixed.update({f"{prefix}{i}", factor})
                dims.append((f"{prefix}{i}",))
            return tuple(dims)

        operands = (value, *(other(f"o{i}_", each) for i, each in enumerate(op.operands[1:])))
        return _placed(operands, value, sizes, ("j",) if adds else (), fixed)

    return rule


def by_positions(*, adds: bool = False) -> RuleFunction:
    """(self, index [j], source?) -> self, with the source's slices put at these positions along `dim`."""

    def rule(op: OpInstance) -> Rule:
        if not op.operands[0] or len(op.operands[1]) != 1:
            return replicated_rule(op.operands, op.results)
        value, sizes = named(op.operands[0])
        at = op.argument("dim") % len(value)
        sizes["j"] = op.operands[1][0]
        source: Value = (*value[:at], ("j",), *value[at + 1 :])
        operands = (value, (("j",),), *(source if shape else () for shape in op.operands[2:]))
        whole = {f"d{at}", *(() if adds else ("j",))}
        return _placed(operands, value, sizes, ("j",) if adds else (), whole)

    return rule


def _placed(
    operands: tuple[Value, ...], result: Value, sizes: dict[str, int], added: Sequence[str], whole: Collection[str]
) -> Rule:
    """What is put into the first operand; where positions of the factors `added` are split, it must be partial."""
    reductions = dict.fromkeys(added, Reduction.SUM)
    additive = frozenset({0} if added else ())
    return Rule(operands, (result,), sizes, reductions, frozenset(whole), additive=additive)


def selected(op: OpInstance) -> Rule:
    """`index_select`: slices along `dim` by position, which may be split."""
    if not op.operands[0] or len(op.operands[1]) != 1:
        return replicated_rule(op.operands, op.results)
    value, sizes = named(op.operands[0])
    at = op.argument("dim") % len(value)
    sizes["j"] = op.operands[1][0]
    result: Value = (*value[:at], ("j",), *value[at + 1 :])
    return Rule((value, (("j",),)), (result,), sizes, replicated=frozenset({f"d{at}"}))


def indexed(op: OpInstance) -> Rule:
    """(self, indices...) -> elements: the dims that are indexed stay whole, positions and the others do not."""
    value, places, sizes = _indexed(op.operands[0], op.operands[1:], op.results[0])
    given = tuple(broadcast(shape, places, sizes) for shape in op.operands[1:])
    count = len(given)
    whole = frozenset(dim[0] for dim in value[:count])
    return Rule((value, *given), ((*places, *value[count:]),), sizes, replicated=whole)


def put_by_index(op: OpInstance) -> Rule:
    """(self, indices..., values) -> self: where values are added, split positions give partial sums."""
    *indices, values = op.operands[1:]
    shape = broadcast_shape(indices)
    value, places, sizes = _indexed(op.operands[0], indices, (*shape, *op.operands[0][len(indices) :]))
    given = [broadcast(each, places, sizes) for each in indices]
    operands = (value, *given, broadcast(values, (*places, *value[len(indices) :]), sizes))
    whole = {dim[0] for dim in value[: len(indices)]}
    positions = [dim[0] for dim in places]
    adds = op.argument("accumulate", False)
    return _placed(operands, value, sizes, positions if adds else (), whole if adds else {*whole, *positions})


def _indexed(shape: Shape, indices: Sequence[Shape], result: Shape) -> tuple[Value, Value, dict[str, int]]:
    """The dims of what is indexed, those of the positions, and the sizes of both."""
    value, sizes = named(shape)
    places, more = named(result[: len(result) - len(shape) + len(indices)], "p")
    return value, places, sizes | more


def taken(op: OpInstance) -> Rule:
    """`take`: the first operand as one whole list of elements."""
    table, sizes = named(op.operands[0], "t")
    index, more = named(op.operands[1])
    return Rule((table, index), (index,), sizes | more, replicated=frozenset(sizes))


def looked_up(op: OpInstance) -> Rule:
    """Each element of the first operand in the whole of the second (`bucketize`, `isin`)."""
    value, sizes = named(op.operands[0])
    table, more = named(op.operands[1], "t")
    return Rule((value, table), (value,), sizes | more, replicated=frozenset(more))


def searched(op: OpInstance) -> Rule:
    """(sorted [.., n], wanted [.., m], sorter?) -> places: sequences may be split apart, none in itself."""
    value, sizes = named(op.results[0])
    shape = op.operands[0]
    sizes["n"] = shape[-1]
    sequence: Value = (*(value[:-1] if len(shape) > 1 else ()), ("n",))
    operands = (sequence, value, *(sequence for _ in op.operands[2:]))
    return Rule(operands, (value,), sizes, replicated=frozenset({"n"}))


def indexing_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from rows("gather", "self index", picked, linear="self")
    yield from rows("scatter.value", "self index", picked)
    yield from rows("scatter.src", "self index src", scattered(), linear="self+src")
    yield from rows("scatter_add", "self index src", scattered(adds=True), linear="self+src")
    yield from rows("scatter_reduce.two scatter.reduce", "self index src", scattered())
    yield from rows("scatter.value_reduce", "self index", scattered())
    yield from rows("index_select", "self index", selected, linear="self")
    yield from rows("index_add", "self index source", by_positions(adds=True), linear="self+source")
    yield from rows("index_copy", "self index source", by_positions(), linear="self+source")
    yield from rows("index_reduce", "self index source", by_positions())
    yield from rows("index_fill.int_Scalar", "self index", by_positions())
    yield from rows("index_fill.int_Tensor", "self index value", by_positions(), linear="self+value")
    yield from rows("index.Tensor _unsafe_index.Tensor", "self *indices", indexed, linear="self")
    yield from rows(
        "index_put _unsafe_index_put", "self *indices values", put_by_index, linear="self+values"
    )
    yield from rows("take", "self index", taken, linear="self")
    # Where an element goes depends on how many before it are chosen: nothing may be split.
    yield from rows("masked_scatter", "self mask source", whole)
    yield from rows("bucketize.Tensor", "self boundaries", looked_up)
    yield from rows("isin.Tensor_Tensor", "elements test_elements", looked_up)
    yield from rows("searchsorted.Tensor", "sorted_sequence self sorter", searched)
    yield from rows("embedding", "weight indices", embedding, linear="weight")
    yield from rows(
        "embedding_dense_backward", "grad_output indices", embedding_backward, linear="grad_output"
    )
