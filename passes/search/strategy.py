"""
Translate a step function into a discrete problem.

Decisions (nodes of `problem.Problem`):

    op      one of the signatures of its rule; costs seconds
    home    the sharding in which an argument lives between steps; free
    arrival the sharding in which a value arrives from another stage of the pipeline; free
    copy    the working placement of a value with several users (home -> working -> demand), so that a resharding
            is paid once if several users share it

An edge costs the cheapest resharding from the sharding at one end to the sharding that the other end demands. Equal
uses of ops share their signature lists, cost vectors and tables, as the same objects, so that equal layers cost the
work of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
from xdsl.ir import BlockArgument, OpResult, SSAValue, Use

from ...dialects.compute import ComputeOp, dtype_of, element_bytes, shape_of
from ...dialects.ratios import ratios_of
from ...dialects.train import may_join
from ...ir.cluster import Cluster
from ...ir.pins import ShardingLimit, SignatureLimit
from ...ir.ratios import Splits
from ...ir.rules import Rule
from ...ir.sharding import Sharding
from ...ir.signatures import Signature, local_sizes, signatures
from ..analysis.comparisons import find_comparisons
from ..analysis.compute import ONCE, Turns, local_bytes, seconds_by_signature
from ..analysis.fusion import least_parts
from ..analysis.reductions import gradients_of_parameters, reductions_of
from ..analysis.resharding import all_shardings
from ..analysis.step_prices import Pricing
from ..step.factors import Factors
from ..step.step_view import StepView
from .constraints import Constraints
from .memory import Interval, Lifetimes, Prices, owns_memory
from .objective import BatchLoop, Price, ShardingChange, Weights
from .problem import Costs, Edge, Problem
from .shared_tables import Port, Tables
from .strategy_problem import Decision, EdgeTraffic, StrategyProblem


def build_problem(
    view: StepView,
    cluster: Cluster,
    constraints: Constraints,
    weights: Weights = Weights(),
    prices: Prices = Prices(),
    tables: Tables | None = None,
    loop: BatchLoop | None = None,
    factors: Factors | None = None,
) -> StrategyProblem:
    """
    Return the problem of choosing a signature for every op of the step, with memory charged at `prices`.

    Args:
        tables: tables of earlier problems on the same cluster.
        loop: parts into which the batch will be cut, if it will be.
        factors: factors of an earlier problem of the same view.
    """
    return _Builder(view, cluster, constraints, weights, prices, tables, loop, factors).build()


class _Builder:
    """Collects nodes and edges; one use."""

    def __init__(
        self,
        view: StepView,
        cluster: Cluster,
        constraints: Constraints,
        weights: Weights,
        prices: Prices,
        tables: Tables | None,
        loop: BatchLoop | None,
        factors: Factors | None,
    ) -> None:
        self.view, self.cluster, self.constraints, self.weights = view, cluster, constraints, weights
        self.prices, self.lifetimes, self.reductions = prices, Lifetimes(view, loop), reductions_of(view.func)
        self.comparisons = find_comparisons(view)
        self.factors = factors if factors is not None else Factors(view, ratios_of(view.func, view.mesh))
        self.tables, self.loop = tables if tables is not None else Tables(cluster), loop
        self.parts = least_parts(view.func)
        self.unary: list[Costs] = []
        self.edges: list[Edge] = []
        self.traffic: list[EdgeTraffic] = []
        self.ends: dict[int, Costs] = {}
        self.seconds: list[Costs | None] = []
        self.decisions: list[Decision] = []
        self.op_nodes: dict[int, int] = {}
        self.home_nodes: dict[int, int] = {}
        self.arrival_nodes: dict[int, int] = {}

    def build(self) -> StrategyProblem:
        for step_input in self.view.inputs:
            self._home(step_input.argument)
        for transfer in self.view.arrivals:
            self._arrival(transfer.result)
        for op in self.view.ops:
            self._op(op)
        for step_input in self.view.inputs:
            self._uses(
                step_input.argument, self.home_nodes[step_input.argument.index], self._homes(step_input.argument)
            )
        for transfer in self.view.arrivals:
            self._uses(transfer.result, self.arrival_nodes[id(transfer.result)], self._homes(transfer.result))
        for op in self.view.ops:
            for index, result in enumerate(op.outs):
                node = self.op_nodes[id(op)]
                self._uses(result, node, self.tables.port(self._states(node), True, index))
        self._results()
        self._departures()
        problem = Problem(tuple(self.unary), tuple(self.edges))
        spatial = frozenset(axis.name for axis in self.view.mesh.spatial)
        return StrategyProblem(problem, self.decisions, self.seconds, self.traffic, self.ends, spatial)

    def _node(self, decision: Decision, unary: Costs, seconds: Costs | None = None) -> int:
        self.decisions.append(decision)
        self.unary.append(unary)
        self.seconds.append(seconds)
        return len(self.unary) - 1

    def _states(self, node: int) -> tuple[Signature, ...]:
        return self.decisions[node].states  # pyright: ignore[reportReturnType]

    def _op(self, op: ComputeOp) -> None:
        rule = self.comparisons.rule(op)
        turns = self.loop.turns_of(op) if self.loop is not None else ONCE
        limits = self.constraints.of_op(op)
        if op in self.reductions.reduced:
            limits = replace(limits or SignatureLimit(), takes_partial=False)
        # Even splits become None, so that equal ops have equal keys.
        splits = self.factors.of_op(op)
        splits = None if splits.is_even(self.view.mesh) else splits
        tables = self.tables
        every = self._signatures(op, rule, splits, turns)
        key = (id(rule), splits, limits, turns)
        if key not in tables.signatures:
            allowed = tuple(s for s in every if limits is None or limits.allows(s))
            tables.signatures[key] = allowed or self.constraints.refuse_op(op)
            tables.wider[id(tables.signatures[key])] = every
        states = tables.signatures[key]
        held = self._held_results(op)
        weight = self.weights.of_op(op)
        cost_key = (id(states), op.name, dtype_of((op.args or op.outs)[0]), held, weight, turns, self.parts.get(op))
        if cost_key not in tables.unary:
            costs = weight * self._seconds(op, states, turns)
            for index, price in held:
                costs += price * self._bytes(op.outs[index], tables.port(states, True, index))
            costs.flags.writeable = False
            tables.unary[cost_key] = costs
        seconds = self._seconds(op, states, turns)
        self.op_nodes[id(op)] = self._node(Decision(op, states), tables.unary[cost_key], seconds)

    def _signatures(self, op: ComputeOp, rule: Rule, splits: Splits | None, turns: Turns) -> tuple[Signature, ...]:
        """Return all signatures of an op, before limits."""
        key = (id(rule), splits, None, turns)
        if key not in self.tables.signatures:
            every = (s for s in signatures(rule, self.view.mesh, splits) if self._can_turn(op, s, turns))
            self.tables.signatures[key] = tuple(every)
            self.tables.kept.append(rule)
        return self.tables.signatures[key]

    def _can_turn(self, op: ComputeOp, given: Signature, turns: Turns) -> bool:
        """Whether each device's part can be cut into as many parts as there are turns."""
        return turns.factor is None or local_sizes(op.rule(), given, self.view.mesh)[turns.factor] >= turns.count

    def _seconds(self, op: ComputeOp, states: tuple[Signature, ...], turns: Turns) -> Costs:
        """Return the seconds of an op with each of its signatures."""
        part = self.parts.get(op)
        kind = (op.name, dtype_of((op.args or op.outs)[0]), turns, may_join(op), part)
        key = ("seconds", id(states), *kind)
        if key not in self.tables.unary:
            wider = self.tables.wider.get(id(states), ())
            seconds = self.tables.unary.get(("seconds", id(wider), *kind))
            if seconds is not None:
                at = {signature: index for index, signature in enumerate(wider)}
                self.tables.unary[key] = seconds[[at[signature] for signature in states]]
            else:
                self.tables.unary[key] = np.array(
                    seconds_by_signature(op, states, self.cluster, turns, joining=True, part=part)
                )
        return self.tables.unary[key]

    def _held_results(self, op: ComputeOp) -> tuple[tuple[int, float], ...]:
        """Return the results that stay in memory as computed, with the prices of their bytes."""
        if not self.prices.at or not owns_memory(op):
            return ()
        unshared = [(i, r) for i, r in enumerate(op.outs) if len(self._shared_uses(r)) < 2]
        priced = ((i, self._held_price(r, self.lifetimes.whole(r))) for i, r in unshared)
        return tuple((i, price) for i, price in priced if price)

    def _held_price(self, value: SSAValue, alive: Sequence[Interval]) -> float:
        """Return the price of a byte of a value, or of a copy of it, that is alive over intervals."""
        return self.prices.over(alive) * (self.loop.share_in_memory(value) if self.loop is not None else 1.0)

    def _bytes(self, value: SSAValue, port: Port) -> Costs:
        return np.array([float(local_bytes(value, sharding, self.view.mesh)) for sharding in port])

    def _homes(self, argument: SSAValue) -> Port:
        """Return the possible homes of an argument, or of a value that arrives from another stage."""
        splits, limits = self.factors.of_value(argument), self.constraints.of_input(argument)
        key = (splits, limits)
        if key not in self.tables.homes:
            states = all_shardings(splits, self.view.mesh, partial=False)
            states = tuple(s for s in states if limits.allows(s))
            self.tables.homes[key] = states or self.constraints.refuse_input(argument)
        return self.tables.homes[key]

    def _home(self, argument: BlockArgument) -> None:
        states = self._homes(argument)
        key = ("home", id(states), dtype_of(argument), self.prices.total)
        if key not in self.tables.unary:
            self.tables.unary[key] = self.prices.total * self._bytes(argument, states)
        self.home_nodes[argument.index] = self._node(Decision(argument, states), self.tables.unary[key])

    def _arrival(self, value: SSAValue) -> None:
        states = self._homes(value)
        price = self._held_price(value, self.lifetimes.whole(value)) if self.prices.at else 0.0
        key = ("arrival", id(states), dtype_of(value), price)
        if key not in self.tables.unary:
            self.tables.unary[key] = price * self._bytes(value, states)
        self.arrival_nodes[id(value)] = self._node(Decision(value, states), self.tables.unary[key])

    def _shared_uses(self, value: SSAValue) -> list[Use]:
        """Return the uses that share a working copy: all uses, except of an argument by its own update."""
        uses = [use for use in value.uses if isinstance(use.operation, ComputeOp)]
        if isinstance(value, BlockArgument):
            return [use for use in uses if not self.view.is_update_use(use)]
        return uses

    def _uses(self, value: SSAValue, node: int, port: Port) -> None:
        """Connect a value to its users, through a working copy if it has several."""
        shared = self._shared_uses(value)
        limits = self.constraints.of_copy(value)
        for use in value.uses:
            if isinstance(use.operation, ComputeOp) and use not in shared:
                self._demand(ShardingChange(value, "update", use.operation, use.index, 1 + len(shared)), node, port)
        if not shared or (len(shared) < 2 and not limits):
            for use in shared:
                self._demand(ShardingChange(value, "user", use.operation, use.index), node, port)
            return
        states = self.tables.union([port, *(self._port(use) for use in shared)])
        if limits:
            states = self._limited(value, states, limits)
        self._copy(value, node, port, states, shared)

    def _copy(self, value: SSAValue, node: int, port: Port, forms: Port, shared: Sequence[Use]) -> None:
        """Add the decision on a working copy: its sharding, and whether it is kept for backward or gathered again."""
        pinned = value in self.constraints.regathered
        options = (False,)
        if (pinned or self.prices.at) and self.lifetimes.crosses(value):
            # A copy for all parts of the batch is in memory until the last part, unless each part gathers it.
            is_kept = self.lifetimes.is_kept(value, regather=True)
            options = (True,) if pinned else (False,) if is_kept else (False, True)
        key = ("copy states", id(forms), options)
        states = self.tables.homes.setdefault(key, tuple(form for _ in options for form in forms))
        regather = tuple(option for option in options for _ in forms)
        owned = isinstance(value, OpResult) and isinstance(value.op, ComputeOp) and owns_memory(value.op)
        held = (
            tuple(self._held_price(value, self.lifetimes.copy(value, option)) for option in options)
            if self.prices.at
            else ()
        )
        kept = self._held_price(value, self.lifetimes.whole(value)) if self.prices.at and owned else 0.0
        copy = self._node(Decision(value, states, copy=True, regather=regather), self._free(len(states)))
        move = ShardingChange(value, "copy", users=len(shared))
        price = self._price(move)
        table = self._copy_table(value, port, forms, options, held, kept, price) if price.counts or held else None
        if table is not None:
            seconds = partial(self._copy_seconds, value, port, forms, options, _plain(price))
            self._join(node, copy, table, move, price, port, states, seconds)
        for use in shared:
            self._demand(ShardingChange(value, "user", use.operation, use.index, len(shared), states), copy, states)

    def _free(self, count: int) -> Costs:
        return self.tables.unary.setdefault(("free", count), np.zeros(count))

    def _copy_table(
        self,
        value: SSAValue,
        port: Port,
        forms: Port,
        options: tuple[bool, ...],
        held: tuple[float, ...],
        kept: float,
        price: Price,
    ) -> Costs | None:
        """Return the seconds from each home to each copy: each resharding, and the bytes of home and copy."""
        if options == (False,) and not held:
            return self._table(value, port, forms, price)
        often = self.lifetimes.gathers(value)
        size = (self.factors.of_value(value), element_bytes(value))
        key = (*size, id(port), id(forms), options, held, kept, price, often)
        if key not in self.tables.tables:
            once = self._table(value, port, forms, price)
            once = once if once is not None else np.zeros((len(port), len(forms)))
            differs = np.array([[a != b for b in forms] for a in port])
            home, form = self._bytes(value, port)[:, None], self._bytes(value, forms)[None, :]
            blocks: list[Costs] = []
            for option, charge in zip(options, held or (0.0,) * len(options), strict=True):
                # The copy of an owned value replaces the home; if regathered, and for arguments, the home stays too.
                stored = kept * (home if option else form) + charge * form * differs * (option or not kept)
                blocks.append(once * (often if option else 1) + stored)
            self.tables.tables[key] = np.ascontiguousarray(np.concatenate(blocks, axis=1))
        return self.tables.tables[key]

    def _copy_seconds(
        self, value: SSAValue, port: Port, forms: Port, options: tuple[bool, ...], price: Price
    ) -> Costs | None:
        """Return the resharding seconds from each home to each copy, more if it is gathered again for backward."""
        once = self._table(value, port, forms, price)
        if once is None or options == (False,):
            return once
        return np.concatenate([once * (self.lifetimes.gathers(value) if again else 1) for again in options], axis=1)

    def _limited(self, value: SSAValue, states: Port, limits: ShardingLimit) -> Port:
        key = ("copy", id(states), limits)
        if key not in self.tables.homes:
            allowed = tuple(s for s in states if limits.allows(s))
            self.tables.homes[key] = allowed or (Sharding.replicated(len(shape_of(value))),)
        return self.tables.homes[key]

    def _port(self, use: Use) -> Port:
        return self.tables.port(self._states(self.op_nodes[id(use.operation)]), False, use.index)

    def _demand(self, move: ShardingChange, node: int, port: Port) -> None:
        assert isinstance(move.to, ComputeOp)
        to = self.op_nodes[id(move.to)]
        self._edge(move, node, port, to, self.tables.port(self._states(to), False, move.operand))

    def _edge(self, move: ShardingChange, u: int, sources: Port, v: int, targets: Port) -> None:
        price = self._price(move)
        table = self._table(move.value, sources, targets, price) if price.counts else None
        if self.prices.at and move.to is not None and self.lifetimes.repeats(move.to):
            table = self._with_kept(move.value, sources, targets, table)
        if table is not None and u != v:
            self._join(u, v, table, move, price, sources, targets)

    def _with_kept(self, value: SSAValue, sources: Port, targets: Port, table: Costs | None) -> Costs | None:
        """Return the table of an edge with the price of a value's copy that stays in memory for all parts."""
        if not self.lifetimes.is_kept(value):
            return table
        charge = self._held_price(value, self.lifetimes.copy(value, False))
        key = ("kept", self.factors.of_value(value), element_bytes(value), id(sources), id(targets), id(table), charge)
        if key not in self.tables.tables:
            differs = np.array([[a != b for b in targets] for a in sources])
            held = charge * self._bytes(value, targets)[None, :] * differs
            self.tables.tables[key] = held if table is None else table + held
        return self.tables.tables[key]

    def _join(
        self,
        u: int,
        v: int,
        table: Costs,
        move: ShardingChange,
        price: Price,
        sources: Port,
        targets: Port,
        seconds: Callable[[], Costs | None] | None = None,
    ) -> None:
        self.edges.append(Edge(u, v, table))
        seconds = seconds or partial(self._table, move.value, sources, targets, _plain(price))
        self.traffic.append(EdgeTraffic(move, price, self.factors.of_value(move.value), sources, targets, seconds))

    def _table(self, value: SSAValue, sources: Port, targets: Port, price: Price) -> Costs | None:
        return self.tables.table(value, self.factors.of_value(value), sources, targets, price)

    def _price(self, move: ShardingChange) -> Price:
        """Return the price of a change of a value's sharding."""
        price = self.weights.price(move)
        if move.value in self.reductions.unreduced:
            price = replace(price, reduces=False)
        if self.loop is None:
            return price
        turns = 1 if price.beside else self.loop.parts_of(move.value)
        in_each = move.value in self._reduced_per_part or self.lifetimes.is_per_part(move.value)
        return replace(price, turns=turns, times=self.loop.count if in_each else self.loop.times_of(move))

    @cached_property
    def _reduced_per_part(self) -> set[SSAValue]:
        """Return the gradients that each part of the batch reduces, as pins ask for their parameters to be gathered."""
        if self.loop is None or not self.loop.per_part:
            return set()
        return gradients_of_parameters(self.view, self.constraints.regathered.__contains__)

    def _results(self) -> None:
        """Connect new values to the homes of their arguments, and charge for replicating the loss and metrics."""
        for index, value in enumerate(self.view.terminator.arguments):
            if not isinstance(value, OpResult) or not isinstance(value.op, ComputeOp) or not self.view.has(value):
                continue
            node = self.op_nodes[id(value.op)]
            port = self.tables.port(self._states(node), True, value.index)
            if (target := self.view.updated.get(index)) is not None:
                argument = self.view.func.body.block.args[target]
                move = ShardingChange(value, "home", value.op, users=sum(1 for _ in value.uses))
                self._edge(move, node, port, self.home_nodes[target], self._homes(argument))
            elif self.view.is_for_all(index):
                whole = (Sharding.replicated(len(shape_of(value))),)
                price = self._price(ShardingChange(value, "loss"))
                table = self._table(value, port, whole, price) if price.counts else None
                if table is not None:
                    self._charge(node, table[:, 0])

    def _charge(self, node: int, costs: Costs) -> None:
        """Charge the op of a node for a resharding of its result that has no edge."""
        self.unary[node] = self.unary[node] + costs
        self.ends[node] = self.ends.get(node, 0.0) + costs

    def _departures(self) -> None:
        """Charge values that go to other stages for the cheapest resharding to a sharding that is not partial."""
        for value in {transfer.operand: None for transfer in self.view.departures}:
            if isinstance(value, OpResult) and isinstance(value.op, ComputeOp):
                node = self.op_nodes[id(value.op)]
                port = self.tables.port(self._states(node), True, value.index)
                table = self._table(value, port, self._homes(value), self._price(ShardingChange(value, "user")))
                if table is not None:
                    self._charge(node, table.min(axis=1))


def _plain(price: Price) -> Price:
    """Return the price with weight 1, in full buckets if the communication may overlap with compute."""
    return replace(price, weight=1.0, pricing=Pricing(bucketed=price.beside), reduces=True)
