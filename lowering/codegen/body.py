"""
Write the body of one function of a program, statement by statement.

A step is a function. Each of its fragments is another function, `def micro(comm, part, ...)`, called once for every
part of the fragment's axis; its parameters are the values that the fragment captures, its results the values that it
yields. `Where` holds the parts that the ops of a function run for; otherwise `Body` writes both kinds in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from ...dialects.compute import ComputeOp
from ...dialects.pipe import FragmentOp
from ...dialects.spmd import AccumulateOp, CollectiveOp, FreeOp, StartOp, TokenType, WaitOp
from ...dialects.step import sharding_of
from ...dialects.train import TrainOp, is_update
from ...ir.collectives import CollectiveKind
from ...ir.mesh import Mesh
from ...ir.sharding import Reduction
from .calls import Calls, operands_to_copy, returns_list
from .collectives import Collectives
from .equal_layers import LayerCall
from .errors import FORWARD, EmitError, place
from .layer_calls import call_of_layer, let_go, parameters_of, return_of
from .layer_functions import SHORTEST_LIST, Addition, Caller, Items, LayerFunction
from .layout import INDENT, SUMS, WIDTH, Doc, Group, assignment, call, keyword, lines, literal
from .names import UNUSED, Named, Names, PartOf, base_name, identifier
from .numbered_layers import any_number, without_number
from .sizes import PART, RANK, Sizes, Table

_JOINED = {
    CollectiveKind.ALL_REDUCE: "reduced",
    CollectiveKind.REDUCE_SCATTER: "reduced",
    CollectiveKind.ALL_GATHER: "gathered",
    FragmentOp.name: "summed",
}
_JOINED_OTHERWISE = "joined"
"""The names of the lists of an op's results."""


@dataclass
class Program:
    """
    The state that all functions of a program share: their mesh, table, groups, and the functions that they call.

    Args:
        ticks: the numbers of the ops, filled during emission, for a program that announces each op with
            `comm.tick(number)`; None for other programs.
        added_frees: frees that are not in the IR; they are erased after emission.
    """

    mesh: Mesh
    table: Table = field(default_factory=Table)
    groups: dict[tuple[str, ...], None] = field(default_factory=dict[tuple[str, ...], None])
    functions: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    ticks: dict[Operation, int] | None = None
    added_frees: list[FreeOp] = field(default_factory=list[FreeOp])

    def tick(self, op: Operation | None = None) -> Iterator[str]:
        """Yield the line that announces `op`, or announces code outside of the step's ops."""
        if self.ticks is not None:
            number = "" if op is None else self.ticks.setdefault(op, len(self.ticks))
            yield f"{INDENT}comm.tick({number})"

    def new_function(self, label: str) -> str:
        """Reserve a unique name derived from `label` for a function, and return this name."""
        base = name = identifier(label)
        count = 0
        while name in self.functions or name == "step":
            count += 1
            name = f"{base}_{count}"
        self.functions[name] = []
        return name


class Body:
    """
    A writer of one function.

    Args:
        caller: the ops of the function, or of its caller for the function of a layer.
        layer: for the function of a layer, the call that it is written from.
    """

    def __init__(self, program: Program, caller: Caller, layer: LayerCall | None = None) -> None:
        self.program, self.caller, self.uses, self.where = program, caller, caller.uses, caller.uses.where
        self.overwritten, self.last_use, where = self.uses.overwritten, self.uses.last_use, self.where
        ops = self.uses.ops if layer is None else layer.ops
        loops = where.loop is not None or any(isinstance(op, FragmentOp) for op in ops)
        self.layer = layer
        self.names = Names((PART, SUMS) if loops else (), without_number if self.layer is not None else str)
        self.sizes = Sizes(program.table)
        self.calls = Calls(where, self.names, self.sizes)
        self.collectives = Collectives(where, self.names, self.sizes, program.groups)
        self.first, self.place = ops[0], ""

    @cached_property
    def added(self) -> Mapping[SSAValue, Addition]:
        """The values that the text of this function adds to the sums over the parts."""
        return self.caller.added if self.layer is None else self._added_by(self.layer)

    def head(self, name: str, parameters: Sequence[str]) -> Iterator[str]:
        """Write `def name(comm, ...):`; the statements must have been written before."""
        yield from lines(call(f"def {name}", ["comm", *parameters]), suffix=":")
        if self.sizes.uses_rank:
            yield f"{INDENT}{RANK} = comm.rank"

    def statements(self, items: Items) -> Iterator[str]:
        """Write the lines of ops, and of calls of the functions of layers."""
        added: list[SSAValue] = []
        for item in items:
            if isinstance(item, FreeOp):
                yield from self.free([*added, *item.args])
                added = []
                continue
            yield from self.free(added)
            yield from self._layer(item) if isinstance(item, LayerCall) else self.statement(item)
            results, within = (item.left, self._added_by(item)) if isinstance(item, LayerCall) else (item.results, {})
            added = [each for each in results if each in self.added and each not in within]
            yield from self.additions([(value, self.added[value]) for value in added])
            added = [value for value in added if self.is_alone(value, added)]
        yield from self.free(added)

    def _added_by(self, each: LayerCall) -> Mapping[SSAValue, Addition]:
        """Return the results of a layer that its function adds to the sums over the parts."""
        results = [each.left[index] for index in self.caller.functions[each].added]
        return {value: self.caller.added[value] for value in results}

    def additions(self, added: Iterable[tuple[SSAValue, Addition]]) -> Iterator[str]:
        """Write statements that add values to the sums over the parts."""
        for addition, group in groupby(added, lambda pair: pair[1]):
            values = [value for value, _ in group]
            texts = [f"{self.names[it]}.clone()" for it in values] if addition.is_copied else self.names.listed(values)
            how = [] if addition.how == Reduction.SUM.value else [keyword("how", literal(addition.how))]
            yield from lines(call(f"{SUMS}.add", [*texts, *how]), INDENT)

    def is_alone(self, value: SSAValue, others: Collection[SSAValue]) -> bool:
        """Return whether the variable of a value holds only values in `others`."""
        named = self.names.list_of(value)
        return named is None or all(element in others for element in named.values)

    def _layer(self, each: LayerCall) -> Iterator[str]:
        """Write a call of the function of a layer; the first call also writes the function."""
        function = self.caller.functions[each]
        if not function.name:
            self._layer_function(function, each)
        self.program.groups.update(function.groups)
        kind = "" if each.phase == FORWARD else f", {each.phase}"
        yield from self._announced(f"{each.block or function.name}{kind}", each.ops[0])
        yield from call_of_layer(function, each, self.names, ["comm", PART] if self.where.loop else ["comm"])

    def _layer_function(self, function: LayerFunction, first: LayerCall) -> None:
        family = first.block.rpartition(".")[0]
        function.name = self.program.new_function(f"{family}_{first.phase}" if family else first.phase)
        body = Body(replace(self.program, groups=function.groups), self.caller, first)
        parameters, streams, unpacked = parameters_of(function, first, body.names, self.names)
        body.calls.streams = dict(zip(first.streams, streams, strict=True))
        statements = list(body.statements(first.ops))
        parameters = [PART, *([SUMS] if function.added else []), *parameters] if self.where.loop else parameters
        self.program.functions[function.name] = [
            *body.head(function.name, parameters),
            *unpacked,
            *statements,
            *return_of(function, first, body.names),
        ]

    def statement(self, op: Operation) -> Iterator[str]:
        """Write the lines of one op."""
        match op:
            case ComputeOp() | CollectiveOp() | StartOp() | WaitOp() | AccumulateOp():
                self._check(op)
                try:
                    text = list(self._assignment(op))
                except VerifyException as error:
                    raise EmitError(op, str(error)) from error
                if text:
                    yield from self.comment(op)
                yield from self.program.tick(op)
                yield from text
                if isinstance(op, WaitOp):
                    yield from self._end(op.token)
            case _:
                raise EmitError(op, "is not an op of a lowered step")

    def _check(self, op: Operation) -> None:
        """Refuse an op that reads several parts of a temporal axis, unless it combines these parts."""
        if isinstance(op, AccumulateOp) or (isinstance(op, CollectiveOp) and self.uses.is_over_loop(op)):
            return
        for value in op.operands if not isinstance(op, WaitOp) else ():
            if not isinstance(value.type, TokenType) and (left := self.where.unsettled(op, sharding_of(value))):
                axis = min(left)
                raise EmitError(op, f'has an operand split over time along "{axis}"; run accumulate or duplex first')

    def _announced(self, here: str, op: Operation) -> Iterator[str]:
        """Write a comment with the place of an op if it differs from the previous op's."""
        if here and here != self.place:
            self.place = here
            yield from [f"{INDENT}# {here}"] if op is self.first else ["", f"{INDENT}# {here}"]

    def comment(self, op: Operation) -> Iterator[str]:
        """Write a comment with the layer and line in the model if they differ from the previous op's."""
        here = place(op, WIDTH - len(f"{INDENT}# "))
        yield from self._announced(any_number(here) if self.layer is not None else here, op)
        if isinstance(op, ComputeOp) and (copied := operands_to_copy(op, self.overwritten[op])):
            names = ", ".join(self.names[op.args[index]] for index in sorted(copied))
            yield f"{INDENT}# still needed as it is: {names}"[:WIDTH]

    def _assignment(self, op: ComputeOp | CollectiveOp | StartOp | WaitOp | AccumulateOp) -> Iterator[str]:
        source = self.names[op.operands[0]] if op.operands else ""
        targets = self.targets(op)
        key = next((name for name in targets if name != UNUSED), op.name)
        match op:
            case ComputeOp():
                expression = self.calls.expression(op, key, self.overwritten[op])
            case CollectiveOp() if op.KIND is CollectiveKind.ALL_REDUCE and self.uses.is_over_loop(op):
                if self.uses.is_in_place_sum(op):
                    return
                expression = call(f"{source}.clone", [])
            case CollectiveOp():
                expression = self.collectives.expression(op, key, donate=bool(self.overwritten[op]))
            case StartOp():
                expression = self.collectives.start(op, key, donate=self.overwritten[op])
            case WaitOp():
                expression = call("comm.wait", [self.names[op.token]])
            case AccumulateOp():
                expression = self._accumulated(op, source)
        if (groups := self.caller.splits.get(op)) is not None:
            expression = self.grouped(op.results, groups, expression)
        unpacked = groups is not None or isinstance(op, WaitOp) or (isinstance(op, ComputeOp) and returns_list(op))
        yield from assignment(targets, expression, INDENT, unpacked=unpacked)

    def _accumulated(self, op: AccumulateOp, total: str) -> Group:
        """Return the reduction of two parts, a sum in the memory of the first if the op overwrites it."""
        partial = dict(sharding_of(op.total).partial)
        kind = next(partial[axis] for axis in partial if axis in self.where.temporal)
        if kind is Reduction.SUM and self.overwritten[op]:
            return call(f"{total}.add_", [self.names[op.part]])
        function = {Reduction.SUM: "torch.add", Reduction.MAX: "torch.maximum", Reduction.MIN: "torch.minimum"}[kind]
        return call(function, [total, self.names[op.part]])

    def targets(self, op: Operation) -> list[str]:
        """Return the names of the results or of lists of results; none for an in-place update of elements of lists."""
        if (groups := self.caller.splits.get(op)) is not None:
            label = _JOINED.get(op.start.collective if isinstance(op, WaitOp) else op.name, _JOINED_OTHERWISE)
            return [self._group(group, label) for group in groups]
        targets = [self.target(op, index) for index in range(len(op.results))]
        written = {self.names[op.operands[operand]] for operand in self.overwritten[op]}
        # An update in place leaves the lists of layers with the new values.
        listed = any(self.names.list_of(value) is not None for value in op.results)
        return [] if listed and isinstance(op, ComputeOp) and is_update(op) and written.issuperset(targets) else targets

    @staticmethod
    def grouped(values: Sequence[SSAValue], groups: Sequence[Sequence[SSAValue]], results: Doc) -> Group:
        """Group results into lists: by the sizes of the lists if results are in order, else by the list of each."""
        if [value for group in groups for value in group] == list(values):
            return call("rt.split", [results, *(str(len(group)) for group in groups)])
        numbers = {value: number for number, group in enumerate(groups) for value in group}
        return call("rt.grouped", [results, literal([numbers[value] for value in values])])

    def _group(self, values: Sequence[SSAValue], label: str) -> str:
        """Name a list of results, or each result of a short list: `(a, b)`."""
        if len(values) >= SHORTEST_LIST:
            return self.names.new_list(values, label)
        named = [UNUSED if _is_unused(value) else self.names.new(value) for value in values]
        return f"({', '.join(named)}{',' if len(named) == 1 else ''})"

    def target(self, op: Operation, index: int) -> str:
        """Name a result; a new version of an operand takes the operand's name."""
        result = op.results[index]
        if _is_unused(result):
            return UNUSED
        operand = self._earlier_form(op, index)
        if operand is not None and self._keeps_name(op, result, operand):
            return self.names.share(result, operand)
        return self.names.new(result, "token" if isinstance(op, StartOp) else None)

    def _keeps_name(self, op: Operation, result: SSAValue, operand: SSAValue) -> bool:
        """Return whether a result takes the name of an operand that it replaces."""
        if self.uses.is_in_place_sum(op):
            return True
        if (named := self.names.list_of(operand)) is not None and named.variable:
            return False
        if isinstance(op, CollectiveOp) and self.uses.is_over_loop(op):
            return True
        is_same = isinstance(op, TrainOp) or base_name(result) in (None, base_name(operand))
        return is_same and self.names.holds(operand)

    def _earlier_form(self, op: Operation, index: int) -> SSAValue | None:
        """Return the operand that a result replaces: one that is overwritten, or a collective's last use of it."""
        match op:
            case ComputeOp() | AccumulateOp():
                return next((op.operands[i] for i, out in self.overwritten[op].items() if out == index), None)
            case CollectiveOp() | WaitOp():
                source = op.operand if isinstance(op, CollectiveOp) else op.start.args[index]
                return source if self.last_use[source] is op else None
            case _:
                return None

    def _end(self, token: SSAValue) -> Iterator[str]:
        """Delete a token, which keeps operands and results alive."""
        freed = any(isinstance(use.operation, FreeOp) for use in token.uses)
        if self.uses.frees and not freed:
            yield f"{INDENT}del {self.names[token]}"
            self.names.release(token)

    def free(self, values: Iterable[Named]) -> Iterator[str]:
        """Write `del` statements for the freed values that still have their names."""
        freed = [value for value in values if self.names.holds(value)]
        yield from let_go(self.names, freed)
        for value in freed:
            listed = self.names.list_of(value) is not None
            if listed or isinstance(value, PartOf) or isinstance(value.type, TokenType):
                self.names.release(value)


def _is_unused(value: SSAValue) -> bool:
    return all(isinstance(use.operation, FreeOp) for use in value.uses)
