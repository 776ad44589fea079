"""
What else one decision of a plan could have been, and what the step would then take.

A decision is the home of an argument, or the signature of an op; of several at once, by a glob, where they have the
same alternatives. On the plan's layout the strategy is searched again with that decision fixed and all others free, by
the plan's own way to search and by the usual ones; for each way the few alternatives with the least objective are made
programs and simulated. The objective orders alternatives and no more: a step is not a sum.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from xdsl.ir import BlockArgument, OpResult, SSAValue

from ...dialects.compute import ComputeOp, shape_of
from ...dialects.step import is_regathered, sharding_of, working_of
from ...ir.pins import ShardingLimit, SignatureLimit, is_same
from ...ir.sharding import Sharding
from ...ir.signatures import Signature
from ..search.constraints import Constraints, constraints_of
from ..search.eliminate import LimitReached
from ..search.problem import Costs, Infeasible, Problem, States
from ..search.strategy_problem import StrategyProblem
from ..step.step_view import StepView, step_views
from .candidate_compiler import CandidateCompiler, Finished, Narrow, good_solution
from .candidates import Candidate
from .explore import FIRST
from .notes import Refused

FEW = 3
"""How many alternatives are simulated, for each way to search."""

MOST_SOLVED = 32
"""Of so many alternatives, those that look best with all other decisions as they were, the objective is found."""

State = Sharding | Signature

_GRAD = ".grad"


class NoSuchDecision(ValueError):
    """A name that leads to no decision: the message says why, `known` has the names that there are."""

    def __init__(self, message: str, known: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.known = tuple(known)


@dataclass(frozen=True)
class Subject:
    """
    The values, or ops, that a name means.

    Args:
        names: of arguments, or of the results of ops.
        is_op: which of the two.
    """

    names: frozenset[str]
    is_op: bool

    def found_in(self, view: StepView) -> Iterator[ComputeOp | BlockArgument]:
        """What there is of it on a stage."""
        if self.is_op:
            yield from (op for op in view.ops if any(result.name_hint in self.names for result in op.outs))
        else:
            yield from (given.argument for given in view.inputs if given.name in self.names)


@dataclass(frozen=True)
class Decided:
    """
    What a plan decided on one value or op.

    Args:
        stage: of a pipeline.
        operands, results: names and shapes of an op's.
        working: the sharding of the copy that the users of a value share, where it is another.
        regathered: whether that copy is made again for backward.
    """

    name: str
    state: State
    stage: int | None = None
    op: str = ""
    operands: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    working: Sharding | None = None
    regathered: bool = False


@dataclass(frozen=True)
class Alternative:
    """
    Another state of a decision, and the best step that was found with it.

    Args:
        objective: the least weighted sum, of the first way to search in which it was among the few.
        seconds, exposed, peak_bytes: of the fastest of its programs; None where there is none.
        memory_bytes: what the rank has that comes closest to its memory.
        why_none: it cannot be.
    """

    state: State
    objective: float
    seconds: float | None = None
    exposed: float | None = None
    peak_bytes: int | None = None
    memory_bytes: float = 0.0
    why_none: str = ""

    @property
    def fits(self) -> bool:
        """Whether every rank has the memory that it needs."""
        return self.peak_bytes is not None and self.peak_bytes <= self.memory_bytes


@dataclass(frozen=True)
class Alternatives:
    """
    What was decided on a subject, and what else could have been.

    Args:
        seconds: of the plan's step.
        count: of all states that the decision has.
        others: the few, the fastest first.
    """

    decided: tuple[Decided, ...]
    seconds: float
    count: int
    others: tuple[Alternative, ...]


def find_subject(views: Sequence[StepView], name: str) -> Subject:
    """
    What a name means: an argument as in pins, the gradient of a parameter, or the result of an op; or a glob of such.

    NoSuchDecision where there is nothing of that name.
    """
    arguments = dict.fromkeys(given.name for view in views for given in view.inputs if given.role)
    results = dict.fromkeys(
        result.name_hint for view in views for op in view.ops for result in op.outs if result.name_hint
    )
    grads = {f"{parameter}{_GRAD}": update.args[at] for view in views for parameter, update, at in view.grads()}
    for known, is_op in ((arguments, False), (results, True)):
        if found := frozenset([name] if name in known else fnmatch.filter(known, name)):
            return Subject(found, is_op)
    made = frozenset(_made_as(grads[each]) for each in fnmatch.filter(grads, name))
    if made and "" not in made:
        return Subject(made, is_op=True)
    raise NoSuchDecision(
        f"there is no parameter, optimizer state, batch input or result of an op called '{name}'",
        [*arguments, *results, *grads],
    )


def _made_as(value: SSAValue) -> str:
    """The name of a value that an op makes; none where no op of its own does."""
    return value.name_hint or "" if isinstance(value, OpResult) and isinstance(value.op, ComputeOp) else ""


class Question:
    """
    Asks a workbench about one decision of a candidate; one use.

    Args:
        observe: called with a line before each step that takes long.
    """

    def __init__(
        self, bench: CandidateCompiler, candidate: Candidate, name: str, observe: Callable[[str], None] = lambda _: None
    ) -> None:
        self.bench, self.candidate, self.observe = bench, candidate, observe
        self.subject = find_subject([view for view, _ in bench.laid_out(candidate.layout)], name)
        self.name = name
        self.steps: dict[object, Finished] = {}

    @property
    def ways(self) -> list[Candidate]:
        """The plan's own way to search; of a preset, which binds nearly all there is, the usual ones as well."""
        choice = self.candidate.choice
        free = FIRST if choice.pins else ()
        choices = (choice, *(replace(each, balanced=choice.balanced, fits=choice.fits) for each in free))
        return [replace(self.candidate, choice=each) for each in choices]

    def answer(self) -> Alternatives:
        """What was decided, and what else could have been."""
        self.observe("the plan again")
        solved = self.bench.solve(self.candidate)
        written = self.bench.written(solved)
        decided = tuple(d for view, _ in step_views(written) for d in _decided(view, self.subject))
        self.steps[solved.fingerprint] = plan = self.bench.finish(solved)
        chosen = {each.state for each in decided}
        best: dict[State, Alternative] = {}
        count = 0
        for way in self.ways:
            count, ranked = self._ranked(way)
            others = [each for each in ranked if len(chosen) > 1 or not _is_one_of(each[0], chosen)]
            for state, objective in others[:FEW]:
                tried = self._tried(way, state, objective)
                best[state] = min(best.get(state, tried), tried, key=_order)
        return Alternatives(decided, plan.seconds, count, tuple(sorted(best.values(), key=_order)))

    def _ranked(self, way: Candidate) -> tuple[int, list[tuple[State, float]]]:
        """How many states there are, and those that can be, each with the least objective where it is fixed."""
        self.observe(f"the objective of each alternative: {way.choice.name}")
        problems = [
            (problem, nodes)
            for view, problem in self.bench.problems(way, _opened(self.subject))
            if (nodes := _nodes(problem, self.subject, view))
        ]
        states = self._states(problems)
        wanted = _promising(problems, len(states))
        objectives = {index: sum(_objective(*each, index) for each in problems) for index in wanted}
        finite = [index for index in wanted if objectives[index] < float("inf")]
        ordered = sorted(finite, key=objectives.__getitem__)
        return len(states), [(states[index], objectives[index]) for index in ordered]

    def _states(self, problems: list[tuple[StrategyProblem, list[int]]]) -> tuple[State, ...]:
        """The states of the decision; NoSuchDecision where those that a glob matches differ in theirs."""
        known = [problem.decisions[node].states for problem, nodes in problems for node in nodes]
        if any(each != known[0] for each in known):
            raise NoSuchDecision(
                f"the {len(known)} values that '{self.name}' matches have different alternatives: choose one of them"
            )
        return known[0]

    def _tried(self, way: Candidate, state: State, objective: float) -> Alternative:
        """The best program with a state that one way to search finds."""
        self.observe(f"{state}: {way.choice.name}")
        try:
            solved = self.bench.solve(way, _fixed(self.subject, state))
            if solved.fingerprint not in self.steps:
                self.steps[solved.fingerprint] = self.bench.finish(solved)
        except Refused as error:
            return Alternative(state, objective, why_none=str(error))
        made = self.steps[solved.fingerprint]
        return Alternative(state, objective, made.seconds, made.exposed, *made.tightest[:2])


def _order(given: Alternative) -> tuple[bool, bool, float]:
    """What is better comes first: what can be and fits, and is fast."""
    return given.seconds is None, not given.fits, given.seconds or given.objective


def _is_one_of(state: State, chosen: set[State]) -> bool:
    return any(is_same(each, state) for each in chosen)


def _decided(view: StepView, subject: Subject) -> Iterator[Decided]:
    """What a solved step has decided on a subject."""
    names = {given.argument: given.name for given in view.inputs}
    for each in subject.found_in(view):
        if isinstance(each, ComputeOp):
            assert each.signature is not None
            operands, results = (tuple(map(_label, values)) for values in (each.args, each.outs))
            name = next(result.name_hint or "" for result in each.outs if result.name_hint in subject.names)
            yield Decided(name, each.signature, view.stage, each.name, operands, results)
        else:
            home = sharding_of(each)
            yield Decided(names[each], home, view.stage, working=working_of(each), regathered=is_regathered(each))


def _label(value: SSAValue) -> str:
    shape = "x".join(map(str, shape_of(value))) or "scalar"
    return f"{value.name_hint or '?'} {shape}"


def _nodes(problem: StrategyProblem, subject: Subject, view: StepView) -> list[int]:
    """The decisions of a stage that a subject is: a value's home, not its copy."""
    wanted = {id(each) for each in subject.found_in(view)}
    return [i for i, each in enumerate(problem.decisions) if id(each.subject) in wanted and not each.copy]


def _promising(problems: list[tuple[StrategyProblem, list[int]]], count: int) -> list[int]:
    """The states that cost least where every other decision is as in the optimum; all, where they are few."""
    if count <= MOST_SOLVED:
        return list(range(count))
    costs = np.zeros(count)
    for problem, nodes in problems:
        costs += _local_costs(problem.problem, nodes, good_solution(problem.problem).assignment)
    return sorted(range(count), key=lambda index: float(costs[index]))[:MOST_SOLVED]


def _local_costs(problem: Problem, nodes: list[int], assignment: States) -> Costs:
    """What each state of some decisions costs with all others as in an assignment."""
    total = np.sum([problem.unary[node] for node in nodes], axis=0)
    for edge in problem.edges:
        if edge.u in nodes and edge.v in nodes:
            total = total + edge.table.diagonal()
        elif edge.u in nodes:
            total = total + edge.table[:, assignment[edge.v]]
        elif edge.v in nodes:
            total = total + edge.table[assignment[edge.u], :]
    return total


def _objective(problem: StrategyProblem, nodes: list[int], state: int) -> float:
    """The least that a problem costs with some decisions in one state; infinite where that cannot be."""
    unary, known = list(problem.problem.unary), dict[int, Costs]()
    for node in nodes:
        # Equal decisions share one array, so that equal layers are solved once.
        if id(unary[node]) not in known:
            known[id(unary[node])] = fixed = np.full(len(unary[node]), np.inf)
            fixed[state] = unary[node][state]
        unary[node] = known[id(unary[node])]
    try:
        return float(good_solution(Problem(tuple(unary), problem.problem.edges)).cost)
    except (Infeasible, LimitReached):
        return float("inf")


def _opened(subject: Subject) -> Narrow:
    """Leave a subject open, as far as what is pinned in the IR allows."""

    def narrow(view: StepView, constraints: Constraints) -> None:
        asked = constraints_of(view)
        for each in subject.found_in(view):
            if isinstance(each, ComputeOp):
                constraints.ops[each] = asked.ops.get(each, SignatureLimit())
            else:
                constraints.arguments[each.index] = asked.arguments.get(each.index, ShardingLimit())

    return narrow


def _fixed(subject: Subject, state: State) -> Narrow:
    """Give a subject one state, which what is pinned in the IR allows."""
    opened = _opened(subject)

    def narrow(view: StepView, constraints: Constraints) -> None:
        opened(view, constraints)
        for each in subject.found_in(view):
            if isinstance(each, ComputeOp) and isinstance(state, Signature):
                constraints.ops[each] = replace(constraints.ops[each], signature=state)
            elif isinstance(each, BlockArgument) and isinstance(state, Sharding):
                before = constraints.arguments[each.index]
                constraints.arguments[each.index] = replace(before, sharding=before.sharding or state)

    return narrow
