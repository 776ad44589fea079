"""Balance the shares of unequal devices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FloatAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from ..dialects.ratios import ratios_of, set_ratios
from ..dialects.step import BALANCE, sharding_of
from ..ir.cluster import Cluster
from ..ir.pins import is_as_pinned
from ..ir.ratios import EVEN, Ratios
from ..ir.signatures import Split, choices_of, needs_all_parts
from .analysis.durations import ComputeSeconds
from .analysis.fusion import fused_parts
from .analysis.memory import size_text
from .errors import fail
from .search.constraints import constraints_of
from .search.within_memory import HEADROOM
from .shares.phases import PhaseModel, shares_of
from .shares.prediction import explicit_view, phase_model
from .shares.ratios import MemoryLimit, NoShares, RatioProblem, solve_ratios
from .shares.respread import respread
from .shares.segments import mark_segments
from .shares.shortages import Shortage, shortages
from .step.factors import Factors
from .step.requirements import require_no_joined_updates
from .step.step_view import StepView, step_functions, step_views, value_label
from .strip_resharding import strip_resharding

_ROUNDS = 8
"""Largest number of rounds over the axes; each axis is balanced with the current shares of the others."""

_CUTS = 40
"""Largest number of times that a memory limit is added and the shares are solved again."""

_CLOSE = 1e-6


@dataclass(frozen=True)
class BalanceRatiosPass(ModulePass):
    """
    Give the parts of each axis the shares that minimise the time of the chosen program.

    Requires: signatures (`search-strategy`), a cluster. A sharding that is pinned with offsets must agree with the
    shares (`add-pins`).
    Ensures: the function's `spmd.ratios` has the shares, if they are uneven, and every signature, home and working copy
    is divided by them; axes and dims stay the same. Its `spmd.balance` has the predicted seconds of a step before and
    after, and lists the ops that run whole because otherwise a device would lack a part that it needs. Ops carry
    `spmd.segment` if there are several segments.

    Shares are solved by a linear program over the program's phases: a collective takes as long as the largest share,
    and a computation as long as the slowest device. Nine tenths of a device's memory limit its share. If there are
    several axes, they are balanced one at a time until nothing changes.

    Before:
    ```mlir
    #fast = #spmd.device<"fast", flops = {float32 = 3.0e9}, bandwidth = 3.0e9, memory = 1.0e9, launch = 0.0>
    #slow = #spmd.device<"slow", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
    #link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh devices [#fast, #slow] placement [0, 1] links [#link]
    func.func @step(%x: tensor<8x4xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>})
        -> tensor<8x4xf32> {
      %y = aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}])>}
        : (tensor<8x4xf32>) -> tensor<8x4xf32>
      func.return %y : tensor<8x4xf32>
    }
    ```

    After:
    ```mlir
    #fast = #spmd.device<"fast", flops = {float32 = 3.0e9}, bandwidth = 3.0e9, memory = 1.0e9, launch = 0.0>
    #slow = #spmd.device<"slow", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
    #link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
    #rows = #spmd.sharding<@mesh, [{"gpu"}, {}], offsets={0: [0, 6, 8]}>
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh devices [#fast, #slow] placement [0, 1] links [#link]
    func.func @step(%x: tensor<8x4xf32> {train.batch = "0", spmd.sharding = #rows}) -> tensor<8x4xf32> attributes {
      spmd.ratios = [#spmd.ratios<@mesh, {"gpu" = [0.75, 0.25]}>],
      spmd.balance = {before = 1.28e-07, after = 6.4e-08}
    } {
      %y = aten.relu %x {spmd.signature = #spmd.sig<@mesh,
        ([{"gpu"}, {}], offsets={0: [0, 6, 8]}) -> ([{"gpu"}, {}], offsets={0: [0, 6, 8]})>
      } : (tensor<8x4xf32>) -> tensor<8x4xf32>
      func.return %y : tensor<8x4xf32>
    }
    ```

    Source: HAP 5.
    """

    name = "balance-ratios"

    ratios: str | None = None
    """Shares to use instead of the solved ones: `"0.4,0.3,0.2,0.1"`."""

    axis: str | None = None
    """The axis to balance; by default each in turn. With `ratios` it is required if the mesh has several axes."""

    segments: int | Literal["layers"] = 1
    """Number of segments of the model, each with its own shares; `layers` is one for each layer."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Balance every step function of the module; in a pipeline, every stage separately."""
        for func in step_functions(op):
            require_no_joined_updates(func, self.name)
        strip_resharding(op)
        balances: dict[FuncOp, list[_Balance]] = {}
        for view, cluster in step_views(op):
            if any(compute.signature is None for compute in view.ops):
                fail(view.func, "has ops without a signature; run search-strategy before balance-ratios")
            balancer = _Balancer(op, view, cluster, self._axes(view.func, cluster))
            segments = None if self.segments == "layers" else self.segments
            balances.setdefault(view.func, []).append(balancer.run(segments, self._given(view.func, cluster)))
            _verify_pins(view)
        for func, stages in balances.items():
            whole = [StringAttr(reason) for stage in stages for reason in stage.whole]
            listed = {"whole": ArrayAttr(whole)} if whole else {}
            before, after = sum(stage.before for stage in stages), sum(stage.after for stage in stages)
            func.attributes[BALANCE] = DictionaryAttr(
                {"before": FloatAttr(before, 64), "after": FloatAttr(after, 64), **listed}
            )

    def _axes(self, func: FuncOp, cluster: Cluster) -> tuple[str, ...]:
        names = tuple(axis.name for axis in cluster.mesh.spatial if axis.size > 1)
        if self.axis is None or not names:
            return names
        if self.axis not in names:
            fail(func, f'has no axis "{self.axis}" of several devices to balance; its axes are {", ".join(names)}')
        return (self.axis,)

    def _given(self, func: FuncOp, cluster: Cluster) -> Ratios | None:
        """Return the user's shares, or None for a stage on one device."""
        if self.ratios is None or cluster.mesh.device_count == 1:
            return None
        axes = self._axes(func, cluster)
        if len(axes) != 1:
            fail(func, f"is on a mesh with the axes {', '.join(axes)}: choose the axis of the ratios with axis=")
        try:
            ratios = Ratios.of({axes[0]: [float(share) for share in self.ratios.split(",")]})
            ratios.verify(cluster.mesh)
        except ValueError as error:
            fail(func, f"balance-ratios{{ratios={self.ratios!r}}}: {error}")
        return ratios


def _verify_pins(view: StepView) -> None:
    """Raise OpFailure if the shares have moved the boundaries of a sharding that is pinned in full."""
    constraints, hint = constraints_of(view), "leave offsets out of the pin, or give the ratios that they follow"
    for index, limit in constraints.arguments.items():
        home = sharding_of(argument := view.func.body.block.args[index])
        if limit.sharding is not None and not is_as_pinned(home, limit.sharding):
            shares = f"the shares divide {value_label(argument)} as {home}, but the pin requires {limit.sharding}"
            fail(view.func, f"{constraints.named(limit.by)}: {shares}; {hint}")
    for op, limit in constraints.ops.items():
        if limit.is_exact and op.signature is not None and not limit.allows(op.signature):
            fail(op, f"{constraints.named(limit.by)}: under the shares its signature is {op.signature}; {hint}")


@dataclass(frozen=True)
class _Balance:
    """The result for one step or stage: seconds before and after, and the ops that run whole with the reasons."""

    before: float
    after: float
    whole: tuple[str, ...]


class _Balancer:
    """A balancer of one step, or of one stage; used once."""

    def __init__(self, module: ModuleOp, view: StepView, cluster: Cluster, axes: tuple[str, ...]) -> None:
        self.module, self.view, self.cluster, self.axes = module, view, cluster, axes
        self.limits = [(1.0 - HEADROOM) * cluster.device(rank).memory for rank in range(cluster.mesh.device_count)]

    def run(self, segments: int | None, given: Ratios | None) -> _Balance:
        """Solve the shares, or take given shares, and write them."""
        count = mark_segments(self.view, segments, ComputeSeconds(self.cluster, fused_parts(self.view.func)))
        old = ratios_of(self.view.func, self.cluster.mesh)
        old = {segment: old.get(segment, old[0]) for segment in range(count)}
        model = phase_model(self.module, self.view, self.cluster)
        if given is not None:
            ratios = {segment: _with(other, dict(given.shares)) for segment, other in old.items()}
            whole = self._write(ratios)
        else:
            ratios, whole = self._solved(model, old)
        # Resharding between segments with different shares exists only from here on.
        balanced = phase_model(self.module, self.view, self.cluster) if count > 1 else model
        return _Balance(model.seconds(old), balanced.seconds(ratios), tuple(whole))

    def _write(self, ratios: dict[int, Ratios]) -> list[str]:
        set_ratios(self.view.func, self.cluster.mesh, ratios)
        return respread(self.view, {**ratios, 0: ratios.get(0, EVEN)})

    def _solved(self, model: PhaseModel, ratios: dict[int, Ratios]) -> tuple[dict[int, Ratios], list[str]]:
        """Return the fastest shares that fit in memory, after writing them, and the ops that had to stay whole."""
        cuts: dict[tuple[int, int], Shortage] = {}
        short: list[Shortage] = []
        for _ in range(_CUTS):
            ratios = self._balanced(model, ratios, list(cuts.values()))
            whole = self._write(ratios)
            explicit = explicit_view(self.module, self.view, self.cluster)
            if not (short := shortages(explicit, self.limits, self.cluster.blocks)):
                return ratios, whole
            for shortage in short:
                # Rounded sizes may exceed a limit that the shares keep, which is then lowered by the excess.
                earlier = cuts.get((shortage.rank, shortage.point), shortage)
                budget = earlier.budget - (shortage.excess if earlier is not shortage else 0.0)
                cuts[shortage.rank, shortage.point] = replace(shortage, budget=budget)
        worst = max(short, key=lambda shortage: shortage.excess)
        fail(
            self.view.func,
            f"no shares were found that fit into memory: rank {worst.rank} still needs {size_text(worst.excess)} "
            "more than it has; use more devices or a smaller batch",
        )

    def _balanced(self, model: PhaseModel, ratios: dict[int, Ratios], cuts: list[Shortage]) -> dict[int, Ratios]:
        """Balance one axis after the other until nothing changes; otherwise return the best of all rounds."""
        tried: list[dict[int, Ratios]] = []
        for _ in range(_ROUNDS):
            previous = ratios
            for axis in self.axes:
                limits = tuple(cut.limit(self.cluster.mesh, axis, ratios) for cut in cuts)
                ratios = self._on_axis(model, ratios, axis, limits)
            if all(self._close(previous[segment], ratios[segment]) for segment in ratios):
                return ratios
            tried.append(ratios)
        return min(tried, key=model.seconds)

    def _on_axis(
        self, model: PhaseModel, ratios: dict[int, Ratios], axis: str, limits: tuple[MemoryLimit, ...]
    ) -> dict[int, Ratios]:
        parts = self.cluster.mesh.axis(axis).size
        problem = RatioProblem(parts, len(ratios), model.phases(axis, ratios), limits, self._least(axis))
        try:
            shares = solve_ratios(problem)
        except NoShares as error:
            fail(self.view.func, f'{error} on axis "{axis}"; use more devices or a smaller batch')
        return {segment: _with(ratios[segment], {axis: shares[segment]}) for segment in ratios}

    def _least(self, axis: str) -> float:
        """Return the smallest share that leaves every device a part of each factor that must be on every device."""
        factors, mesh = self._factors, self.cluster.mesh
        at, least = mesh.names.index(axis), 0.0
        for op in self.view.ops:
            assert op.signature is not None
            choice = choices_of(op.rule(), op.signature, mesh)[0][at]
            if isinstance(choice, Split) and needs_all_parts(op.rule(), choice.factor):
                count = factors.of_op(op).counts[op.rule().factors.index(choice.factor)]
                least = max(least, 1.0 / max(count, mesh.axis(axis).size))
        return least

    @cached_property
    def _factors(self) -> Factors:
        """The pieces that the factors of the ops can be split into, which do not depend on shares."""
        return Factors(self.view, {0: EVEN})

    def _close(self, one: Ratios, other: Ratios) -> bool:
        mesh = self.cluster.mesh
        pairs = ((shares_of(one, axis, mesh), shares_of(other, axis, mesh)) for axis in self.axes)
        return all(abs(a - b) <= _CLOSE for left, right in pairs for a, b in zip(left, right, strict=True))


def _with(ratios: Ratios, shares: dict[str, tuple[float, ...]]) -> Ratios:
    """Return ratios with the shares of some axes changed; an axis whose shares are all equal is split evenly."""
    merged = {**dict(ratios.shares), **shares}
    return Ratios.of({axis: share for axis, share in merged.items() if max(share) - min(share) > _CLOSE})
