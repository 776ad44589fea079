"""
A step with fewer of its equal layers, whose results are extrapolated to the whole step.

The time of a step is close to linear in the number n of equal layers, as soon as collectives can overlap with some of
them. Two short steps, of k = `KEPT` and k - d layers with d = `SHORTER`, therefore predict the whole step:
`T(n) = T(k) + (n - k) (T(k) - T(k - d)) / d`, at least T(k) (`extrapolated`). Candidates that are chosen by this
estimate are then finished and simulated whole.

Layers in the middle of a run of equal layers (`equal_layers.py`) are removed. The layer after them takes its inputs
from the last layer before them, and the layer before them takes its gradients from the layer after them.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, IntegerAttr, ModuleOp, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, OpResult, SSAValue

from ...dialects import train
from ...dialects.compute import ComputeOp
from ..step.equal_layers import LayerRun, longest_run
from ..step.layers import Layers, find_layers
from ..step.step_view import StepView, mesh_of_module, step_functions

KEPT = 6
"""Number of equal layers in the longer short step."""

SHORTER = 4
"""Number of layers between the two short steps; buckets often have the parameters of one, two or four layers."""

WORTHWHILE = 16
"""Least number of equal layers for judging by short steps."""


def extrapolated(longer: float, shorter: float, left_out: int) -> float:
    """Return the prediction for the whole step, which has `left_out` more layers than the longer short step."""
    return max(longer + left_out * (longer - shorter) / SHORTER, longer)


def equal_layers(module: ModuleOp) -> int:
    """Return the number of equal layers in a row, in a module with one step function."""
    funcs = step_functions(module)
    if len(funcs) != 1:
        return 0
    view = StepView(funcs[0], mesh_of_module(module))
    run = longest_run(view, find_layers(view))
    return run.count if run is not None else 0


def short_steps(module: ModuleOp) -> tuple[ModuleOp, ModuleOp, int] | None:
    """
    Return two short steps, the longer first, and the number of layers that the longer one lacks, or None if too few
    layers are equal or they cannot be removed.
    """
    count = equal_layers(module)
    if count < WORTHWHILE:
        return None
    longer, shorter = shrunk(module, KEPT), shrunk(module, KEPT - SHORTER)
    return (longer, shorter, count - KEPT) if longer is not None and shorter is not None else None


def shrunk(module: ModuleOp, kept: int) -> ModuleOp | None:
    """Return a copy of a module with `kept` of its equal layers, or None if these cannot be reconnected."""
    copy = module.clone()
    (func,) = step_functions(copy)
    view = StepView(func, mesh_of_module(copy))
    layers = find_layers(view)
    run = longest_run(view, layers)
    if run is None or run.count <= kept or kept < 2:
        return None
    return copy if _Shrinker(func, view, layers, run, kept).run() else None


class _Shrinker:
    """Removes layers from one function; an instance is used once."""

    def __init__(self, func: FuncOp, view: StepView, layers: Layers, run: LayerRun, kept: int) -> None:
        self.func, self.view, self.layers = func, view, layers
        self.before, self.after = run.ops[kept - 2], run.ops[-1]
        self.first_out = run.first + kept - 1
        self.out = run.ops[kept - 1 : -1]
        self.places = {op: (self.first_out + n, i) for n, ops in enumerate(self.out) for i, op in enumerate(ops)}

    def run(self) -> bool:
        """Reconnect the other layers and erase; return False if a value has no counterpart."""
        terminator = self.view.terminator
        for op in self.func.body.block.ops:
            if op in self.places or op is terminator:
                continue
            for index, value in enumerate(op.operands):
                if isinstance(value, OpResult) and value.op in self.places:
                    instead = self._counterpart(value, op)
                    if instead is None or instead.type != value.type:
                        return False
                    op.operands[index] = instead
        self._drop_results()
        for op in reversed([op for op in self.func.body.block.ops if op in self.places]):
            if any(result.uses for result in op.results):
                return False
            op.detach()
            op.erase()
        self._drop_arguments()
        return True

    def _counterpart(self, value: OpResult, user: Operation) -> SSAValue | None:
        """Return the same value of the last layer before the removed ones or, for earlier users, of the one after."""
        assert isinstance(value.op, ComputeOp)
        layer, place = self.places[value.op]
        at = self.layers.of.get(user)
        if at is None:
            return None
        return (self.before if at > layer else self.after)[place].results[value.index]

    def _drop_results(self) -> None:
        """Drop the results that removed layers produce."""
        terminator = self.view.terminator
        attributes = [self.view.result_attributes(index) for index in range(len(terminator.arguments))]
        pairs = zip(terminator.arguments, attributes, strict=True)
        pairs_left = [(v, a) for v, a in pairs if not (isinstance(v, OpResult) and v.op in self.places)]
        terminator.operands = [value for value, _ in pairs_left]
        self.func.res_attrs = ArrayAttr([DictionaryAttr(attribute) for _, attribute in pairs_left])

    def _drop_arguments(self) -> None:
        """Drop the arguments that only removed layers used, and renumber the others."""
        block = self.func.body.block
        listed = self.func.arg_attrs.data if self.func.arg_attrs is not None else ()
        attributes = [dict(listed[i].data) if i < len(listed) else {} for i in range(len(block.args))]
        gone = {argument for argument in block.args if self._is_gone(argument)}
        remaining = [argument for argument in block.args if argument not in gone]
        number = {argument.index: n for n, argument in enumerate(remaining)}
        self.func.arg_attrs = ArrayAttr([DictionaryAttr(attributes[argument.index]) for argument in remaining])
        for argument in gone:
            block.erase_arg(argument)
        results = self.func.res_attrs.data if self.func.res_attrs is not None else ()
        self.func.res_attrs = ArrayAttr([_renumbered(result, number) for result in results])
        inputs = [argument.type for argument in block.args]
        outputs = [value.type for value in self.view.terminator.operands]
        self.func.function_type = FunctionType.from_lists(inputs, outputs)

    def _is_gone(self, argument: SSAValue) -> bool:
        home = self.layers.homes.get(argument)
        return not argument.uses and home is not None and self.first_out <= home < self.first_out + len(self.out)


def _renumbered(attributes: DictionaryAttr, number: dict[int, int]) -> DictionaryAttr:
    updated: dict[str, Attribute] = dict(attributes.data)
    target = updated.get(train.UPDATES)
    if isinstance(target, IntegerAttr):
        updated[train.UPDATES] = IntegerAttr(number[target.value.data], i64)
    return DictionaryAttr(updated)
