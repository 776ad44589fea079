"""
A step with fewer of its equal layers, to judge strategies by.

The time of a step of n equal layers is close to linear in n, once a few are there for collectives to run beside. So
two short steps, of k and k - 2 layers, say what the whole takes: `T(n) = T(k) + (n - k) (T(k) - T(k - 2)) / 2`
(`extrapolated`). What is chosen by that is finished and simulated whole.

Layers in the middle of a run of equal ones (`equal_layers.py`) are taken out: what the next layer has from the last of
them it gets from the last one kept before, and the gradient that goes back into the first of them comes from the one
kept after.
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
"""How many equal layers the longer of the two short steps keeps."""

SHORTER = 4
"""By how many fewer the other does: buckets often have the parameters of one, two or four layers."""

WORTHWHILE = 16
"""From how many equal layers on short steps stand for the whole."""


def extrapolated(longer: float, shorter: float, left_out: int) -> float:
    """What the whole takes, of which the longer step leaves so many layers out."""
    return max(longer + left_out * (longer - shorter) / SHORTER, longer)


def equal_layers(module: ModuleOp) -> int:
    """How many equal layers a module with one step function has in a row."""
    funcs = step_functions(module)
    if len(funcs) != 1:
        return 0
    view = StepView(funcs[0], mesh_of_module(module))
    run = longest_run(view, find_layers(view))
    return run.count if run is not None else 0


def short_steps(module: ModuleOp) -> tuple[ModuleOp, ModuleOp, int] | None:
    """
    Two short steps, the longer first, and how many layers of the module that leaves out; None where they are not worth
    it, or cannot be had.
    """
    count = equal_layers(module)
    if count < WORTHWHILE:
        return None
    longer, shorter = shrunk(module, KEPT), shrunk(module, KEPT - SHORTER)
    return (longer, shorter, count - KEPT) if longer is not None and shorter is not None else None


def shrunk(module: ModuleOp, kept: int) -> ModuleOp | None:
    """A copy of a module with `kept` of its equal layers; None where they are tied together in another way."""
    copy = module.clone()
    (func,) = step_functions(copy)
    view = StepView(func, mesh_of_module(copy))
    layers = find_layers(view)
    run = longest_run(view, layers)
    if run is None or run.count <= kept or kept < 2:
        return None
    return copy if _Shrinker(func, view, layers, run, kept).run() else None


class _Shrinker:
    """Takes layers out of one function; one use."""

    def __init__(self, func: FuncOp, view: StepView, layers: Layers, run: LayerRun, kept: int) -> None:
        self.func, self.view, self.layers = func, view, layers
        self.before, self.after = run.ops[kept - 2], run.ops[-1]
        self.first_out = run.first + kept - 1
        self.out = run.ops[kept - 1 : -1]
        self.places = {op: (self.first_out + n, i) for n, ops in enumerate(self.out) for i, op in enumerate(ops)}

    def run(self) -> bool:
        """Rewire and erase; False where a value has no counterpart."""
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
        """The same value of the layer kept before those left out, or, for earlier layers, of the one kept after."""
        assert isinstance(value.op, ComputeOp)
        layer, place = self.places[value.op]
        at = self.layers.of.get(user)
        if at is None:
            return None
        return (self.before if at > layer else self.after)[place].results[value.index]

    def _drop_results(self) -> None:
        """Return nothing of what is left out."""
        terminator = self.view.terminator
        attributes = [self.view.result_attributes(index) for index in range(len(terminator.arguments))]
        pairs = zip(terminator.arguments, attributes, strict=True)
        kept = [(v, a) for v, a in pairs if not (isinstance(v, OpResult) and v.op in self.places)]
        terminator.operands = [value for value, _ in kept]
        self.func.res_attrs = ArrayAttr([DictionaryAttr(each) for _, each in kept])

    def _drop_arguments(self) -> None:
        """Take out the arguments that nobody has a use for any more, and count the others anew."""
        block = self.func.body.block
        listed = self.func.arg_attrs.data if self.func.arg_attrs is not None else ()
        attributes = [dict(listed[i].data) if i < len(listed) else {} for i in range(len(block.args))]
        gone = {argument for argument in block.args if self._is_gone(argument)}
        kept = [argument for argument in block.args if argument not in gone]
        number = {argument.index: n for n, argument in enumerate(kept)}
        self.func.arg_attrs = ArrayAttr([DictionaryAttr(attributes[argument.index]) for argument in kept])
        for argument in gone:
            block.erase_arg(argument)
        results = self.func.res_attrs.data if self.func.res_attrs is not None else ()
        self.func.res_attrs = ArrayAttr([_renumbered(each, number) for each in results])
        inputs = [argument.type for argument in block.args]
        outputs = [value.type for value in self.view.terminator.operands]
        self.func.function_type = FunctionType.from_lists(inputs, outputs)

    def _is_gone(self, argument: SSAValue) -> bool:
        home = self.layers.homes.get(argument)
        return not argument.uses and home is not None and self.first_out <= home < self.first_out + len(self.out)


def _renumbered(attributes: DictionaryAttr, number: dict[int, int]) -> DictionaryAttr:
    found: dict[str, Attribute] = dict(attributes.data)
    target = found.get(train.UPDATES)
    if isinstance(target, IntegerAttr):
        found[train.UPDATES] = IntegerAttr(number[target.value.data], i64)
    return DictionaryAttr(found)
