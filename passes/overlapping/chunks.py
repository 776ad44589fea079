"""
Matrix products that a collective can be cut in parts with, and what that is expected to gain.

A product whose result is reduced is cut along a dim of its result, the operands of products that are gathered along one
that is not summed over: a dim that is split over no axis, so that parts are placed as the whole is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from xdsl.ir import Operation, OpResult, SSAValue

from ...dialects.aten import AtenOp
from ...dialects.compute import shape_of
from ...dialects.spmd import CollectiveOp
from ...dialects.step import BACKWARD, sharding_of
from ...ir.cluster import Cluster
from ...ir.collectives import CollectiveKind, Step
from ...ir.mesh import Mesh
from ...ir.op_cost import op_seconds as device_seconds
from ...ir.rules import Rule
from ..analysis.compute import Turns, copying, local_bytes, seconds_by_signature
from ..analysis.durations import communication_of
from .buckets import BucketTraffic
from .flow import CollectiveRole, OpFlow

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
REDUCED = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)
VIEWS = ("view", "_unsafe_view")
"""The products that are cut, the reductions of their results, and the views that make rows."""

MOST = 8
"""Into how many parts something is cut at most."""

WORTH = 0.98
"""What part of its time something cut may take at most, for it to be cut."""


@dataclass(frozen=True)
class ReducedProduct:
    """A product whose result is reduced, and used by nothing else."""

    collective: CollectiveOp
    product: AtenOp
    factor: str

    @property
    def size(self) -> int:
        """Of what is cut."""
        return self.product.rule().sizes[self.factor]

    @property
    def result_dim(self) -> int:
        """Along which the parts of the result are put together."""
        return self.product.rule().results[0].index((self.factor,))


@dataclass(frozen=True)
class GatheredProducts:
    """
    Products that have an operand which is gathered, each of them in the pass, forward or backward, in which it is.

    Args:
        dim: of the gathered value, along which it is cut: of one that is `opened` in blocks of rows, by the parts that
            there are before the gather, that of the rows in a block.
        factor: of the products.
        view: by which the leading dims of the gathered value become the rows of the products.
        others: what uses the whole value, the first one first.
    """

    collective: CollectiveOp
    products: tuple[AtenOp, ...]
    dim: int
    factor: str
    view: AtenOp | None = None
    opened: tuple[int, ...] | None = None
    others: tuple[Operation, ...] = ()

    @property
    def by_rows(self) -> bool:
        """Whether the products are of rows that have several dims where they are cut."""
        return self.view is not None or self.opened is not None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what is gathered in parts."""
        return self.opened or shape_of(self.collective.operand)

    @property
    def size(self) -> int:
        """Of what is cut."""
        return self.shape[self.dim]


Site = ReducedProduct | GatheredProducts


def sites_of(flow: OpFlow) -> Iterator[Site]:
    """The products that can be cut, and are with a collective that something waits for."""
    place = {op: at for at, op in enumerate(flow.block.ops)}
    taken: set[Operation] = set()
    for op in flow.of(CollectiveRole.INNER):
        step = op.step(sharding_of(op.operand), flow.mesh)
        if step.kind in REDUCED:
            found = _reduced(op, step)
        else:
            found = _gathered(op, step, flow, place) if step.kind is CollectiveKind.ALL_GATHER else None
        if found is None:
            continue
        products = found.products if isinstance(found, GatheredProducts) else (found.product,)
        if taken.isdisjoint(products):
            taken.update(products)
            yield found


def _reduced(op: CollectiveOp, step: Step) -> ReducedProduct | None:
    product = _product(op.operand)
    if product is None or not op.operand.has_one_use():
        return None
    for dim, factors in enumerate(product.rule().results[0]):
        if len(factors) == 1 and not step.target.dims[dim].axes and _is_whole(product, factors[0]):
            return ReducedProduct(op, product, factors[0])
    return None


def _gathered(op: CollectiveOp, step: Step, flow: OpFlow, place: dict[Operation, int]) -> GatheredProducts | None:
    found = _by_view(op, step, place) or _by_blocks(op, step, flow.mesh, place) or _direct(op, step, place)
    if found is None:
        return None
    others = _others(found, place)
    # Who needs the whole earlier than the products would wait for all parts before these begin.
    if others and place.get(others[0], -1) < place[found.products[-1]]:
        return None
    return replace(found, others=others)


def _by_view(op: CollectiveOp, step: Step, place: dict[Operation, int]) -> GatheredProducts | None:
    """Those of rows that a view makes, cut along a leading dim that is not gathered."""
    shape = shape_of(op.operand)
    dims = [dim for dim in range(len(shape) - 1) if dim != step.dim and not _is_split(step, dim)]
    views = [user for user in {use.operation for use in op.result.uses} if isinstance(user, AtenOp)]
    for view in sorted((user for user in views if user in place), key=place.__getitem__):
        if dims and _is_rows(view, shape) and (products := _products_of(view.outs[0], 0, "i", op, place)):
            return GatheredProducts(op, tuple(products), max(dims, key=shape.__getitem__), "i", view=view)
    return None


def _by_blocks(op: CollectiveOp, step: Step, mesh: Mesh, place: dict[Operation, int]) -> GatheredProducts | None:
    """Those of rows that are gathered, cut within the part of each device."""
    shape, rows = shape_of(op.operand), step.source.dims[0]
    parts = mesh.parts(rows.axes)
    if len(shape) != 2 or step.dim != 0 or rows.offsets is not None or shape[0] % parts:
        return None
    if not (products := _products_of(op.result, 0, "i", op, place)):
        return None
    return GatheredProducts(op, tuple(products), 1, "i", opened=(parts, shape[0] // parts, shape[1]))


def _direct(op: CollectiveOp, step: Step, place: dict[Operation, int]) -> GatheredProducts | None:
    """Those that take the gathered value as it is, cut along a dim that is not gathered."""
    for dim in range(len(shape_of(op.operand))):
        for user in (use.operation for use in op.result.uses):
            product = _product(user.results[0]) if user.results else None
            if product is None or dim == step.dim or _is_split(step, dim):
                continue
            rule = product.rule()
            factors = rule.operands[list(product.args).index(op.result)][dim]
            if len(factors) == 1 and _in_result(rule, factors[0]):
                found = _products_of(op.result, dim, factors[0], op, place)
                if found:
                    return GatheredProducts(op, tuple(found), dim, factors[0])
    return None


def _products_of(value: SSAValue, dim: int, factor: str, like: Operation, place: dict[Operation, int]) -> list[AtenOp]:
    """The products, in forward or backward as `like`, of which a value is the only operand with a factor, its `dim`."""
    found: list[AtenOp] = []
    for user in {use.operation for use in value.uses}:
        product = _product(user.results[0]) if user.results and user in place else None
        if product is None or (BACKWARD in product.attributes) != (BACKWARD in like.attributes):
            continue
        rule = product.rule()
        at = [index for index, arg in enumerate(product.args) if arg is value]
        having = [index for index, dims in enumerate(rule.operands) if any(factor in each for each in dims)]
        if len(at) == 1 and having == at and rule.operands[at[0]][dim] == (factor,) and _in_result(rule, factor):
            found.append(product)
    return sorted(found, key=place.__getitem__)


def _others(site: GatheredProducts, place: dict[Operation, int]) -> tuple[Operation, ...]:
    """What else uses the gathered value, or its view."""
    mine = {*site.products, *([site.view] if site.view is not None else [])}
    values = [site.collective.result, *([site.view.outs[0]] if site.view is not None else [])]
    users = {use.operation for value in values for use in value.uses} - mine
    return tuple(sorted(users, key=lambda user: place.get(user, -1)))


def _product(value: SSAValue) -> AtenOp | None:
    op = value.op if isinstance(value, OpResult) else None
    is_one = isinstance(op, AtenOp) and op.overload in PRODUCTS and op.signature is not None
    return op if isinstance(op, AtenOp) and is_one else None


def _is_rows(op: AtenOp, shape: Sequence[int]) -> bool:
    """Whether an op makes rows of all dims of a value but the last."""
    rows = (math.prod(shape[:-1]), *shape[-1:])
    return op.overload in VIEWS and len(shape) > 2 and shape_of(op.outs[0]) == rows


def _in_result(rule: Rule, factor: str) -> bool:
    return (factor,) in rule.results[0]


def _is_split(step: Step, dim: int) -> bool:
    return bool(step.source.dims[dim].axes or step.target.dims[dim].axes)


def _is_whole(product: AtenOp, factor: str) -> bool:
    """Whether a factor is alone in all dims that it is in, and split over no axis."""
    rule, signature = product.rule(), product.signature
    assert signature is not None
    values = [*zip(rule.operands, signature.operands, strict=True), *zip(rule.results, signature.results, strict=True)]
    dims = [(dim, spread) for value, sharding in values for dim, spread in zip(value, sharding.dims, strict=True)]
    return all(dim == (factor,) and not spread.axes for dim, spread in dims if factor in dim)


class ChunkTimes:
    """The expected seconds of sites on a cluster."""

    def __init__(self, flow: OpFlow, cluster: Cluster) -> None:
        self.flow, self.cluster = flow, cluster
        self._times = BucketTraffic(flow, cluster, None).times

    def best_parts(self, site: Site) -> int:
        """Into how many parts a site is best cut; 1 for none."""
        whole = self.seconds(site, 1)
        counts = [parts for parts in (2, 4, MOST) if parts <= site.size]
        best = min(counts, key=lambda parts: self.seconds(site, parts), default=1)
        return best if best > 1 and self.seconds(site, best) < WORTH * whole else 1

    def gain(self, site: Site) -> float:
        """The seconds that it is expected to take less so."""
        parts = self.best_parts(site)
        return self.seconds(site, 1) - self.seconds(site, parts) if parts > 1 else 0.0

    def seconds(self, site: Site, parts: int) -> float:
        """
        How long a site takes in so many parts, the copies included that put parts together.

        Both streams go on, part by part; what else there is to do until the result of a reduction is needed, or while
        an operand is gathered, hides as much of it. Where there are several parts, each stream slows the other down.
        """
        interference = self.cluster.interference
        slower = (interference.compute, interference.communication) if parts > 1 else (1.0, 1.0)
        compute, communication = self._compute(site, parts) * slower[0], self._communication(site, parts) * slower[1]
        compute += self._start(site, parts) if parts > 1 else 0.0
        beside = self._beside(site)
        if isinstance(site, ReducedProduct):
            late = _behind([compute] * parts, [communication] * parts)
            return parts * compute + max(late - parts * compute - beside, 0.0) + self._copy(site, parts)
        begins = [max(at * communication - beside, 0.0) for at in range(1, parts + 1)]
        return _after(begins, compute) + self._copy(site, parts)

    def _compute(self, site: Site, parts: int) -> float:
        products = (site.product,) if isinstance(site, ReducedProduct) else site.products
        total = 0.0
        for product in products:
            assert product.signature is not None
            turns = Turns(parts, site.factor)
            total += seconds_by_signature(product, (product.signature,), self.cluster, turns)[0] / parts
        return total

    def _communication(self, site: Site, parts: int) -> float:
        work = communication_of(site.collective, self.flow.mesh)
        return self.cluster.collective_seconds(work.kind, work.axes, work.whole_bytes / parts, work.method)

    def _start(self, site: Site, parts: int) -> float:
        work = communication_of(site.collective, self.flow.mesh)
        return self.cluster.start_seconds(work.kind, work.axes, work.whole_bytes / parts)

    def _beside(self, site: Site) -> float:
        """Seconds of other work between the start of the collective and what needs its result."""
        ready, used = self.flow.ready(site.collective), self.flow.first_use(site.collective)
        ops = itertools.islice(self.flow.position, ready + 1, used)
        return sum(map(self._times.seconds, ops))

    def _copy(self, site: Site, parts: int) -> float:
        """Seconds of putting parts together: of each result, and of what is gathered where others need it whole."""
        if parts == 1:
            return 0.0
        mesh = self.flow.mesh
        if isinstance(site, ReducedProduct):
            values = [site.collective.result]
        else:
            values = [product.outs[0] for product in site.products]
            values += [site.collective.result] if site.others else []
        moved = sum(2 * local_bytes(value, sharding_of(value), mesh) for value in values)
        return max(device_seconds(device, copying("float32", moved)) for device in self.cluster.kinds_used)


def _behind(before: Sequence[float], after: Sequence[float]) -> float:
    """When the second of two streams is done, each part of which waits for that of the first."""
    first = second = 0.0
    for a, b in zip(before, after, strict=True):
        first += a
        second = max(first, second) + b
    return second


def _after(begins: Sequence[float], each: float) -> float:
    """When the last of several jobs of the same length is done that may not begin before these times."""
    done = 0.0
    for begin in begins:
        done = max(done, begin) + each
    return done
