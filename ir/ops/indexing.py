"""
Elements found by index.

The dim that is looked up is an indexed factor, `v`: it can be split, although the part that holds an element is only
known at run time. Other dims share factors where their sizes agree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import wraps

from ..rules import Dim, Rule, Value, replicated_rule
from ..sharding import Reduction
from .common import broadcast, broadcast_shape, named, rows, unsplit, whole
from .spec import OpInstance, OpSpec, RuleFunction, Shape


def unless_scalar(rule: RuleFunction) -> RuleFunction:
    """Return `rule` for operands with dims; single numbers have nothing to split."""

    @wraps(rule)
    def either(op: OpInstance) -> Rule:
        return rule(op) if all(op.operands[:2]) else replicated_rule(op.operands, op.results)

    return either


def embedding(op: OpInstance) -> Rule:
    """The rule of `embedding`: rows of a table by index."""
    indices, sizes = named(op.operands[1], "b")
    sizes |= {"v": op.operands[0][0], "e": op.operands[0][1]}
    return Rule(((("v",), ("e",)), indices), ((*indices, ("e",)),), sizes, _sums("v"), indexed={"v": 1})


def embedding_backward(op: OpInstance) -> Rule:
    """The rule of the gradient of `embedding`: rows summed by index."""
    indices, sizes = named(op.operands[1], "b")
    factors = tuple(sizes)
    sizes |= {"v": op.results[0][0], "e": op.results[0][1]}
    # Rows are scaled by their frequency among all indices.
    whole = frozenset(factors if op.argument("scale_grad_by_freq", False) else ())
    operands = ((*indices, ("e",)), indices)
    return Rule(operands, ((("v",), ("e",)),), sizes, _sums(*factors), whole, indexed={"v": 1})


class _AlongDim:
    """
    The dims of ops that look up one dim of their first operand, with an index for each element.

    Where the first operand has `v`, the index has the factor `o`. Another dim of the index may be shorter than the
    first operand's: then it concerns only the first elements, and both dims stay whole.
    """

    def __init__(self, op: OpInstance) -> None:
        self.value, self.sizes, self.at = _looked_up(op)
        self.whole = set[str]()
        self.index = self.other(op.operands[1])

    def other(self, shape: Shape) -> Value:
        """Return the dims of another value of this shape."""
        return tuple(self._dim(i, size) for i, size in enumerate(shape))

    def _dim(self, i: int, size: int) -> Dim:
        beside = self.value[i][0]
        if i != self.at and size == self.sizes[beside]:
            return (beside,)
        own = "o" if i == self.at else f"o{i}"
        if self.sizes.setdefault(own, size) != size:
            # An index may use only the first elements of its source.
            self.whole.add(own)
            own = f"{own}_{size}"
            self.sizes[own] = size
            self.whole.add(own)
        self.whole |= {own, beside} if i != self.at else set()
        return (own,)

    def rule(self, operands: Iterable[Value], result: Value, *sums: str, additive: Collection[int] = ()) -> Rule:
        """Return the rule of an op that sums over factors."""
        reductions, whole = _sums(*(factor for factor in sums if factor in self.sizes)), frozenset(self.whole)
        return Rule(
            tuple(operands), (result,), self.sizes, reductions, whole, additive=frozenset(additive), indexed={"v": 1}
        )


@unless_scalar
def gathered(op: OpInstance) -> Rule:
    """The rule of `gather`: an element of the first operand for each index. An empty index may have any dims."""
    if len(op.operands[0]) != len(op.operands[1]):
        return whole(op)
    dims = _AlongDim(op)
    return dims.rule((dims.value, dims.index), dims.index, "v")


@unless_scalar
def scattered(op: OpInstance) -> Rule:
    """The rule of `scatter`: if two indices are equal, either element may stay, so the indices are not split."""
    dims = _AlongDim(op)
    sources = [dims.other(shape) for shape in op.operands[2:]]
    dims.whole |= {factor for factor in dims.sizes if factor.startswith("o")}
    return dims.rule((dims.value, dims.index, *sources), dims.value)


@unless_scalar
def scatter_added(op: OpInstance) -> Rule:
    """The rule of `scatter_add`: the first operand once, plus a sum over the indices."""
    dims = _AlongDim(op)
    source = dims.other(op.operands[2])
    return dims.rule((dims.value, dims.index, source), dims.value, "o", additive=(0,))


@unless_scalar
def selected(op: OpInstance) -> Rule:
    """The rule of `index_select`: slices along `dim`, one for each index."""
    value, sizes, at = _looked_up(op)
    sizes["k"] = op.operands[1][0]
    result: Value = (*value[:at], ("k",), *value[at + 1 :])
    return Rule((value, (("k",),)), (result,), sizes, _sums("v"), indexed={"v": 1})


def slices_put(*, adds: bool = False) -> RuleFunction:
    """Return the rule of (self, index [k], source?) -> self, with slices put at these indices along `dim`, or added."""

    @unless_scalar
    def rule(op: OpInstance) -> Rule:
        value, sizes, at = _looked_up(op)
        sizes["k"] = op.operands[1][0]
        source: Value = (*value[:at], ("k",), *value[at + 1 :])
        operands = (value, (("k",),), *(source if shape else () for shape in op.operands[2:]))
        whole, once = frozenset(() if adds else ("k",)), frozenset((0,) if adds else ())
        return Rule(operands, (value,), sizes, _sums("k") if adds else {}, whole, additive=once, indexed={"v": 1})

    return rule


class _FirstDims:
    """
    The dims of ops that look up the first dims of their first operand, with an index for each of these dims.

    The indices broadcast to dims of factors `b`; in the picked value, these come before the dims that are not looked
    up. A single dim that is looked up has the factor `v`; several are looked up together, so they are not split.
    """

    def __init__(self, op: OpInstance, indices: Sequence[Shape]) -> None:
        shape = op.operands[0]
        places, self.places = named(broadcast_shape(indices), "b")
        rest, rest_sizes = named(shape[len(indices) :])
        table: Value = (("v",),) if len(indices) == 1 else tuple((f"v{i}",) for i in range(len(indices)))
        found_sizes = dict(zip((dim[0] for dim in table), shape, strict=False))
        self.sizes = {**found_sizes, **self.places, **rest_sizes}
        self.value, self.picked = (*table, *rest), (*places, *rest)
        self.indices = tuple(broadcast(index, places, self.sizes) for index in indices)
        self.single = len(indices) == 1
        self.whole = set[str]() if self.single else set(found_sizes)

    def rule(self, operands: Iterable[Value], result: Value, *sums: str, additive: Collection[int] = ()) -> Rule:
        """Return the rule of an op that sums over factors."""
        reductions = _sums(*(factor for factor in sums if factor in self.sizes))
        return Rule(
            tuple(operands),
            (result,),
            self.sizes,
            reductions,
            frozenset(self.whole),
            additive=frozenset(additive),
            indexed={"v": 1} if self.single else {},
        )


def picked(op: OpInstance) -> Rule:
    """The rule of `x[i]` or `x[i, j]`; a mask, whose values decide the result's size, needs the full tensor."""
    if op.masks & set(range(1, len(op.operands))):
        return whole(op)
    dims = _FirstDims(op, op.operands[1:])
    return dims.rule((dims.value, *dims.indices), dims.picked, "v")


def put(op: OpInstance) -> Rule:
    """The rule of `x[i] = y`; with `accumulate`, of `x[i] += y`: `x` once, plus a sum over the indices."""
    if op.masks & set(range(1, len(op.operands) - 1)):
        return whole(op)
    dims = _FirstDims(op, op.operands[1:-1])
    operands = (dims.value, *dims.indices, broadcast(op.operands[-1], dims.picked, dims.sizes))
    if op.argument("accumulate", False):
        return dims.rule(operands, dims.value, *dims.places, additive=(0,))
    dims.whole |= set(dims.places)
    return dims.rule(operands, dims.value)


def _looked_up(op: OpInstance) -> tuple[Value, dict[str, int], int]:
    """Return the first operand's dims, with `v` at `dim`; their sizes; and `dim` as a non-negative number."""
    shape = op.operands[0]
    at = op.argument("dim") % len(shape)
    value = tuple(("v",) if i == at else (f"d{i}",) for i in range(len(shape)))
    return value, {dim[0]: size for dim, size in zip(value, shape, strict=True)}, at


def _sums(*factors: str) -> dict[str, Reduction]:
    return dict.fromkeys(factors, Reduction.SUM)


def taken(op: OpInstance) -> Rule:
    """The rule of `take`, which reads the first operand as one list of all its elements."""
    table, sizes = named(op.operands[0], "t")
    index, more = named(op.operands[1])
    return Rule((table, index), (index,), sizes | more, replicated=frozenset(sizes))


def looked_up(op: OpInstance) -> Rule:
    """The rule of a search of each element of the first operand among all of the second (`bucketize`, `isin`)."""
    value, sizes = named(op.operands[0])
    table, more = named(op.operands[1], "t")
    return Rule((value, table), (value,), sizes | more, replicated=frozenset(more))


def searched(op: OpInstance) -> Rule:
    """The rule of (sorted [.., n], wanted [.., m], sorter?) -> places: sequences may be distributed but not cut."""
    value, sizes = named(op.results[0])
    shape = op.operands[0]
    sizes["n"] = shape[-1]
    sequence: Value = (*(value[:-1] if len(shape) > 1 else ()), ("n",))
    operands = (sequence, value, *(sequence for _ in op.operands[2:]))
    return Rule(operands, (value,), sizes, replicated=frozenset({"n"}))


def bags(op: OpInstance) -> Rule:
    """The rule of sums over bags of rows: only the columns of rows may be split."""
    columns = op.operands[0][1]
    sizes = {"e": columns}

    def value(index: int, shape: Shape) -> Value:
        own, more = named(shape, f"v{index}_")
        of_rows = len(shape) == 2 and shape[1] == columns
        sizes.update({factor: size for factor, size in more.items() if not (of_rows and factor.endswith("_1"))})
        return (own[0], ("e",)) if of_rows else own

    values = tuple(value(i, shape) for i, shape in enumerate((*op.operands, *op.results)))
    fixed = frozenset(sizes) - {"e"}
    return Rule(values[: len(op.operands)], values[len(op.operands) :], sizes, replicated=fixed)


_LOOK_UP = "20*each"
"""Operations of finding one element by its index."""

_FOUND = {"self": "result0"}
"""From a table that is looked up, only the elements that are found are read."""


def indexing_rows() -> Iterator[OpSpec]:
    """Yield the rows of this family."""
    yield from rows("gather", "self index", gathered, linear="self", flops=_LOOK_UP, reads=_FOUND)
    yield from rows("scatter.value", "self index", scattered)
    yield from rows("scatter.src", "self index src", scattered, linear="self+src")
    yield from rows("scatter_add", "self index src", scatter_added, linear="self+src")
    yield from rows("scatter_reduce.two scatter.reduce", "self index src", unsplit(scattered))
    yield from rows("scatter.value_reduce", "self index", unsplit(scattered))
    yield from rows("index_select", "self index", selected, linear="self", reads=_FOUND)
    yield from rows("index_add", "self index source", slices_put(adds=True), linear="self+source")
    yield from rows("index_copy", "self index source", unsplit(slices_put()), linear="self+source")
    yield from rows("index_reduce", "self index source", unsplit(slices_put()))
    yield from rows("index_fill.int_Scalar", "self index", unsplit(slices_put()))
    yield from rows("index_fill.int_Tensor", "self index value", unsplit(slices_put()), linear="self+value")
    yield from rows("index.Tensor _unsafe_index.Tensor", "self *indices", picked, linear="self", reads=_FOUND)
    yield from rows("index_put _unsafe_index_put", "self *indices values", put, linear="self+values")
    # Several lists of rows (p), each with places in that list.
    yield from rows(
        "take_rows",
        "rows places",
        "([p, t, f], [p, n]) -> ([p, n, f]) reduction={t} indexed={t: 1}",
        linear="rows",
        reads={"rows": "result0"},
        arguments="",
    )
    yield from rows(
        "add_rows",
        "values places",
        "([p, n, f], [p, n]) -> ([p, t, f]) reduction={n} indexed={t: 1}",
        linear="values",
        arguments="int size",
    )
    yield from rows("take", "self index", taken, linear="self", flops=_LOOK_UP, reads=_FOUND)
    # The place of an element depends on the number of chosen elements before it: nothing may be split.
    yield from rows("masked_scatter", "self mask source", whole)
    yield from rows("bucketize.Tensor", "self boundaries", looked_up, decides=True)
    yield from rows("isin.Tensor_Tensor", "elements test_elements", looked_up, decides=True)
    yield from rows("searchsorted.Tensor", "sorted_sequence self sorter", searched, decides=True)
    yield from rows("embedding", "weight indices", embedding, linear="weight", reads={"weight": "result0"})
    yield from rows("embedding_dense_backward", "grad_output indices", embedding_backward, linear="grad_output")
    yield from rows(
        "_embedding_bag _embedding_bag_forward_only",
        "weight indices offsets per_sample_weights",
        bags,
        results=4,
        ordered=True,
    )
    yield from rows(
        "_embedding_bag_dense_backward",
        "grad indices offset2bag bag_size maximum_indices per_sample_weights",
        bags,
        linear="grad",
    )
    yield from rows(
        "_embedding_bag_backward",
        "grad indices offsets offset2bag bag_size maximum_indices per_sample_weights",
        bags,
        linear="grad",
        ordered=True,
    )
