"""
Write the fragments of a step as functions, and the loop that calls one for every part of the batch.

A fragment is `def micro(comm, part, sums, ...)`. Its parameters are values that it captures, by name or in bundles. It
adds the values that it yields to the sums over the parts, as soon as they are computed, and returns the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from xdsl.ir import Operation, OpResult, SSAValue

from ...dialects.pipe import FragmentOp
from ...dialects.reuse import reused_by_result
from ...dialects.spmd import FreeOp
from ...dialects.step import sharding_of
from .body import Body, Program
from .bundles import Bundle, find_bundles, index_of
from .equal_layers import ValueUses, find_calls
from .errors import EmitError
from .layer_calls import let_go
from .layer_functions import Addition, Caller, call_functions
from .layered_arguments import StepArguments
from .layout import INDENT, SUMS, Doc, Group, assignment, call, lines, list_of, returned
from .names import Named, Names
from .sizes import PART
from .stages import LoweredStage
from .where import Where

LISTED = "list"
"""The treatment of a yielded value whose parts are all kept, in a list."""


class FragmentBody(Body):
    """
    A writer of the function of a fragment.

    The parameters are `comm`, `part`, `sums`, values by name, and bundles. The results are values in `kept`, and
    bundles.

    Attributes:
        captured: values from outside that the fragment reads.
        kept: indices of results that the function returns.
        summed: indices of results whose parts are joined in `sums`.
        taken: bundles that it takes.
        yielded: bundles that it yields.
        name: name of the function, empty until it is written.
    """

    def __init__(self, program: Program, op: FragmentOp) -> None:
        super().__init__(program, Caller(ValueUses.of(list(op.body.block.ops), Where(program.mesh, op.axis.data))))
        self.op, self.captured = op, op.captured
        self.kept: Sequence[int] = ()
        self.summed: Sequence[int] = ()
        self.taken: list[Bundle] = []
        self.yielded: list[Bundle] = []
        self.name = ""

    def set_bundles(self, bundles: Sequence[Bundle]) -> None:
        """Choose the bundles of this fragment among the bundles of the function that calls it."""
        self.taken = [bundle for bundle in bundles if self.op in bundle.readers]
        self.yielded = [bundle for bundle in bundles if bundle.source is self.op]
        self.caller.lists = [layer for bundle in self.taken for layer in bundle.layers]

    def groups(self) -> Mapping[SSAValue, Hashable]:
        """Return the key of the list that each bundled value is in, by the value inside of the fragment."""
        keys = {value: key for bundle in self.yielded for value, key in bundle.keys.items()}
        return {self.op.terminator.args[index_of(value)]: key for value, key in keys.items()}

    @property
    def named(self) -> list[SSAValue]:
        """The values that the fragment takes by name."""
        listed = {value for bundle in self.taken for value in bundle.values}
        return [value for value in self.captured if value not in listed]

    def how(self, index: int) -> str:
        """Return the treatment of the parts of a yielded value: their reduction, or `LISTED`."""
        given, axis = sharding_of(self.op.terminator.args[index]), self.op.axis.data
        if axis in given.split_axes:
            return LISTED
        if (kind := dict(given.partial).get(axis)) is None:
            problem = f"yields a value spread as {given}, expected a value that is micro-batched along"
            raise EmitError(self.op, f'{problem} "{axis}"')
        return kind.value

    def set_results(self, kept: Sequence[int], summed: Sequence[int]) -> None:
        """Choose the results that the function returns, and the results that it adds to the sums, in its order."""
        yielded = self.op.terminator.args
        at_once = {yielded[index]: index for index in summed if self.op.is_added_at_once(index)}
        in_order = [at_once[value] for op in self.uses.ops for value in op.results if value in at_once]
        self.kept, self.summed = kept, [*in_order, *(index for index in summed if yielded[index] not in at_once)]
        self.caller.added = {yielded[index]: self._addition(index) for index in in_order}

    def _addition(self, index: int) -> Addition:
        """Return how a result is added. The first part copies a value whose memory others need."""
        how, yielded = self.how(index), self.op.terminator.args
        reused = reused_by_result(self.op) or ()
        is_shared = reused[index] < 0 or [*yielded].count(yielded[index]) > 1
        return Addition(how, is_copied=is_shared and how != LISTED)

    def write(self) -> None:
        """Write the function."""
        parameters = [*([SUMS] if self.summed else []), *(self.names.new(value) for value in self.named)]
        for bundle in self.taken:
            parameters.append(self.names.beside(bundle.label))
            self.names.enter_table(parameters[-1], bundle.layers, bundle.label)
        self.name = self.program.new_function(self.op.label.data)
        yielded = self.op.terminator.args
        statements = list(self.statements(self.caller.items[:-1]))
        at_end = [index for index in self.summed if yielded[index] not in self.added]
        statements += self.additions([(yielded[index], self._addition(index)) for index in at_end])
        results: list[Doc] = [self.names[yielded[index]] for index in self.kept]
        for bundle in self.yielded:
            layers = [[yielded[index_of(value)] for value in layer] for layer in bundle.layers]
            results.append(nested(self.names, layers))
        end = [*self.program.tick(), *(("", *returned(results)) if results else ())]
        self.program.functions[self.name] = [*self.head(self.name, [PART, *parameters]), *statements, *end]


class StepBody(Body):
    """
    A writer of the function `step` of the communicator and the arguments, which may call fragments.

    Attributes:
        fragments: the fragments that the function calls.
        ends: `Bundle.end` of each value that may be in a bundle.
        given: bundles of values from before the loop -> their variables.
    """

    def __init__(
        self, program: Program, stage: LoweredStage, uses: ValueUses, fragments: Sequence[FragmentBody]
    ) -> None:
        self.arguments = StepArguments(stage.func, stage.arguments)
        super().__init__(program, Caller(uses, self.arguments.lists))
        self.stage, self.fragments = stage, {each.op: each for each in fragments}
        self._set_results()
        self.ends = self._ends()
        self.bundles: Sequence[Bundle] = ()
        self.given: dict[Bundle, str] = {}

    def _set_results(self) -> None:
        """Choose the results that each fragment returns, and the results that it adds to sums."""
        for op, fragment in self.fragments.items():
            fragment.set_results((), range(len(op.outs)))
            self.caller.summed[op] = [op.outs[index] for index in fragment.summed]

    def _ends(self) -> dict[SSAValue, Hashable]:
        readers = Counter(value for each in self.fragments.values() for value in each.captured)
        ends: dict[SSAValue, Hashable] = {v: None for v in readers if not isinstance(v.owner, FragmentOp)}
        for op, free in pairwise(self.uses.ops):
            if isinstance(op, FragmentOp) and isinstance(free, FreeOp):
                values = {*free.args} & {*self.fragments[op].captured}
                ends |= {value: free for value in values if readers[value] == 1 and isinstance(value, OpResult)}
        return ends

    def step(self) -> Iterator[str]:
        """Write the function, and add the functions that it calls to the program."""
        parameters = self.arguments.enter(self.names, layered=bool(self.caller.functions))
        statements = [*self.statements(self.caller.items[:-1]), *self.program.tick()]
        yield from self.head(f"step{self.stage.suffix}", parameters)
        yield from self.arguments.head(self.names)
        yield from statements
        yield ""
        yield from returned(self.arguments.returned(self.names, self.stage.returned))

    def statement(self, op: Operation) -> Iterator[str]:
        """Write the lines of one op."""
        yield from self._loop(op) if isinstance(op, FragmentOp) else super().statement(op)

    def _loop(self, op: FragmentOp) -> Iterator[str]:
        """Write a loop that calls the fragment for every part and accumulates the results as they are produced."""
        fragment = self.fragments[op]
        fragment.write()
        yield from self.bundle(fragment.taken)
        run = call(fragment.name, ["comm", PART, *self.passed(fragment, SUMS, lambda value: value)])
        count = self.program.mesh.axis(op.axis.data).size
        self.place = ""
        yield ""
        yield f"{INDENT}# {count} parts of the batch, one after the other"
        if fragment.summed:
            yield f"{INDENT}{SUMS} = rt.Sums()"
        yield f"{INDENT}for {PART} in range({count}):"
        yield from lines(run, INDENT * 2)
        yield from self.end_of_bundles(self.given)
        if fragment.summed:
            yield from self.totals(op, SUMS)

    def totals(self, op: FragmentOp, sums: str) -> Iterator[str]:
        """Assign the sums of a loop, which are in the variable `sums`, to their names."""
        results: Doc = call(f"{sums}.totals", [])
        values = self.caller.summed[op]
        if (groups := self.caller.splits.get(op)) is not None:
            results = self.grouped(values, groups, results)
        targets = self.targets(op) if groups is not None else [self.target(op, index_of(value)) for value in values]
        if targets:
            yield from assignment(targets, results, INDENT, unpacked=True)
        yield f"{INDENT}del {sums}"

    def passed(self, fragment: FragmentBody, sums: str, at: Callable[[SSAValue], Named]) -> list[str]:
        """
        Return the arguments of a call of a fragment, after the communicator and the part.

        Args:
            sums: variable that holds the sums over the parts.
            at: function that returns the part of a value that the call takes.
        """
        lists = [self.given.get(each) or self.names.variable(at(each.values[0])) for each in fragment.taken]
        begun = [f"{sums}.next_part()"] if fragment.summed else []
        return [*begun, *(self.names[at(value)] for value in fragment.named), *lists]

    def bundle(self, bundles: Iterable[Bundle]) -> Iterator[str]:
        """Write bundles of values from before a loop, and delete the variables that they replace."""
        bundles = [bundle for bundle in bundles if bundle.source is None]
        for bundle in bundles:
            self.given[bundle] = self.names.beside(bundle.label)
            yield from assignment([self.given[bundle]], nested(self.names, bundle.layers), INDENT)
        replaced = dict.fromkeys(value for bundle in bundles if bundle.end is not None for value in bundle.values)
        replaced = [value for value in replaced if self.is_alone(value, replaced)]
        yield from let_go(self.names, replaced)
        for value in replaced:
            self.names.release(value)

    def end_of_bundles(self, bundles: Iterable[Bundle]) -> Iterator[str]:
        """Delete bundles of values from before a loop."""
        names = [self.given.pop(bundle) for bundle in list(bundles)]
        self.names.forget(names)
        if names:
            yield f"{INDENT}del {', '.join(names)}"


def find_layers(steps: Sequence[StepBody]) -> None:
    """Find the equal layers of steps and their fragments; a program that announces each op has none."""
    if any(step.program.ticks is not None for step in steps):
        return
    bodies = {step: [step, *step.fragments.values()] for step in steps}
    calls = find_calls([body.uses for each in bodies.values() for body in each])
    used = {call.uses for group in calls for call in group}
    layered = [step for step, each in bodies.items() if any(body.uses in used for body in each)]
    ends: dict[SSAValue, Hashable] = {}
    groups: dict[SSAValue, Hashable] = {}
    for step in layered:
        step.bundles = find_bundles(step.uses, {op: each.captured for op, each in step.fragments.items()}, step.ends)
        ends |= step.ends
        for bundle in step.bundles:
            groups |= bundle.keys if bundle.source is None else {}
        for fragment in step.fragments.values():
            fragment.set_bundles(step.bundles)
            groups |= fragment.groups()
    call_functions([body.caller for step in layered for body in bodies[step]], calls, ends, groups)


def nested(names: Names, layers: Iterable[Sequence[SSAValue]]) -> Group:
    """Return a list with a list of values for each layer."""
    lists: list[Doc] = []
    for values in layers:
        whole = names.whole_list(values)
        lists.append(whole.text if whole is not None else list_of(names.listed(values)))
    return list_of(lists)
