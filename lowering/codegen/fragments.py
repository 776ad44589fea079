"""
Write the fragments of a step as functions, and the loop that calls one for every part of the batch.

A fragment is `def micro(comm, part, ...)`. Its parameters are values that it captures, by name or in bundles, its
results the values that it yields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from xdsl.ir import Operation, OpResult, SSAValue

from ...dialects.pipe import FragmentOp
from ...dialects.spmd import FreeOp
from ...dialects.step import sharding_of
from ...ir.sharding import Reduction, Sharding
from .body import TOTAL, Body, Program
from .bundles import Bundle, find_bundles, fragment_caller, index_of, step_groups
from .equal_layers import find_calls
from .equal_ops import ValueUses
from .errors import EmitError
from .layer_calls import let_go
from .layer_functions import Caller, LayeredOps, layered_ops
from .layout import INDENT, Doc, Group, assignment, call, keyword, literal
from .names import Named, NamedList, Names
from .overwritten import summed_in_place
from .sizes import PART
from .where import Where

LISTED = "list"
"""The treatment of a yielded value whose parts are all kept, in a list."""


@dataclass
class FragmentFunctions:
    """
    The fragments that a function calls.

    Args:
        uses: ops of each fragment.
        captured: values that each fragment captures.
        bundles: lists of values that go into and out of the fragments.
        layers: ops of each fragment with calls for its equal layers, if they have any.
    """

    program: Program
    uses: Mapping[FragmentOp, ValueUses]
    captured: Mapping[FragmentOp, Sequence[SSAValue]]
    bundles: Sequence[Bundle] = ()
    layers: Mapping[FragmentOp, LayeredOps] = field(default_factory=dict[FragmentOp, LayeredOps])

    @staticmethod
    def of(program: Program, ops: Iterable[Operation]) -> FragmentFunctions:
        """Return the fragments among some ops."""
        fragments = [op for op in ops if isinstance(op, FragmentOp)]
        wheres = [Where(program.mesh, op.axis.data) for op in fragments]
        uses = {op: ValueUses.of(list(op.body.block.ops), where) for op, where in zip(fragments, wheres, strict=True)}
        return FragmentFunctions(program, uses, {op: op.captured for op in fragments})

    def taken(self, op: FragmentOp) -> list[Bundle]:
        """Return the bundles that a fragment takes."""
        return [bundle for bundle in self.bundles if op in bundle.readers]

    def yielded(self, op: FragmentOp) -> list[Bundle]:
        """Return the bundles that a fragment yields."""
        return [bundle for bundle in self.bundles if bundle.source is op]

    def named(self, op: FragmentOp) -> list[SSAValue]:
        """Return the values that a fragment takes by name."""
        listed = {value for bundle in self.taken(op) for value in bundle.values}
        return [value for value in self.captured[op] if value not in listed]

    def write(self, op: FragmentOp, kept: Sequence[int], summed: Sequence[int]) -> str:
        """
        Write the function of a fragment and return its name.

        The parameters are `comm`, `part`, values by name, and bundles. The results are values in `kept`, bundles, and
        values in `summed`.

        Args:
            summed: indices of results whose parts are joined. Sums are in separate memory that the caller overwrites.
        """
        uses, yielded = self.uses[op], op.terminator.args
        frees = any(isinstance(inner, FreeOp) for inner in uses.ops)
        body = Body(self.program, uses, frees=frees, layers=self.layers.get(op))
        parameters = [body.names.new(value) for value in self.named(op)]
        for bundle in self.taken(op):
            parameters.append(body.names.beside(bundle.label))
            for number, layer in enumerate(bundle.layers):
                body.names.enter_list(NamedList(f"{parameters[-1]}[{number}]", list(layer), bundle.label))
        name = self.program.new_function(op.label.data, [])
        in_place = summed_in_place(op)
        statements = list(body.statements(body.layers.items[:-1]))
        saved = self.yielded(op)
        repeated = [*kept, *(index_of(value) for bundle in saved for value in bundle.values), *summed]
        results: list[Doc] = [body.names[yielded[index]] for index in kept]
        for bundle in saved:
            layers = [[yielded[index_of(value)] for value in layer] for layer in bundle.layers]
            results.append(nested(body.names, layers))
        shared = [not in_place[index] or repeated.count(index) > 1 for index in summed]
        is_sum = [how(op, sharding_of(yielded[index])) != LISTED for index in summed]
        copied = [is_shared and sums for is_shared, sums in zip(shared, is_sum, strict=True)]
        if any(copied):
            results += [body.names[yielded[i]] + ".clone()" * copy for i, copy in zip(summed, copied, strict=True)]
        else:
            results += body.names.listed([yielded[index] for index in summed])
        end = [*self.program.tick(), "", *body.returned(results)]
        self.program.functions[name] = [*body.head(name, [PART, *parameters]), *statements, *end]
        return name


@dataclass(frozen=True)
class LoopValues:
    """
    The values that go into and out of the fragments of a function.

    Args:
        ends: `Bundle.end` of each value that may be in a bundle.
        summed: fragment -> its results that are sums over all parts.
    """

    ends: Mapping[SSAValue, Hashable]
    summed: Mapping[Operation, Sequence[SSAValue]]

    @staticmethod
    def of(ops: Sequence[Operation], fragments: FragmentFunctions) -> LoopValues:
        """Return the values of a function that runs each fragment for all parts, one after the other."""
        captured = fragments.captured
        readers = Counter(value for values in captured.values() for value in values)
        ends: dict[SSAValue, Hashable] = {v: None for v in readers if not isinstance(v.owner, FragmentOp)}
        for op, free in pairwise(ops):
            if isinstance(op, FragmentOp) and isinstance(free, FreeOp):
                values = {*free.args} & {*captured[op]}
                ends |= {value: free for value in values if readers[value] == 1 and isinstance(value, OpResult)}
        return LoopValues(ends, {op: list(op.outs) for op in fragments.uses})


class LoopBody(Body):
    """
    A writer of a function that may call fragments.

    Args:
        fragments: the fragments that the function calls.
        loop: values of the fragments.
        lists: lists of the arguments of the function, if equal layers are written as functions.
    """

    def __init__(
        self,
        program: Program,
        uses: ValueUses,
        fragments: FragmentFunctions,
        loop: LoopValues,
        lists: Sequence[Sequence[SSAValue]],
        *,
        frees: bool,
    ) -> None:
        super().__init__(program, uses, frees=frees)
        self.fragments, self.loop, self.lists = fragments, loop, lists
        self.given: dict[Bundle, str] = {}

    def callers(self) -> list[Caller]:
        """Return the function and its fragments as callers of the functions of layers."""
        bundles = self.fragments.bundles
        caller = Caller(self.uses, self.lists, self.loop.ends, step_groups(bundles), self.loop.summed)
        return [caller, *(fragment_caller(op, uses, bundles) for op, uses in self.fragments.uses.items())]

    def statement(self, op: Operation) -> Iterator[str]:
        """Write the lines of one op."""
        yield from self._loop(op) if isinstance(op, FragmentOp) else super().statement(op)

    def _loop(self, op: FragmentOp) -> Iterator[str]:
        """Write a loop that calls the fragment for every part and accumulates the results as they are produced."""
        name = self.fragments.write(op, (), range(len(op.outs)))
        yield from self.bundle(self.fragments.taken(op))
        parts = call(name, ["comm", PART, *self.arguments(op, lambda value: value)])
        kinds = tuple(how(op, sharding_of(value)) for value in op.terminator.args)
        options = [] if set(kinds) <= {Reduction.SUM.value} else [keyword("how", literal(kinds))]
        count = self.program.mesh.axis(op.axis.data).size
        self.place = ""
        yield ""
        yield f"{INDENT}# {count} parts of the batch, one after the other"
        yield f"{INDENT}{TOTAL} = []"
        yield f"{INDENT}for {PART} in range({count}):"
        yield from assignment([TOTAL], call("rt.accumulate", [TOTAL, parts, *options]), INDENT * 2)
        yield from self.end_of_bundles(self.given)
        yield from self.totals(op, TOTAL, op.outs)

    def totals(self, op: FragmentOp, total: str, values: Sequence[SSAValue]) -> Iterator[str]:
        """Assign the results of a loop, which are in the list `total`, to their names."""
        results: Doc = Group(total, (), "")
        if (groups := self.layers.splits.get(op)) is not None:
            results = self.grouped(values, groups, total)
        targets = self.targets(op) if groups is not None else [self.target(op, index_of(value)) for value in values]
        if targets:
            yield from assignment(targets, results, INDENT, unpacked=True)
        yield f"{INDENT}del {total}"

    def arguments(self, op: FragmentOp, at: Callable[[SSAValue], Named]) -> list[str]:
        """
        Return the arguments of a call of a fragment, after the communicator and the part.

        Args:
            at: function that returns the part of a value that the call takes.
        """
        bundles = self.fragments.taken(op)
        lists = [self.given.get(bundle) or self.names.variable(at(bundle.values[0])) for bundle in bundles]
        return [*(self.names[at(value)] for value in self.fragments.named(op)), *lists]

    def bundle(self, bundles: Iterable[Bundle]) -> Iterator[str]:
        """Write bundles of values from before a loop, and delete the variables that they replace."""
        bundles = [bundle for bundle in bundles if bundle.source is None]
        for bundle in bundles:
            self.given[bundle] = self.names.beside(bundle.label)
            lists = nested(self.names, bundle.layers)
            yield from assignment([self.given[bundle]], lists, INDENT)
        replaced = dict.fromkeys(value for bundle in bundles if bundle.end is not None for value in bundle.values)
        lists_of = {value: self.names.list_of(value) for value in replaced}
        replaced = [value for value, named in lists_of.items() if named is None or replaced.keys() >= {*named.values}]
        yield from let_go(self.names, replaced)
        for value in replaced:
            self.names.release(value)

    def end_of_bundles(self, bundles: Iterable[Bundle]) -> Iterator[str]:
        """Delete bundles of values from before a loop."""
        names = [self.given.pop(bundle) for bundle in list(bundles)]
        self.names.forget(names)
        if names:
            yield f"{INDENT}del {', '.join(names)}"


def find_layers(bodies: Sequence[LoopBody]) -> None:
    """Find the equal layers of functions and their fragments; a program that announces each op has none."""
    if any(body.program.ticks is not None for body in bodies):
        return
    functions = [(body.uses, *body.fragments.uses.values()) for body in bodies]
    calls = find_calls([uses for each in functions for uses in each])
    callers = {call.uses for group in calls for call in group}
    layered = [body for body, uses in zip(bodies, functions, strict=True) if not callers.isdisjoint(uses)]
    for body in layered:
        body.fragments.bundles = find_bundles(body.uses, body.fragments.captured, body.loop.ends)
    result = iter(layered_ops([caller for body in layered for caller in body.callers()], calls))
    for body in layered:
        body.layers = next(result)
        body.fragments.layers = {op: next(result) for op in body.fragments.uses}


def nested(names: Names, layers: Iterable[Sequence[SSAValue]]) -> Group:
    """Return a list with a list of values for each layer."""
    lists: list[Doc] = []
    for values in layers:
        whole = names.whole_list(values)
        lists.append(whole.text if whole is not None else Group("[", tuple(names.listed(values)), "]", fill=True))
    return Group("[", tuple(lists), "]", fill=True)


def how(op: FragmentOp, given: Sharding) -> str:
    """Return the treatment of the parts of a yielded value: their reduction, or `LISTED`."""
    axis = op.axis.data
    if axis in given.split_axes:
        return LISTED
    if (kind := dict(given.partial).get(axis)) is None:
        raise EmitError(op, f'yields a value spread as {given}, expected a value that is micro-batched along "{axis}"')
    return kind.value
