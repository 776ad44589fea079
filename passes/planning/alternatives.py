"""
Find the alternatives of one decision of a plan, and the step time with each of them.

A decision is the home of an argument or the signature of an op; a glob names several decisions, if they have the same
alternatives. On the plan's layout the strategy is searched again with this decision fixed and all others free, by the
plan's own way to search and by the usual ways. Each way compiles and simulates the few alternatives with the least
objective. The objective only orders the alternatives, since the time of a step is not a sum.
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
from .candidates import FIRST, Candidate
from .notes import Refused

FEW = 3
"""Number of alternatives that are simulated for each way to search."""

MOST_SOLVED = 32
"""Most alternatives that are solved; they are the cheapest ones while all other decisions are unchanged."""

State = Sharding | Signature

_GRAD = ".grad"


class NoSuchDecision(ValueError):
    """Raised for a name that matches no single decision: the message says why, `known` has the names that exist."""

    def __init__(self, message: str, known: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.known = tuple(known)


@dataclass(frozen=True)
class Subject:
    """
    The arguments or ops that a name refers to.

    Args:
        names: names of arguments, or of the results of ops.
        is_op: whether the names are results of ops.
    """

    names: frozenset[str]
    is_op: bool

    def found_in(self, view: StepView) -> Iterator[ComputeOp | BlockArgument]:
        """Yield the arguments or ops of a stage that the subject refers to."""
        if self.is_op:
            yield from (op for op in view.ops if any(result.name_hint in self.names for result in op.outs))
        else:
            yield from (argument.argument for argument in view.inputs if argument.name in self.names)


@dataclass(frozen=True)
class Decided:
    """
    The decision of a plan on one value or op.

    Args:
        stage: stage of a pipeline, or None.
        operands, results: names and shapes of the operands and results of an op.
        working: sharding of the copy that the users of a value share, if it differs from the home.
        regathered: whether this copy is gathered again for backward.
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
    Another state of a decision, and the best step found with it.

    Args:
        objective: the least weighted sum, by the first way to search that had the state among its few best.
        seconds, exposed, peak_bytes: results of the fastest program with the state, or None without a program.
        memory_bytes: memory of the rank that comes closest to its limit.
        why_none: why the state has no program.
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
        """Return whether every rank has the memory that it needs."""
        return self.peak_bytes is not None and self.peak_bytes <= self.memory_bytes


@dataclass(frozen=True)
class Alternatives:
    """
    The decisions on a subject, and their best alternatives.

    Args:
        seconds: seconds of the plan's step.
        count: number of all states of the decision.
        others: the simulated alternatives, the fastest first.
    """

    decided: tuple[Decided, ...]
    seconds: float
    count: int
    others: tuple[Alternative, ...]


def find_subject(views: Sequence[StepView], name: str) -> Subject:
    """
    Return the subject of a name: an argument as in pins, the gradient of a parameter, the result of an op, or a glob.

    Raises NoSuchDecision if nothing has that name.
    """
    arguments = dict.fromkeys(argument.name for view in views for argument in view.inputs if argument.role)
    results = dict.fromkeys(
        result.name_hint for view in views for op in view.ops for result in op.outs if result.name_hint
    )
    grads = {f"{parameter}{_GRAD}": update.args[at] for view in views for parameter, update, at in view.grads()}
    for names, is_op in ((arguments, False), (results, True)):
        if matches := frozenset([name] if name in names else fnmatch.filter(names, name)):
            return Subject(matches, is_op)
    producers = frozenset(_made_as(grads[grad]) for grad in fnmatch.filter(grads, name))
    if producers and "" not in producers:
        return Subject(producers, is_op=True)
    raise NoSuchDecision(
        f"there is no parameter, optimizer state, batch input or result of an op called '{name}'",
        [*arguments, *results, *grads],
    )


def _made_as(value: SSAValue) -> str:
    """Return the name of a value that a compute op produces; empty for other values."""
    return value.name_hint or "" if isinstance(value, OpResult) and isinstance(value.op, ComputeOp) else ""


class Question:
    """
    Asks about one decision of a candidate; an instance is used once.

    Args:
        observe: called with a line of text before each slow step.
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
        """Return the plan's own way to search; for a preset, which fixes nearly everything, also the usual ways."""
        choice = self.candidate.choice
        free = FIRST if choice.pins else ()
        choices = (choice, *(replace(option, balanced=choice.balanced, fits=choice.fits) for option in free))
        return [replace(self.candidate, choice=option) for option in choices]

    def answer(self) -> Alternatives:
        """Return the decision and its best alternatives."""
        self.observe("the plan again")
        solved = self.bench.solve(self.candidate)
        written = self.bench.written(solved)
        decided = tuple(d for view, _ in step_views(written) for d in _decided(view, self.subject))
        self.steps[solved.fingerprint] = plan = self.bench.finish(solved)
        chosen = {decision.state for decision in decided}
        best: dict[State, Alternative] = {}
        count = 0
        for way in self.ways:
            count, ranked = self._ranked(way)
            others = [it for it in ranked if len(chosen) > 1 or not any(is_same(other, it[0]) for other in chosen)]
            for state, objective in others[:FEW]:
                tried = self._tried(way, state, objective)
                best[state] = min(best.get(state, tried), tried, key=_order)
        return Alternatives(decided, plan.seconds, count, tuple(sorted(best.values(), key=_order)))

    def _ranked(self, way: Candidate) -> tuple[int, list[tuple[State, float]]]:
        """Return the number of states, and the feasible ones with their least objective while fixed, the best first."""
        self.observe(f"the objective of each alternative: {way.name}")
        problems = [
            (problem, nodes)
            for view, problem in self.bench.problems(way, _opened(self.subject))
            if (nodes := _nodes(problem, self.subject, view))
        ]
        states = self._states(problems)
        wanted = _promising(problems, len(states))
        objectives = {index: sum(_objective(*problem, index) for problem in problems) for index in wanted}
        finite = [index for index in wanted if objectives[index] < float("inf")]
        ordered = sorted(finite, key=objectives.__getitem__)
        return len(states), [(states[index], objectives[index]) for index in ordered]

    def _states(self, problems: list[tuple[StrategyProblem, list[int]]]) -> tuple[State, ...]:
        """Return the states of the decision; raise NoSuchDecision if the matches of a glob have different states."""
        by_match = [problem.decisions[node].states for problem, nodes in problems for node in nodes]
        if any(states != by_match[0] for states in by_match):
            raise NoSuchDecision(
                f"the {len(by_match)} values that '{self.name}' matches have different alternatives: choose one of them"
            )
        return by_match[0]

    def _tried(self, way: Candidate, state: State, objective: float) -> Alternative:
        """Return the best program with a state that one way to search finds."""
        self.observe(f"{state}: {way.name}")
        try:
            solved = self.bench.solve(way, _fixed(self.subject, state))
            if solved.fingerprint not in self.steps:
                self.steps[solved.fingerprint] = self.bench.finish(solved)
        except Refused as error:
            return Alternative(state, objective, why_none=str(error))
        finished = self.steps[solved.fingerprint]
        return Alternative(state, objective, finished.seconds, finished.exposed, *finished.tightest[:2])


def _order(given: Alternative) -> tuple[bool, bool, float]:
    """Return the sort key: feasible alternatives come first, then fitting ones, then the fastest."""
    return given.seconds is None, not given.fits, given.seconds or given.objective


def _decided(view: StepView, subject: Subject) -> Iterator[Decided]:
    names = {argument.argument: argument.name for argument in view.inputs}
    for item in subject.found_in(view):
        if isinstance(item, ComputeOp):
            assert item.signature is not None
            operands, results = (tuple(map(_label, values)) for values in (item.args, item.outs))
            name = next(result.name_hint or "" for result in item.outs if result.name_hint in subject.names)
            yield Decided(name, item.signature, view.stage, item.name, operands, results)
        else:
            home = sharding_of(item)
            yield Decided(names[item], home, view.stage, working=working_of(item), regathered=is_regathered(item))


def _label(value: SSAValue) -> str:
    shape = "x".join(map(str, shape_of(value))) or "scalar"
    return f"{value.name_hint or '?'} {shape}"


def _nodes(problem: StrategyProblem, subject: Subject, view: StepView) -> list[int]:
    """Return the nodes of a stage's problem that decide a subject; for a value its home, not its copy."""
    wanted = {id(item) for item in subject.found_in(view)}
    return [i for i, decision in enumerate(problem.decisions) if id(decision.subject) in wanted and not decision.copy]


def _promising(problems: list[tuple[StrategyProblem, list[int]]], count: int) -> list[int]:
    """Return all states if they are few, or the cheapest ones while every other decision is as in the optimum."""
    if count <= MOST_SOLVED:
        return list(range(count))
    costs = np.zeros(count)
    for problem, nodes in problems:
        costs += _local_costs(problem.problem, nodes, good_solution(problem.problem).assignment)
    return sorted(range(count), key=lambda index: float(costs[index]))[:MOST_SOLVED]


def _local_costs(problem: Problem, nodes: list[int], assignment: States) -> Costs:
    """Return the cost of each state of some decisions, with all other decisions as in an assignment."""
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
    """Return the least cost of a problem with some decisions in one state, or infinity if that is infeasible."""
    unary, by_array = list(problem.problem.unary), dict[int, Costs]()
    for node in nodes:
        # Equal decisions share one array, so that equal layers are solved once.
        if id(unary[node]) not in by_array:
            by_array[id(unary[node])] = fixed = np.full(len(unary[node]), np.inf)
            fixed[state] = unary[node][state]
        unary[node] = by_array[id(unary[node])]
    try:
        return float(good_solution(Problem(tuple(unary), problem.problem.edges)).cost)
    except (Infeasible, LimitReached):
        return float("inf")


def _opened(subject: Subject) -> Narrow:
    """Return a function that leaves a subject open, as far as pins in the IR allow."""

    def narrow(view: StepView, constraints: Constraints) -> None:
        asked = constraints_of(view)
        for item in subject.found_in(view):
            if isinstance(item, ComputeOp):
                constraints.ops[item] = asked.ops.get(item, SignatureLimit())
            else:
                constraints.arguments[item.index] = asked.arguments.get(item.index, ShardingLimit())

    return narrow


def _fixed(subject: Subject, state: State) -> Narrow:
    """Return a function that gives a subject one state, if pins in the IR allow it."""
    opened = _opened(subject)

    def narrow(view: StepView, constraints: Constraints) -> None:
        opened(view, constraints)
        for item in subject.found_in(view):
            if isinstance(item, ComputeOp) and isinstance(state, Signature):
                constraints.ops[item] = replace(constraints.ops[item], signature=state)
            elif isinstance(item, BlockArgument) and isinstance(state, Sharding):
                before = constraints.arguments[item.index]
                constraints.arguments[item.index] = replace(before, sharding=before.sharding or state)

    return narrow
