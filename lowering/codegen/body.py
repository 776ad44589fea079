"""
The body of one function of a program: statements, op by op.

A step is one function. A fragment of it is another, `def micro(comm, part, ...)`, called once for every part of its
axis; what it takes are the values from around it that it reads, what it gives the values that it yields. A function
knows which parts its ops run for (`Where`), and everything else is the same for both: `Body` writes any block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from ...dialects.compute import ComputeOp
from ...dialects.pipe import FragmentOp
from ...dialects.spmd import AccumulateOp, CollectiveOp, FreeOp, StartOp, TokenType, WaitOp
from ...dialects.step import sharding_of
from ...dialects.train import TrainOp, is_update
from ...ir.collectives import CollectiveKind
from ...ir.mesh import Mesh
from ...ir.sharding import Reduction, Sharding
from .calls import Calls, operands_to_copy, returns_list
from .collectives import Collectives
from .empty import Empties
from .equal_layers import LayerCall
from .equal_ops import ValueUses
from .errors import EmitError, place
from .layer_calls import call_of_layer, let_go, parameters_of, return_of
from .layer_functions import SHORTEST_LIST, LayeredOps, LayerFunction, find_layers
from .layout import INDENT, WIDTH, Doc, Group, assignment, call, keyword, lines, literal, tuple_of
from .names import Named, Names, PartOf, base_name, identifier
from .numbered_layers import any_number, without_number
from .overwritten import Overwritten, overwritten_operands, summed_in_place
from .sizes import PART, RANK, Sizes, Table
from .where import Where

_UNUSED = "_"
_TOTAL = "total"

_JOINED = {
    CollectiveKind.ALL_REDUCE: "reduced",
    CollectiveKind.REDUCE_SCATTER: "reduced",
    CollectiveKind.ALL_GATHER: "gathered",
}
_JOINED_OTHERWISE = "joined"
"""What the lists of results of one op are called."""

LISTED = "list"
"""What becomes of a value of which all parts are kept."""


@dataclass
class Program:
    """
    The state that all functions of a program share: their mesh, table, groups, and the functions that they call.

    Args:
        ticks: of a program that says what comes next (`comm.tick(number)`), the numbers of its ops; filled here.
    """

    mesh: Mesh
    table: Table = field(default_factory=Table)
    groups: dict[tuple[str, ...], None] = field(default_factory=dict[tuple[str, ...], None])
    functions: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    ticks: dict[Operation, int] | None = None

    def tick(self, op: Operation | None = None) -> Iterator[str]:
        """Say that an op comes next, or that what comes is no op of the step."""
        if self.ticks is not None:
            number = "" if op is None else self.ticks.setdefault(op, len(self.ticks))
            yield f"{INDENT}comm.tick({number})"

    def new_function(self, label: str, text: list[str]) -> str:
        """Add a function whose first line is to follow its name; the name that it gets."""
        base = name = identifier(label)
        count = 0
        while name in self.functions or name == "step":
            count += 1
            name = f"{base}_{count}"
        self.functions[name] = text
        return name


def fragment_function(program: Program, op: FragmentOp, order: Sequence[tuple[int, bool]] | None = None) -> str:
    """
    Write the function of a fragment; its name. It takes `comm`, `part` and what `op` captures, in that order.

    Args:
        order: the indices of the results that the function gives, each with whether in memory of its own, which others
            may write to; by default all of them, those that are not lists of parts in memory of their own.
    """
    where, block = Where(program.mesh, op.axis.data), op.body.block
    ops, yielded = list(block.ops), op.terminator.args
    body = Body(program, where, ops, overwritten_operands(ops), frees=_frees(ops))
    parameters = [body.names.new(value) for value in op.captured]
    name = program.new_function(op.label.data, [])
    in_place = summed_in_place(op)
    statements = list(body.statements([each for each in block.ops if each is not block.last_op]))
    if order is None:
        order = [(index, how(op, sharding_of(value)) != LISTED) for index, value in enumerate(yielded)]
    repeated = [index for index, _ in order]
    given: list[str] = []
    for index, owned in order:
        copied = owned and (not in_place[index] or repeated.count(index) > 1)
        given.append(body.names[yielded[index]] + (".clone()" if copied else ""))
    end = [*program.tick(), "", *body.returned(given)]
    program.functions[name] = [*body.head(name, [PART, *parameters]), *statements, *end]
    return name


class Body:
    """
    One function while it is written.

    Args:
        where: its mesh, and the axis for whose parts it is called.
        ops: what it runs, in order.
        overwritten: by op, the operands whose memory it takes.
        frees: whether it drops what it does not need any more.
        last_use: if it is the function of a layer, the last op of the caller that reads each value.
    """

    def __init__(
        self,
        program: Program,
        where: Where,
        ops: Sequence[Operation],
        overwritten: Overwritten,
        *,
        frees: bool,
        last_use: dict[SSAValue, Operation] | None = None,
    ) -> None:
        self.program, self.where, self.overwritten, self.frees = program, where, overwritten, frees
        loops = where.loop is not None or any(isinstance(op, FragmentOp) for op in ops)
        self.is_layer = last_use is not None
        self.names = Names((PART, _TOTAL) if loops else (), without_number if self.is_layer else str)
        self.sizes = Sizes(program.table)
        self.calls = Calls(where, self.names, self.sizes)
        self.empties = Empties(where, self.names, self.sizes)
        self.collectives = Collectives(where, self.names, self.sizes, program.groups)
        if last_use is None:
            last_use = {value: op for op in ops if not isinstance(op, FreeOp) for value in read_by(op)}
        self.last_use, self.splits = last_use, LayeredOps(()).splits
        self.first, self.place = ops[0], ""

    def head(self, name: str, parameters: Sequence[str]) -> Iterator[str]:
        """`def name(comm, ...):`, once the statements are written."""
        yield from lines(call(f"def {name}", ["comm", *parameters]), suffix=":")
        if self.sizes.uses_rank:
            yield f"{INDENT}{RANK} = comm.rank"

    def statements(self, ops: Sequence[Operation], layers: LayeredOps | None = None) -> Iterator[str]:
        """
        The lines of all ops; equal layers are calls of one function.

        Args:
            layers: of the ops, where they are known.
        """
        layers = layers or self.layers(ops)
        self.splits = layers.splits
        for item in layers.items:
            if isinstance(item, LayerCall):
                yield from self._layer(layers.functions[item], item)
            else:
                yield from self.statement(item)

    def layers(self, ops: Sequence[Operation], lists: Sequence[Sequence[SSAValue]] = ()) -> LayeredOps:
        """
        The equal layers of some ops; none in a program that says which op comes next.

        Args:
            lists: of values that no op makes.
        """
        if self.program.ticks is not None:
            return LayeredOps(ops)
        return find_layers(ops, ValueUses(self.overwritten, self.last_use), lists)

    def _layer(self, function: LayerFunction, each: LayerCall) -> Iterator[str]:
        """A call of the function of a layer, which is written for the first."""
        if not function.name:
            self._layer_function(function)
        kind = "" if each.phase == "forward" else f", {each.phase}"
        here = f"{each.block or function.name}{kind}"
        if here != self.place:
            self.place = here
            yield from ("", f"{INDENT}# {here}")
        yield from call_of_layer(function, each, self.names, ["comm", PART] if self.where.loop else ["comm"])

    def _layer_function(self, function: LayerFunction) -> None:
        first = function.calls[0]
        family = first.block.rpartition(".")[0]
        function.name = self.program.new_function(f"{family}_{first.phase}" if family else first.phase, [])
        body = Body(self.program, self.where, first.ops, self.overwritten, frees=self.frees, last_use=self.last_use)
        parameters, streams, unpacked = parameters_of(function, body.names, self.names)
        body.calls.streams = dict(zip(first.streams, streams, strict=True))
        statements = [line for op in first.ops for line in body.statement(op)]
        parameters = [PART, *parameters] if self.where.loop else parameters
        self.program.functions[function.name] = [
            *body.head(function.name, parameters),
            *unpacked,
            *statements,
            *return_of(function, body.names),
        ]

    def statement(self, op: Operation) -> Iterator[str]:
        """The lines of one op."""
        match op:
            case ReturnOp():
                yield from self.program.tick()
                yield ""
                yield from self.returned(self.names.listed(op.arguments))
            case FreeOp():
                yield from self.free(op.args)
            case FragmentOp():
                yield from self._loop(op)
            case ComputeOp() | CollectiveOp() | StartOp() | WaitOp() | AccumulateOp():
                self._check(op)
                yield from self.comment(op)
                yield from self.program.tick(op)
                try:
                    yield from self._assignment(op)
                except VerifyException as error:
                    raise EmitError(op, str(error)) from error
                if isinstance(op, WaitOp):
                    yield from self._end(op.token)
            case _:
                raise EmitError(op, "is not an op of a lowered step")

    def _check(self, op: Operation) -> None:
        """Refuse an op of which it is not clear for which part it runs; what sums over parts runs for all."""
        if isinstance(op, AccumulateOp) or (isinstance(op, CollectiveOp) and self._is_over_loop(op)):
            return
        for value in op.operands if not isinstance(op, WaitOp) else ():
            if not isinstance(value.type, TokenType) and (left := self.where.unsettled(op, sharding_of(value))):
                axis = min(left)
                raise EmitError(op, f'has an operand split over time along "{axis}"; run accumulate or duplex first')

    def _is_over_loop(self, op: CollectiveOp) -> bool:
        """Whether an op takes what a loop gives: the sum of the parts, or all of them."""
        return isinstance(op.operand.owner, FragmentOp) and self.where.temporal.issuperset(_axes(op))

    def comment(self, op: Operation) -> Iterator[str]:
        """A line that says which layer and line of the model follows, where that changes."""
        here = place(op, WIDTH - len(f"{INDENT}# "))
        here = any_number(here) if self.is_layer else here
        if here and here != self.place:
            self.place = here
            if op is not self.first:
                yield ""
            yield f"{INDENT}# {here}"
        if isinstance(op, ComputeOp) and (copied := operands_to_copy(op, self.overwritten[op])):
            names = ", ".join(self.names[op.args[index]] for index in sorted(copied))
            yield f"{INDENT}# still needed as it is: {names}"[:WIDTH]

    def _loop(self, op: FragmentOp) -> Iterator[str]:
        """A call for every part, the sums of what they give being made as they come."""
        name = fragment_function(self.program, op)
        made = call(name, ["comm", PART, *(self.names[value] for value in op.captured)])
        kinds = tuple(how(op, sharding_of(value)) for value in op.terminator.args)
        options = [] if set(kinds) <= {Reduction.SUM.value} else [keyword("how", literal(kinds))]
        count = self.program.mesh.axis(op.axis.data).size
        self.place = ""
        yield ""
        yield f"{INDENT}# {count} parts of the batch, one after the other"
        yield f"{INDENT}{_TOTAL} = []"
        yield f"{INDENT}for {PART} in range({count}):"
        yield from assignment([_TOTAL], call("rt.accumulate", [_TOTAL, made, *options]), INDENT * 2)
        targets = [self._target(op, index) for index in range(len(op.results))]
        if targets:
            yield from assignment(targets, Group(_TOTAL, (), ""), INDENT, unpacked=True)
        yield f"{INDENT}del {_TOTAL}"

    def _assignment(self, op: ComputeOp | CollectiveOp | StartOp | WaitOp | AccumulateOp) -> Iterator[str]:
        """`results = call(...)`."""
        source = self.names[op.operands[0]] if op.operands else ""
        targets = self._targets(op)
        key = next((name for name in targets if name != _UNUSED), op.name)
        match op:
            case ComputeOp():
                expression = self.calls.expression(op, key, self.overwritten[op])
                expression = self.empties.guarded(op, key, expression)
            case CollectiveOp() if op.KIND is CollectiveKind.ALL_REDUCE and self._is_over_loop(op):
                if self.overwritten[op]:
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
        if (groups := self.splits.get(op)) is not None:
            expression = self._grouped(op, groups, expression)
        unpacked = op in self.splits or isinstance(op, WaitOp) or (isinstance(op, ComputeOp) and returns_list(op))
        yield from assignment(targets, expression, INDENT, unpacked=unpacked)

    def _accumulated(self, op: AccumulateOp, total: str) -> Group:
        """The sum of two parts, in the memory of the first where nothing else reads that."""
        partial = dict(sharding_of(op.total).partial)
        kind = next(partial[axis] for axis in partial if axis in self.where.temporal)
        if kind is Reduction.SUM and self.overwritten[op]:
            return call(f"{total}.add_", [self.names[op.part]])
        function = {Reduction.SUM: "torch.add", Reduction.MAX: "torch.maximum", Reduction.MIN: "torch.minimum"}[kind]
        return call(function, [total, self.names[op.part]])

    def _targets(self, op: Operation) -> list[str]:
        """The names of the results, or of the lists of them; none where all of many are written in place."""
        if (groups := self.splits.get(op)) is not None:
            label = _JOINED.get(op.start.collective) if isinstance(op, WaitOp) else None
            return [self._group(group, label or _JOINED_OTHERWISE) for group in groups]
        targets = [self._target(op, index) for index in range(len(op.results))]
        written = {self.names[op.operands[operand]] for operand in self.overwritten[op]}
        # The lists of layers have what is written in place.
        listed = any(self.names.list_of(value) is not None for value in op.results)
        return [] if listed and isinstance(op, ComputeOp) and is_update(op) and written.issuperset(targets) else targets

    @staticmethod
    def _grouped(op: Operation, groups: Sequence[Sequence[SSAValue]], results: Doc) -> Group:
        """The results of an op as lists: of neighbours by their sizes, else by the number of the list of each."""
        if [value for group in groups for value in group] == list(op.results):
            return call("rt.split", [results, *(str(len(group)) for group in groups)])
        numbers = {value: number for number, group in enumerate(groups) for value in group}
        return call("rt.grouped", [results, literal([numbers[value] for value in op.results])])

    def _group(self, values: Sequence[SSAValue], label: str) -> str:
        """The name of a list of results, or the names of a few: `(a, b)`."""
        if len(values) >= SHORTEST_LIST:
            return self.names.new_list(values, label)
        named = [_UNUSED if _is_unused(value) else self.names.new(value) for value in values]
        return f"({', '.join(named)}{',' if len(named) == 1 else ''})"

    def _target(self, op: Operation, index: int) -> str:
        """The name of a result: that of the operand of which it is a new form, or its own."""
        result = op.results[index]
        if _is_unused(result):
            return _UNUSED
        operand = self._earlier_form(op, index)
        if operand is not None and (named := self.names.list_of(operand)) is not None and named.variable:
            operand = None
        if operand is not None and self.names.holds(operand):
            if isinstance(op, TrainOp) or base_name(result) in (None, base_name(operand)):
                return self.names.share(result, operand)
        if operand is not None and isinstance(op, CollectiveOp) and self._is_over_loop(op):
            return self.names.share(result, operand)
        return self.names.new(result, "token" if isinstance(op, StartOp) else None)

    def _earlier_form(self, op: Operation, index: int) -> SSAValue | None:
        """The operand that is not read again and whose memory or, by a collective, place a result takes."""
        match op:
            case ComputeOp() | AccumulateOp():
                return next((op.operands[i] for i, out in self.overwritten[op].items() if out == index), None)
            case CollectiveOp() | WaitOp():
                source = op.operand if isinstance(op, CollectiveOp) else op.start.args[index]
                return source if self.last_use[source] is op else None
            case _:
                return None

    def _end(self, token: SSAValue) -> Iterator[str]:
        """Drop a token, which holds on to operands and results."""
        freed = any(isinstance(use.operation, FreeOp) for use in token.uses)
        if self.frees and not freed:
            yield f"{INDENT}del {self.names[token]}"
            self.names.release(token)

    @staticmethod
    def returned(names: list[str]) -> Iterator[str]:
        """`return names`."""
        line = f"{INDENT}return {', '.join(names)}{',' if len(names) == 1 else ''}"
        yield from [line] if len(line) <= WIDTH else lines(tuple_of(names, "return "), INDENT)

    def free(self, values: Iterable[Named]) -> Iterator[str]:
        """`del` of the names that still stand for values that are freed: as many to a line as fit."""
        freed = [value for value in values if self.names.holds(value)]
        yield from let_go(self.names, freed)
        for value in freed:
            listed = self.names.list_of(value) is not None
            if listed or isinstance(value, PartOf) or isinstance(value.type, TokenType):
                self.names.release(value)


def _is_unused(value: SSAValue) -> bool:
    return all(isinstance(use.operation, FreeOp) for use in value.uses)


def _frees(ops: Iterable[Operation]) -> bool:
    return any(isinstance(op, FreeOp) for op in ops)


def read_by(op: Operation) -> Iterable[SSAValue]:
    """The values whose memory `op` reads; what was started is read until it is over."""
    match op:
        case WaitOp():
            return (op.token, *op.start.args)
        case FragmentOp():
            return op.captured
        case _:
            return op.operands


def _axes(op: CollectiveOp) -> Iterator[str]:
    return (axis for axes in op.axes.data for axis in axes)


def how(op: FragmentOp, given: Sharding) -> str:
    """What becomes of the parts of a value that a fragment yields: their reduction, or the list of them."""
    axis = op.axis.data
    if axis in given.split_axes:
        return LISTED
    if (kind := dict(given.partial).get(axis)) is None:
        raise EmitError(op, f'yields a value spread as {given}, which is not made part by part along "{axis}"')
    return kind.value
