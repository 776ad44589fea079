"""Sort the elements of each row of the batch separately, if a step sorts all rows together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from ..dialects.aten import AtenOp
from ..dialects.compute import ComputeOp, shape_of
from ..ir.mesh import Mesh
from .step.batch_order import depends_on_place
from .step.batch_places import BatchPlace, stands_alone
from .step.requirements import require_undecided
from .step.row_sorts import (
    Twin,
    TwinMaker,
    copied,
    counting,
    divided,
    ends_of,
    grouped,
    inverse_of,
    picked,
    put,
    sorted_apart,
)
from .step.sorted_lists import FACTORIES, RENAMED, SORTS, divisor_of, ends_count, note_places, repeats_of
from .step.step_view import StepView, batch_rows, step_functions


@dataclass(frozen=True)
class SortWithinRowsPass(ModulePass):
    """
    Let each row of the batch sort its own elements, if a step sorts all rows together and its results do not depend on
    the rows that elements are from.

    A mixture of experts that drops no token sorts the tokens of the whole batch by expert, multiplies each expert's
    tokens by its matrix, and restores their order. Tokens do not depend on each other, so each sequence can do this
    separately. The products are then products of several lists, `grouped_bmm`, which data parallelism and micro-batches
    can divide. A sort with other uses, such as the largest of all elements, stays. Ops on the lists of rows are marked,
    so that `sort-across-rows` can join the lists that no strategy divides.

    Requires: a step without signatures in which the batch leads its dims (`make-batch-major`).
    Ensures: the step computes the same values, up to the order of summation.

    Before:
    ```mlir
    func.func @step(%x: tensor<8x6xf32> {train.batch = "0"}, %e: tensor<8x2xi64> {train.batch = "1"},
        %w: tensor<4x6x5xf32>) -> tensor<f32> {
      %choices = aten.view %e {size = [16 : i64]} : (tensor<8x2xi64>) -> tensor<16xi64>
      %keys, %order = aten.sort %choices : (tensor<16xi64>) -> (tensor<16xi64>, tensor<16xi64>)
      %numbers = aten.histc %keys {bins = 4 : i64, max = 3 : i64} : (tensor<16xi64>) -> tensor<4xi64>
      %ends = aten.cumsum %numbers {dim = 0 : i64} : (tensor<4xi64>) -> tensor<4xi64>
      %token = aten.floor_divide %order {other = 2 : i64} : (tensor<16xi64>) -> tensor<16xi64>
      %sent = aten.index.Tensor %x, %token : (tensor<8x6xf32>, tensor<16xi64>) -> tensor<16x6xf32>
      %y = aten.grouped_mm %sent, %w, %ends
        : (tensor<16x6xf32>, tensor<4x6x5xf32>, tensor<4xi64>) -> tensor<16x5xf32>
      %s = aten.sum %y : (tensor<16x5xf32>) -> tensor<f32>
      func.return %s : tensor<f32>
    }
    ```

    After:
    ```mlir
    func.func @step(%x: tensor<8x6xf32> {train.batch = "0"}, %e: tensor<8x2xi64> {train.batch = "1"},
        %w: tensor<4x6x5xf32>) -> tensor<f32> {
      %choices = aten.view %e {size = [16 : i64]} : (tensor<8x2xi64>) -> tensor<16xi64>
      %choices.by_row = aten.view %choices {size = [8 : i64, 2 : i64]} : (tensor<16xi64>) -> tensor<8x2xi64>
      %keys.by_row, %keys.places.by_row = aten.sort %choices.by_row {dim = 1 : i64, train.by_row}
        : (tensor<8x2xi64>) -> (tensor<8x2xi64>, tensor<8x2xi64>)
      %keys = aten.view %keys.by_row {size = [16 : i64]} : (tensor<8x2xi64>) -> tensor<16xi64>
      %keys.places = aten.view %keys.places.by_row {size = [16 : i64]} : (tensor<8x2xi64>) -> tensor<16xi64>
      %numbers = aten.histc %keys {bins = 4 : i64, max = 3 : i64} : (tensor<16xi64>) -> tensor<4xi64>
      %ends = aten.cumsum %numbers {dim = 0 : i64} : (tensor<4xi64>) -> tensor<4xi64>
      %token = aten.floor_divide %keys.places {other = 2 : i64} : (tensor<16xi64>) -> tensor<16xi64>
      %x.by_row = aten.view %x {size = [8 : i64, 1 : i64, 6 : i64]} : (tensor<8x6xf32>) -> tensor<8x1x6xf32>
      %token.by_row = aten.view %token {size = [8 : i64, 2 : i64]} : (tensor<16xi64>) -> tensor<8x2xi64>
      %sent.by_row = aten.take_rows %x.by_row, %token.by_row {train.by_row}
        : (tensor<8x1x6xf32>, tensor<8x2xi64>) -> tensor<8x2x6xf32>
      %groups = aten.arange {end = 4 : i64, dtype = i64} : () -> tensor<4xi64>
      %keys.column = aten.view %keys.by_row {size = [8 : i64, 2 : i64, 1 : i64]}
        : (tensor<8x2xi64>) -> tensor<8x2x1xi64>
      %in_group = aten.eq.Tensor %keys.column, %groups {train.by_row}
        : (tensor<8x2x1xi64>, tensor<4xi64>) -> tensor<8x2x4xi1>
      %numbers.by_row = aten.sum.dim_IntList %in_group {dim = [1 : i64], train.by_row}
        : (tensor<8x2x4xi1>) -> tensor<8x4xi64>
      %ends.by_row = aten.cumsum %numbers.by_row {dim = 1 : i64, train.by_row} : (tensor<8x4xi64>) -> tensor<8x4xi64>
      %y.by_row = aten.grouped_bmm %sent.by_row, %w, %ends.by_row {train.by_row}
        : (tensor<8x2x6xf32>, tensor<4x6x5xf32>, tensor<8x4xi64>) -> tensor<8x2x5xf32>
      %y = aten.view %y.by_row {size = [16 : i64, 5 : i64]} : (tensor<8x2x5xf32>) -> tensor<16x5xf32>
      %s = aten.sum %y : (tensor<16x5xf32>) -> tensor<f32>
      func.return %s : tensor<f32>
    }
    ```

    Source: dropless mixtures: Gale et al., MegaBlocks (2022), 4; Jiang et al., Mixtral (2024).
    """

    name = "sort-within-rows"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite every step function of the module that has a batch."""
        for func in step_functions(op):
            require_undecided(func, self.name)
            view = StepView(func, Mesh(()))
            rows = batch_rows(view.inputs)
            if rows is not None and rows > 1 and any(_is_sort(compute) for compute in view.ops):
                _RowSorts(func, view, rows).run()


def _is_sort(op: Operation) -> bool:
    return isinstance(op, AtenOp) and op.overload in SORTS and len(shape_of(op.args[0])) == 1


class _RowSorts:
    """A walk over a step that creates twins of values, and replaces the uses of the values at its end."""

    def __init__(self, func: FuncOp, view: StepView, rows: int) -> None:
        self.func, self.maker = func, TwinMaker(func.body.block, rows)
        self.twins: dict[SSAValue, Twin] = {}
        self.places: dict[SSAValue, BatchPlace] = {}
        self.ends: dict[tuple[AtenOp, int], SSAValue] = {}
        """By sort and number of groups, the ends of the groups among the sorted keys of each row of the batch."""
        self.failed: set[AtenOp] = set()
        """The sorts that stay because of their uses."""
        self.closed: list[tuple[SSAValue, SSAValue, frozenset[AtenOp]]] = []
        """Pairs of values that are interchangeable if some sorts are rewritten, with these sorts."""
        for item in view.inputs:
            if item.rows == rows:
                self.places[item.argument] = BatchPlace(0, rows)

    def run(self) -> None:
        """Walk over the step, then replace values by their twins."""
        for op in list(self.func.body.block.ops):
            self._visit(op)
        for before, after, sorts in self.closed:
            if self.failed.isdisjoint(sorts):
                before.replace_all_uses_with(after)
        replaced = (value.owner for value in (*self.twins, *(before for before, _, _ in self.closed)))
        unused = {*self.maker.made, *replaced}
        for op in reversed(list(self.func.body.block.ops)):
            if op in unused and all(result.first_use is None for result in op.results):
                op.detach()
                op.erase()

    def _visit(self, op: Operation) -> None:
        sorts = frozenset[AtenOp]().union(*(self.twins[value].sorts for value in op.operands if value in self.twins))
        if isinstance(op, AtenOp) and op.overload not in FACTORIES and (sorts or self._can_sort(op)):
            twins = self._twins_of(op)
            if twins is None:
                self.failed |= sorts
            else:
                self._note(op, twins, sorts)
        elif sorts and not (isinstance(op, AtenOp) and op.overload in FACTORIES):
            self.failed |= sorts
        if isinstance(op, ComputeOp):
            note_places(self.places, op, self.maker.rows)

    def _note(self, op: AtenOp, found: Sequence[Twin | SSAValue], sorts: frozenset[AtenOp]) -> None:
        for value, twin in zip(op.outs, found, strict=True):
            if isinstance(twin, SSAValue):
                self.closed.append((value, twin, sorts))
            elif twin.order is None and twin.is_plain:
                self.closed.append((value, twin.value, twin.sorts))
                self.places[value] = BatchPlace(0, self.maker.rows, 1, shape_of(value)[0] // self.maker.rows)
            else:
                self.twins[value] = twin

    def _can_sort(self, op: AtenOp) -> bool:
        return _is_sort(op) and self._own(op.args[0]) is not None

    def _own(self, value: SSAValue) -> Twin | None:
        """Return the twin of a list in its own order, or None unless rows of the batch have consecutive elements."""
        place = self.places.get(value)
        if value in self.twins or place is None or place.dim != 0:
            return None
        return Twin(value, None, None, frozenset())

    def _twins_of(self, op: AtenOp) -> Sequence[Twin | SSAValue] | None:
        """Return the twins of an op's results, or None if the results depend on the rows that elements are from."""
        special = _SPECIAL.get(op.overload)
        if special is not None and (twins := special(self, op)) is not None:
            return twins
        return self._alike(op)

    def sort(self, op: AtenOp) -> Sequence[Twin] | None:
        """Rewrite a sort of a list, or a sort of the places from another sort, which computes the inverse."""
        twin = self.twins.get(op.args[0])
        if twin is None:
            return sorted_apart(self.maker, op, op.args[0]) if self._can_sort(op) else None
        inner = twin.order
        if inner is None or op.args[0] is not inner.outs[-1] or op.arguments().get("descending"):
            return None
        inverse = inverse_of(self.maker, op, twin)
        # The sorted values are 0, 1, 2, ..., which have no twin; they must be unused.
        is_used = len(op.outs) > 1 and op.outs[0].first_use is not None
        return None if is_used else [inverse] * len(op.outs)

    def pick(self, op: AtenOp) -> Sequence[Twin] | None:
        """Rewrite `x[places]` for a list x that the places refer to."""
        source, places = op.args[0], self.twins.get(op.args[1]) if len(op.args) == 2 else None
        if places is None or places.target is None or op.arguments().get("dim", 0) != 0:
            return None
        order, n = places.target
        if len(shape_of(places.value)) != 1 or shape_of(source)[0] != n * self.maker.rows:
            return None
        repeats = repeats_of(source)
        if repeats is not None and order is None and n % repeats == 0:
            return [divided(self.maker, op, places, repeats)]
        twin = self.twins.get(source) or self._own(source)
        return [picked(self.maker, op, twin, places)] if twin is not None and twin.order is order else None

    def put(self, op: AtenOp) -> Sequence[Twin] | None:
        """Rewrite `zeros[places] = values` or `+= values` for values in the order of the places."""
        if len(op.args) != 3:
            return None
        into, places, values = op.args[0], self.twins.get(op.args[1]), op.args[2]
        blank = into.owner
        if places is None or places.target is None or not isinstance(blank, AtenOp) or blank.overload not in FACTORIES:
            return None
        length = shape_of(places.value)
        if len(length) != 1 or shape_of(into)[0] != places.target[1] * self.maker.rows:
            return None
        if shape_of(values) != (*length, *shape_of(into)[1:]) or op.arguments().get("dim", 0) != 0:
            return None
        twin = self.twins.get(values) or self._own(values)
        if twin is None and places.order is not None and repeats_of(values) == 1:
            twin = counting(self.maker, op, places.order, length[0])
        if twin is None or twin.order is not places.order:
            return None
        adds = op.overload == "index_add" or bool(op.arguments().get("accumulate", False))
        return [put(self.maker, op, into, places, twin, adds=adds)]

    def divide(self, op: AtenOp) -> Sequence[Twin] | None:
        """Rewrite the division of indices of expert choices that gives the indices of their tokens."""
        places, by = self.twins.get(op.args[0]), divisor_of(op)
        if places is None or places.target is None or by is None:
            return None
        order, n = places.target
        return [divided(self.maker, op, places, by)] if order is None and n % by == 0 else None

    def products(self, op: AtenOp) -> Sequence[Twin | SSAValue] | None:
        """Rewrite grouped products of sorted rows, and their gradients."""
        rows, matrices, ends, *grads = op.args
        twins = [twin for value in (rows, *grads) if (twin := self.twins.get(value)) is not None]
        order = twins[0].order if twins else None
        if len(twins) != 1 + len(grads) or order is None or matrices in self.twins or ends in self.twins:
            return None
        if any(twin.order is not order or not twin.is_plain for twin in twins) or order.outs[0] not in self.twins:
            return None
        groups = shape_of(ends)[0]
        if not ends_count(ends, order, groups):
            return None
        if (order, groups) not in self.ends:
            self.ends[order, groups] = ends_of(self.maker, op, self.twins[order.outs[0]].value, groups)
        products, *others = grouped(self.maker, op, twins, self.ends[order, groups])
        sorts = frozenset[AtenOp]().union(*(twin.sorts for twin in twins))
        return [Twin(products, order, None, sorts), *others]

    def _alike(self, op: AtenOp) -> Sequence[Twin | SSAValue] | None:
        """Rewrite an op that treats all elements of a list equally, or sums over them."""
        twins = [self.twins.get(value) for value in op.args]
        known = [twin for twin in twins if twin is not None]
        orders = {twin.order for twin in known}
        if op.is_random or depends_on_place(op) or len(orders) != 1:
            return None
        target = known[0].target
        if any(twin.target is not None for twin in known) and op.overload not in RENAMED:
            return None
        rule = op.rule()
        factors = {rule.operands[i][0] if rule.operands[i] else () for i, twin in enumerate(twins) if twin is not None}
        dim = factors.pop()
        if factors or len(dim) != 1 or not self._is_list(op, dim[0], twins, orders == {None}):
            return None
        new, sorts = copied(self.maker, op, twins), frozenset[AtenOp]().union(*(twin.sorts for twin in known))
        order = known[0].order
        results: list[Twin | SSAValue] = []
        for value, dims in zip(new.outs, rule.results, strict=True):
            if not any(dim[0] in factors_of_dim for factors_of_dim in dims):
                results.append(value)
            elif dims[0] == dim:
                results.append(Twin(value, order, target, sorts))
            else:
                return None
        return results

    def _is_list(self, op: AtenOp, factor: str, twins: Sequence[Twin | None], is_own: bool) -> bool:
        """Return whether an op treats all elements of a factor equally, and its operands with it have one order."""
        rule = op.rule()
        if factor not in rule.splittable() or factor in rule.indexed or not stands_alone(rule, factor):
            return False
        for value, dims, twin in zip(op.args, rule.operands, twins, strict=True):
            if twin is None and any(factor in dim for dim in dims):
                is_blank = isinstance(value.owner, AtenOp) and value.owner.overload in FACTORIES
                if not is_blank and not (is_own and self._own(value) is not None):
                    return False
        return True


_SPECIAL: dict[str, Callable[[_RowSorts, AtenOp], Sequence[Twin | SSAValue] | None]] = {
    **dict.fromkeys(SORTS, _RowSorts.sort),
    **dict.fromkeys(("index.Tensor", "_unsafe_index.Tensor", "index_select"), _RowSorts.pick),
    **dict.fromkeys(("index_put", "_unsafe_index_put", "index_add"), _RowSorts.put),
    **dict.fromkeys(("floor_divide", "div.Tensor_mode", "div.Scalar_mode"), _RowSorts.divide),
    **dict.fromkeys(("grouped_mm", "grouped_mm_backward"), _RowSorts.products),
}
