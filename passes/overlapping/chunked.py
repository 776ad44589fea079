"""Rewriting of products and their collectives in parts: slices of operands, and ops that join results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from ...dialects.aten import AtenOp
from ...dialects.compute import SIGNATURE, plain_attribute, shape_of
from ...dialects.sharding_attrs import SignatureAttr
from ...dialects.spmd import COLLECTIVES, CollectiveOp
from ...dialects.step import sharding_of
from ...ir.collectives import Step, find_step
from ...ir.mesh import Mesh
from ...ir.sharding import DimSharding, Sharding, even_offsets, with_dim
from ...ir.signatures import Signature
from ..step.new_ops import like
from .chunks import GatheredProducts, ReducedProduct, Site

_PIN = "spmd.pin"
"""The attribute of a user's decision on a whole op, which has been obeyed and does not apply to parts."""


def write_chunks(site: Site, parts: int, mesh: Mesh) -> bool:
    """
    Cut a site into parts, and return whether that was possible.

    It is impossible if a view of a part cannot have the sharding that the same view of the whole has.
    """
    writer = _Writer(mesh)
    try:
        if isinstance(site, ReducedProduct):
            writer.reduced(site, parts)
        else:
            writer.gathered(site, parts)
    except (VerifyException, ValueError):
        writer.undo()
        return False
    writer.finish()
    return True


class _Writer:
    """The ops of one site, which take effect in `finish`."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._made: list[Operation] = []
        self._instead: list[tuple[SSAValue, SSAValue]] = []
        self._users: list[tuple[SSAValue, SSAValue, frozenset[Operation]]] = []
        self._dead: list[Operation] = []

    def reduced(self, site: ReducedProduct, parts: int) -> None:
        """Write each part of the product with its own reduction, and join the results."""
        op = site.collective
        bounds = enumerate(_bounds(site.size, parts))
        products = [self._part_of(site.product, site.factor, *bound, {}, op, at) for at, bound in bounds]
        reduced = [self._collective(op, part, None, op, at) for at, part in enumerate(products)]
        whole = self._joined(reduced, site.result_dim, site.collective, site.collective.result.name_hint)
        self._replace(site.collective.result, whole)
        self._dead += [site.collective, site.product]

    def gathered(self, site: GatheredProducts, parts: int) -> None:
        """Write a gather of each part, and the products of each part."""
        op = site.collective
        bounds = list(_bounds(site.size, parts))
        source, step = op.operand, None
        if site.opened is not None:
            before = sharding_of(source)
            spread = Sharding((before.dims[0], DimSharding(()), *before.dims[1:]), before.partial)
            source = self._view(source, site.opened, spread, op, f"{_hint(source)}.blocks")
            step = self._step_of(op, source)
        gathered: list[SSAValue] = []
        for at, (begin, end) in enumerate(bounds):
            part = self._slice(source, site.dim, begin, end, op, f"{_hint(op.operand)}.part{at}")
            gathered.append(self._collective(op, part, step, op, at))
        rows: dict[int, SSAValue] = {}
        for product in site.products:
            results: list[SSAValue] = []
            for at, (begin, end) in enumerate(bounds):
                if not site.by_rows:
                    operand: dict[SSAValue, SSAValue] = {op.result: gathered[at]}
                    results.append(self._part_of(product, site.factor, begin, end, operand, product, at))
                    continue
                if at not in rows:
                    rows[at] = self._rows(gathered[at], site.products[0])
                taken = op.result if site.view is None else site.view.outs[0]
                done = self._part_of(product, site.factor, 0, shape_of(rows[at])[0], {taken: rows[at]}, product, at)
                results.append(self._unrolled(done, gathered[at], product))
            self._put_together(site, product, results)
        self._for_others(site, gathered)
        self._dead += [*reversed(site.products), *([site.view] if site.view is not None else []), op]

    def undo(self) -> None:
        for op in reversed(self._made):
            op.detach()
            op.erase()

    def finish(self) -> None:
        """Replace the old values in their users, and erase the ops that have no uses left."""
        for old, new in self._instead:
            old.replace_all_uses_with(new)
        for old, new, users in self._users:
            for use in [use for use in old.uses if use.operation in users]:
                use.operation.operands[use.index] = new
        for op in self._dead:
            if not any(result.first_use is not None for result in op.results):
                op.detach()
                op.erase()

    def _put_together(self, site: GatheredProducts, product: AtenOp, made: Sequence[SSAValue]) -> None:
        result = product.outs[0]
        if not site.by_rows:
            dim = product.rule().results[0].index((site.factor,))
            self._replace(result, self._joined(made, dim, product, result.name_hint))
            return
        apart = self._joined(made, site.dim, product, f"{_hint(result)}.apart")
        self._replace(result, self._view(apart, shape_of(result), sharding_of(result), product, _hint(result)))

    def _for_others(self, site: GatheredProducts, gathered: Sequence[SSAValue]) -> None:
        if not site.others:
            return
        op, first, others = site.collective, site.others[0], frozenset(site.others)
        whole = self._joined(gathered, site.dim, first, op.result.name_hint, like_op=op)
        if site.opened is not None:
            whole = self._view(whole, shape_of(op.result), op.sharding, first, _hint(op.result), like_op=op)
        self._users.append((op.result, whole, others))
        if site.view is not None and any(use.operation in others for use in site.view.outs[0].uses):
            rows = site.view.outs[0]
            view = self._view(whole, shape_of(rows), sharding_of(rows), first, _hint(rows), like_op=site.view)
            self._users.append((rows, view, others))

    def _step_of(self, op: CollectiveOp, opened: SSAValue) -> Step:
        source = sharding_of(opened)
        target = with_dim(source, 0, op.sharding.dims[0])
        step = find_step(op.KIND, source, target, self.mesh)
        if step is None:
            raise ValueError(f"no {op.KIND} converts {source} to {target}")
        return step

    def _rows(self, gathered: SSAValue, before: Operation) -> SSAValue:
        shape, spread = shape_of(gathered), sharding_of(gathered)
        rows = Sharding((spread.dims[0], spread.dims[-1]), spread.partial)
        return self._view(gathered, (math.prod(shape[:-1]), shape[-1]), rows, before, f"{_hint(gathered)}.rows")

    def _unrolled(self, made: SSAValue, gathered: SSAValue, before: Operation) -> SSAValue:
        """Return a product of rows, viewed with the dims that the rows were merged from."""
        shape, spread, rows = shape_of(gathered), sharding_of(gathered), sharding_of(made)
        apart = Sharding((*spread.dims[:-1], rows.dims[-1]), rows.partial)
        return self._view(made, (*shape[:-1], shape_of(made)[-1]), apart, before, f"{_hint(made)}.apart")

    def _part_of(
        self,
        product: AtenOp,
        factor: str,
        begin: int,
        end: int,
        given: dict[SSAValue, SSAValue],
        before: Operation,
        at: int,
    ) -> SSAValue:
        """Return a product of a part of a factor; operands are `given`, or sliced if they have the factor."""
        rule = product.rule()
        operands: list[SSAValue] = []
        for value, dims in zip(product.args, rule.operands, strict=True):
            if value in given:
                operands.append(given[value])
            elif (factor,) in dims:
                name = f"{_hint(value)}.part{at}"
                operands.append(self._slice(value, dims.index((factor,)), begin, end, before, name))
            else:
                operands.append(value)
        result = product.outs[0]
        dim, signature = rule.results[0].index((factor,)), product.signature
        assert signature is not None
        shape = _resized(shape_of(result), dim, end - begin)
        arguments = {n: a for n, a in product.attributes.items() if "." not in n}
        hint = f"{_hint(result)}.part{at}"
        return self._op(product.overload, operands, shape, signature, before, hint, arguments, product)

    def _slice(self, value: SSAValue, dim: int, begin: int, end: int, before: Operation, hint: str) -> SSAValue:
        spread, shape = sharding_of(value), _resized(shape_of(value), dim, end - begin)
        bounds = {"dim": dim, "start": begin, "end": end}
        return self._op("slice.Tensor", [value], shape, Signature((spread,), (spread,)), before, hint, _plain(bounds))

    def _joined(
        self,
        parts: Sequence[SSAValue],
        dim: int,
        before: Operation,
        hint: str | None,
        like_op: Operation | None = None,
    ) -> SSAValue:
        spread, shape = sharding_of(parts[0]), shape_of(parts[0])
        whole = _resized(shape, dim, sum(shape_of(part)[dim] for part in parts))
        signature = Signature((spread,) * len(parts), (spread,))
        return self._op("cat", parts, whole, signature, before, hint or "joined", _plain({"dim": dim}), like_op)

    def _view(
        self,
        value: SSAValue,
        shape: Sequence[int],
        spread: Sharding,
        before: Operation,
        hint: str,
        like_op: Operation | None = None,
    ) -> SSAValue:
        signature = Signature((sharding_of(value),), (spread,))
        return self._op("view", [value], shape, signature, before, hint, _plain({"size": list(shape)}), like_op)

    def _collective(
        self, op: CollectiveOp, operand: SSAValue, step: Step | None, before: Operation, at: int
    ) -> SSAValue:
        step = step or op.step(sharding_of(op.operand), self.mesh)
        method = op.method.data if op.method is not None else None
        mesh_name = op.out_sharding.data.mesh
        new = COLLECTIVES[op.KIND](operand, mesh_name, step, method=method, regather=op.regather is not None)
        new.location, new.result.name_hint = op.location, f"{_hint(op.result)}.part{at}"
        new.attributes |= op.attributes
        self._insert(new, before)
        return new.result

    def _op(
        self,
        name: str,
        operands: Sequence[SSAValue],
        shape: Sequence[int],
        signature: Signature,
        before: Operation,
        hint: str,
        given: Mapping[str, Attribute],
        like_op: Operation | None = None,
    ) -> SSAValue:
        model = like_op or before
        others = {n: a for n, a in model.attributes.items() if "." in n and n not in (SIGNATURE, _PIN)}
        new = like(model, name, operands, [shape], hint, **given)
        new.attributes |= {**others, SIGNATURE: SignatureAttr.of(self.mesh.name, signature)}
        self._insert(new, before)
        return new.outs[0]

    def _insert(self, new: Operation, before: Operation) -> None:
        block = before.parent
        assert block is not None
        block.insert_op_before(new, before)
        self._made.append(new)
        new.verify()

    def _replace(self, old: SSAValue, new: SSAValue) -> None:
        self._instead.append((old, new))


def _bounds(size: int, parts: int) -> Iterator[tuple[int, int]]:
    return pairwise(even_offsets(size, parts))


def _resized(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])


def _plain(given: Mapping[str, object]) -> dict[str, Attribute]:
    return {name: plain_attribute(value) for name, value in given.items()}


def _hint(value: SSAValue) -> str:
    return value.name_hint or "value"
