"""
Matrix products that can be cut into parts together with a collective, and the expected gain.

A product whose result is reduced is cut along a dim of its result. Products with a gathered operand are cut along a dim
that is not summed over. The dim must not be split over any axis, so that the parts have the placement of the whole.
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
"""The products that can be cut, the reductions of their results, and the views that merge dims into rows."""

MOST = 8
"""Largest number of parts."""

WORTH = 0.98
"""A site is cut only if its expected time is less than this fraction of the time of the uncut site."""


@dataclass(frozen=True)
class ReducedProduct:
    """A product whose result is reduced and has no other use."""

    collective: CollectiveOp
    product: AtenOp
    factor: str

    @property
    def size(self) -> int:
        """Size of the dim that is cut."""
        return self.product.rule().sizes[self.factor]

    @property
    def result_dim(self) -> int:
        """The dim along which the parts of the result are joined."""
        return self.product.rule().results[0].index((self.factor,))


@dataclass(frozen=True)
class GatheredProducts:
    """
    Products with a common gathered operand, in the same pass (forward or backward) as the gather.

    Args:
        dim: the dim of the gathered value that is cut; with `opened`, an index into these dims.
        factor: the factor of the products that is cut.
        view: the op that merges the leading dims of the gathered value into the rows of the products, if any.
        opened: the operand's shape with its rows divided into blocks, one for each part before the gather, so that it
            can be cut within the blocks.
        others: the other users of the whole value, in program order.
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
        """Whether the rows of the products are several dims where they are cut."""
        return self.view is not None or self.opened is not None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value that is gathered in parts."""
        return self.opened or shape_of(self.collective.operand)

    @property
    def size(self) -> int:
        """Size of the dim that is cut."""
        return self.shape[self.dim]


Site = ReducedProduct | GatheredProducts


def sites_of(flow: OpFlow) -> Iterator[Site]:
    """Yield the products that can be cut, with a collective whose result other ops wait for."""
    place = {op: at for at, op in enumerate(flow.block.ops)}
    taken: set[Operation] = set()
    for op in flow.of(CollectiveRole.INNER):
        step = op.step(sharding_of(op.operand), flow.mesh)
        if step.kind in REDUCED:
            site = _reduced(op, step)
        else:
            site = _gathered(op, step, flow, place) if step.kind is CollectiveKind.ALL_GATHER else None
        if site is None:
            continue
        products = site.products if isinstance(site, GatheredProducts) else (site.product,)
        if taken.isdisjoint(products):
            taken.update(products)
            yield site


def _reduced(op: CollectiveOp, step: Step) -> ReducedProduct | None:
    product = _product(op.operand)
    if product is None or not op.operand.has_one_use():
        return None
    for dim, factors in enumerate(product.rule().results[0]):
        if len(factors) == 1 and not step.target.dims[dim].axes and _is_whole(product, factors[0]):
            return ReducedProduct(op, product, factors[0])
    return None


def _gathered(op: CollectiveOp, step: Step, flow: OpFlow, place: dict[Operation, int]) -> GatheredProducts | None:
    site = _by_view(op, step, place) or _by_blocks(op, step, flow.mesh, place) or _direct(op, step, place)
    if site is None:
        return None
    own = {*site.products, *([site.view] if site.view is not None else [])}
    values = [site.collective.result, *([site.view.outs[0]] if site.view is not None else [])]
    users = {use.operation for value in values for use in value.uses} - own
    others = tuple(sorted(users, key=lambda user: place.get(user, -1)))
    # A user of the whole value in front of the last product would delay the products until all parts are gathered.
    if others and place.get(others[0], -1) < place[site.products[-1]]:
        return None
    return replace(site, others=others)


def _by_view(op: CollectiveOp, step: Step, place: dict[Operation, int]) -> GatheredProducts | None:
    shape = shape_of(op.operand)
    dims = [dim for dim in range(len(shape) - 1) if dim != step.dim and not _is_split(step, dim)]
    views = [user for user in {use.operation for use in op.result.uses} if isinstance(user, AtenOp)]
    for view in sorted((user for user in views if user in place), key=place.__getitem__):
        if dims and _is_rows(view, shape) and (products := _products_of(view.outs[0], 0, "i", op, place)):
            return GatheredProducts(op, tuple(products), max(dims, key=shape.__getitem__), "i", view=view)
    return None


def _by_blocks(op: CollectiveOp, step: Step, mesh: Mesh, place: dict[Operation, int]) -> GatheredProducts | None:
    shape, rows = shape_of(op.operand), step.source.dims[0]
    parts = mesh.parts(rows.axes)
    if len(shape) != 2 or step.dim != 0 or rows.offsets is not None or shape[0] % parts:
        return None
    if not (products := _products_of(op.result, 0, "i", op, place)):
        return None
    return GatheredProducts(op, tuple(products), 1, "i", opened=(parts, shape[0] // parts, shape[1]))


def _direct(op: CollectiveOp, step: Step, place: dict[Operation, int]) -> GatheredProducts | None:
    """Return products that take the gathered value unchanged, cut along a dim that is not gathered."""
    for dim in range(len(shape_of(op.operand))):
        for user in (use.operation for use in op.result.uses):
            product = _product(user.results[0]) if user.results else None
            if product is None or dim == step.dim or _is_split(step, dim):
                continue
            rule = product.rule()
            factors = rule.operands[list(product.args).index(op.result)][dim]
            if len(factors) == 1 and _in_result(rule, factors[0]):
                products = _products_of(op.result, dim, factors[0], op, place)
                if products:
                    return GatheredProducts(op, tuple(products), dim, factors[0])
    return None


def _products_of(value: SSAValue, dim: int, factor: str, like: Operation, place: dict[Operation, int]) -> list[AtenOp]:
    """Return the products in the same pass as `like` whose only operand with a factor is a value, in its dim `dim`."""
    products: list[AtenOp] = []
    for user in {use.operation for use in value.uses}:
        product = _product(user.results[0]) if user.results and user in place else None
        if product is None or (BACKWARD in product.attributes) != (BACKWARD in like.attributes):
            continue
        rule = product.rule()
        at = [index for index, arg in enumerate(product.args) if arg is value]
        having = [index for index, dims in enumerate(rule.operands) if any(factor in names for names in dims)]
        if len(at) == 1 and having == at and rule.operands[at[0]][dim] == (factor,) and _in_result(rule, factor):
            products.append(product)
    return sorted(products, key=place.__getitem__)


def _product(value: SSAValue) -> AtenOp | None:
    op = value.op if isinstance(value, OpResult) else None
    is_product = isinstance(op, AtenOp) and op.overload in PRODUCTS and op.signature is not None
    return op if isinstance(op, AtenOp) and is_product else None


def _is_rows(op: AtenOp, shape: Sequence[int]) -> bool:
    """Return whether an op merges all dims of a value but the last into rows."""
    rows = (math.prod(shape[:-1]), *shape[-1:])
    return op.overload in VIEWS and len(shape) > 2 and shape_of(op.outs[0]) == rows


def _in_result(rule: Rule, factor: str) -> bool:
    return (factor,) in rule.results[0]


def _is_split(step: Step, dim: int) -> bool:
    return bool(step.source.dims[dim].axes or step.target.dims[dim].axes)


def _is_whole(product: AtenOp, factor: str) -> bool:
    """Return whether a factor is alone in all dims that contain it, and split over no axis."""
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
        """Return the best number of parts for a site; 1 if it should not be cut."""
        whole = self.seconds(site, 1)
        counts = [parts for parts in (2, 4, MOST) if parts <= site.size]
        best = min(counts, key=lambda parts: self.seconds(site, parts), default=1)
        return best if best > 1 and self.seconds(site, best) < WORTH * whole else 1

    def seconds(self, site: Site, parts: int) -> float:
        """
        Return the expected seconds of a site in `parts` parts, including the copies that join the parts.

        Computation and communication proceed part by part on two streams. Other work until the result of a reduction is
        needed, or while an operand is gathered, hides as much communication. With several parts, each stream slows the
        other down.
        """
        interference = self.cluster.interference
        slower = (interference.compute, interference.communication) if parts > 1 else (1.0, 1.0)
        work = communication_of(site.collective, self.flow.mesh)
        size = work.whole_bytes / parts
        communication = self.cluster.collective_seconds(work.kind, work.axes, size, work.method) * slower[1]
        compute = self._compute(site, parts) * slower[0]
        compute += self.cluster.start_seconds(work.kind, work.axes, size) if parts > 1 else 0.0
        ready, used = self.flow.ready(site.collective), self.flow.first_use(site.collective)
        ops = itertools.islice(self.flow.position, ready + 1, used)
        hiding = sum(map(self._times.seconds, ops))
        if isinstance(site, ReducedProduct):
            late = _behind([compute] * parts, [communication] * parts)
            return parts * compute + max(late - parts * compute - hiding, 0.0) + self._copy(site, parts)
        begins = [max(at * communication - hiding, 0.0) for at in range(1, parts + 1)]
        done = 0.0
        for begin in begins:
            done = max(done, begin) + compute
        return done + self._copy(site, parts)

    def _compute(self, site: Site, parts: int) -> float:
        products = (site.product,) if isinstance(site, ReducedProduct) else site.products
        total = 0.0
        for product in products:
            assert product.signature is not None
            turns = Turns(parts, site.factor)
            total += seconds_by_signature(product, (product.signature,), self.cluster, turns)[0] / parts
        return total

    def _copy(self, site: Site, parts: int) -> float:
        """Return the seconds of joining the parts of each result, and of the gathered value if it has other users."""
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
    """Return the end of the second of two streams, whose parts each wait for the same part of the first stream."""
    first = second = 0.0
    for a, b in zip(before, after, strict=True):
        first += a
        second = max(first, second) + b
    return second
