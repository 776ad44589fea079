"""
The placement of a plan's lasting data, and plans of other functions of the same model that keep this placement.

The forward pass for evaluation, and the step for a batch of another shape, use the same parameters, buffers and states
as training. Their homes, the meshes and the stages are therefore fixed, and the search decides everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument
from xdsl.utils.exceptions import DiagnosticException

from ...dialects import train
from ...dialects.compute import plain_attribute, python_value, shape_of
from ...dialects.mesh_ops import ClusterOp, MeshOp
from ...dialects.pipe import IDLE, SCHEDULE
from ...dialects.ratios import PIECES, RATIOS, ratios_of
from ...dialects.staged import Stages
from ...dialects.step import CHOSEN, merge_argument_attributes, sharding_of
from ...ir.cluster import Cluster
from ...ir.mesh import Axis, AxisKind, Mesh
from ...ir.pins import ShardingLimit
from ...ir.ratios import Splits
from ...ir.sharding import Sharding
from ...ir.submesh import subcluster
from ..add_cluster import add_cluster
from ..analysis.compute import local_bytes
from ..errors import PassError, fail
from ..leave_idle import leave_idle
from ..partition_stages import add_stages
from ..pipeline import run_pipeline
from ..pipelines import SUM_BATCH_NORMS, ProgramPipeline
from ..recompute import RecomputePass
from ..search.algorithms.run import search_within
from ..search.constraints import Constraints
from ..search.within_memory import HEADROOM
from ..stages.divide import divide
from ..stages.fragments import has_chunks
from ..stages.schedules import ScheduleName
from ..step.factors import Factors
from ..step.layers import Layers, find_layers
from ..step.step_view import Input, StepView, batch_rows, mesh_of_module, step_functions, step_views
from .candidate_compiler import BATCH_NORMS
from .records import CandidateRecord

_KEPT = (train.PARAM, train.STATE, train.BUFFER)
PLANNED = "planned"
"""Name of the mesh of the ranks that do not idle, if these are divided into stages."""

_ROUNDS = 8
"""Number of times that boundaries are compared with the plan's; each round may divide more dims that are tied."""

StateKey = tuple[str, str]
"""The role of an argument, and its name."""


@dataclass(frozen=True)
class StatePlacement:
    """
    The placement of the parameters, states and buffers of a plan.

    Args:
        cluster: cluster of the ranks that do not idle, on the mesh of the plan.
        stages: clusters of the stages; empty without a pipeline.
        shardings: homes of parameters, states, buffers and batch items.
        at: stages of the same arguments.
        shapes: shapes of the same arguments.
        ratios: the attribute of the step, or None for even shares.
        parts: number of parts of the batch.
        schedule: schedule of a pipeline.
        held: the most bytes of parameters, states and buffers on a device.
        fused: whether batch-norms are single ops.
        keep: largest fraction of activations that is kept (`recompute`).
        job: cluster of the whole job, if some of its ranks idle.
        used: ranks of the job that do not idle.
    """

    cluster: Cluster
    stages: tuple[Cluster, ...]
    shardings: Mapping[StateKey, Sharding]
    at: Mapping[StateKey, int]
    shapes: Mapping[StateKey, tuple[int, ...]]
    ratios: Attribute | None = None
    parts: int = 1
    schedule: ScheduleName = "1f1b"
    held: int = 0
    fused: bool = True
    keep: float = 1.0
    job: Cluster | None = None
    used: tuple[int, ...] = ()
    _context: Context = field(default_factory=Context, repr=False, compare=False)

    @staticmethod
    def of(module: ModuleOp) -> StatePlacement:
        """Return the placement of a finished plan."""
        (func,) = step_functions(module)
        stages, mesh = Stages(func), mesh_of_module(module)
        names = tuple(name for name in stages.names if name != IDLE)
        whole = StepView(func, mesh)
        inputs = [item for item in whole.inputs if item.role in (*_KEPT, train.BATCH)]
        keyed = {_key(item, stages.of_value(item.argument)): item for item in inputs}
        homes = {key: sharding_of(item.argument) for key, item in keyed.items()}
        at = {key: stages.of_value(item.argument) or 0 for key, item in keyed.items()}
        clusters = {op.mesh.data: op for op in module.ops if isinstance(op, ClusterOp)}
        meshes = {op.sym_name.data: op.mesh for op in module.ops if isinstance(op, MeshOp)}
        spatial = {name: Mesh(mesh_op.spatial, name) for name, mesh_op in meshes.items()}
        times = [axis.size for axis in meshes[mesh.name].axes if axis.kind is AxisKind.TEMPORAL]
        times += [axis.size for name in names for axis in meshes[name].axes if axis.kind is AxisKind.TEMPORAL]
        by_name = {name: clusters[name].cluster(own_mesh) for name, own_mesh in spatial.items() if name in clusters}
        cluster, job, used = by_name[mesh.name], None, tuple[int, ...]()
        if IDLE in stages.names:
            ranks = {op.sym_name.data: op.ranks for op in module.ops if isinstance(op, MeshOp)}
            job, used = cluster, tuple(rank for name in names for rank in ranks[name])
            alone = Mesh((Axis(mesh.spatial[-1].name, len(used)),), PLANNED)
            cluster = by_name[names[0]] if len(names) == 1 else subcluster(job, alone, used)
            names = names if len(names) > 1 else ()
        held: dict[int, int] = {}
        for key, item in keyed.items():
            if item.role != train.BATCH:
                here = spatial[names[at[key]] if names else cluster.mesh.name]
                held[at[key]] = held.get(at[key], 0) + local_bytes(item.argument, homes[key], here)
        return StatePlacement(
            cluster,
            tuple(by_name[name] for name in names),
            homes,
            at,
            {key: shape_of(item.argument) for key, item in keyed.items()},
            func.attributes.get(RATIOS),
            max(times, default=1),
            _schedule(func),
            max(held.values(), default=0),
            any(op.name in BATCH_NORMS for op in func.walk()),
            _kept_part(func),
            job,
            used,
        )

    def plan_forward(self, module: ModuleOp) -> ModuleOp:
        """
        Return the plan of the forward pass of the model, which is not micro-batched, through the same stages.

        Args:
            module: the forward pass, which is changed.

        Raises:
            PassError: the forward pass cannot have this placement, or does not fit in memory.
        """
        self._place(module)
        return self._finish(module, 1)

    def plan_step(self, module: ModuleOp) -> ModuleOp:
        """
        Return the plan of a step of another batch, in as many parts as the plan if its rows allow, else in fewer.

        Args:
            module: the step, which is changed.

        Raises:
            PassError: no number of parts is feasible.
        """
        if not self.fused and any(op.name in BATCH_NORMS for op in module.walk()):
            run_pipeline(self._context, module, SUM_BATCH_NORMS, verify_each=False)
        self._place(module)
        rows = batch_rows(StepView(step_functions(module)[0], self.cluster.mesh).inputs) or 1
        first: PassError | None = None
        for parts in _parts(self.parts, rows):
            try:
                return self._finish(module.clone(), parts)
            except PassError as error:
                first = first or error
        assert first is not None
        raise first

    def _finish(self, module: ModuleOp, parts: int) -> ModuleOp:
        """Make the program of a strategy, and leave the ranks idle that the plan leaves idle."""
        program = ProgramPipeline("pipeline" if self.stages else None, parts, self.schedule)
        run_pipeline(self._context, module, program.text, verify_each=False)
        if self.job is not None:
            leave_idle(module, self.job, self.used)
        return module

    def _place(self, module: ModuleOp) -> None:
        """Put a function on the meshes and stages of the plan, and find a strategy with the plan's homes."""
        try:
            self._placed(module)
        except DiagnosticException as error:
            raise PassError("plan", "failed", str(error)) from error

    def _placed(self, module: ModuleOp) -> None:
        (func,) = step_functions(module)
        add_cluster(module, self.cluster)
        RecomputePass(self.keep).apply(self._context, module)
        if self.ratios is not None:
            func.attributes[RATIOS] = self.ratios
        if self.stages:
            self._divide(func, module)
        for view, cluster in step_views(module):
            kept = [(value, key) for value in view.inputs if (key := _key(value, view.stage)) in self.shardings]
            homes = {value.argument: self.shardings[key] for value, key in kept if self._is_alike(view, value, key)}
            self._keep_boundaries(view, homes)
            limits = {argument.index: ShardingLimit(home) for argument, home in homes.items()}
            mine = sum(local_bytes(argument, home, view.mesh) for argument, home in homes.items())
            budget = (1.0 - HEADROOM) * cluster.memory - max(self.held - mine, 0)
            search_within(view, cluster, Constraints(limits), budget)

    def _is_alike(self, view: StepView, given: Input, key: StateKey) -> bool:
        """Return whether an argument has the same shape as in the plan; only batch items may have another shape."""
        if (shape := self.shapes[key]) == shape_of(given.argument):
            return True
        if given.role != train.BATCH:
            fail(view.func, f"{given.name} has shape {list(shape_of(given.argument))}, but {list(shape)} in the plan")
        return False

    def _divide(self, func: FuncOp, module: ModuleOp) -> None:
        """Divide the function into the stages of the plan."""
        view = StepView(func, self.cluster.mesh)
        layers = find_layers(view)
        divide(view, layers, [stage.mesh.name for stage in self.stages], self._places(view, layers))
        add_stages(module, list(self.stages))
        stages = Stages(func)
        for given in view.inputs:
            if given.role in _KEPT and stages.of_value(given.argument) != self.at.get(_key(given)):
                here, there = stages.of_value(given.argument), self.at.get(_key(given))
                fail(
                    func,
                    f"{given.name} would be used first in stage {here}, but the plan keeps it in stage {there}: here"
                    " the model runs its layers in another order",
                )

    def _places(self, view: StepView, layers: Layers) -> list[int]:
        """Return the stage of each layer; a layer without lasting data goes to the stage of the layer before it."""
        stage_of = {
            layers.homes[item.argument]: self.at[_key(item)]
            for item in sorted(view.inputs, key=lambda item: item.argument.index)
            if item.role in _KEPT and item.argument in layers.homes
        }
        stage_of_layer: list[int] = []
        for layer in range(len(layers.names)):
            stage_of_layer.append(stage_of.get(layer, stage_of_layer[-1] if stage_of_layer else 0))
        return stage_of_layer

    def _keep_boundaries(self, view: StepView, homes: Mapping[BlockArgument, Sharding]) -> None:
        """Divide the plan's arguments at its boundaries: fewer ops tie fewer dims together than in the whole step."""
        for _ in range(_ROUNDS):
            factors = Factors(view, ratios_of(view.func, view.mesh))
            wanted: dict[int, Mapping[str, Attribute | None]] = {}
            for argument, home in homes.items():
                splits = factors.of_value(argument)
                if splits.sharding(home, view.mesh) != home:
                    pieces = [_pieces(splits, dim, home, view.mesh) for dim in range(len(splits.sizes))]
                    wanted[argument.index] = {PIECES: plain_attribute(pieces)}
            if not wanted:
                return
            merge_argument_attributes(view.func, wanted)
        fail(view.func, "cannot be divided as the plan divides parameters and states")


def _key(given: Input, stage: int | None = None) -> StateKey:
    """Return the key of an argument. Batch items are at several stages, each with its own home."""
    return given.role, f"{given.name} at {stage or 0}" if given.role == train.BATCH else given.name


def _parts(wanted: int, rows: int) -> list[int]:
    """Return the numbers of parts that the rows allow, the preferred number first."""
    fewer = [parts for parts in range(min(wanted, rows), 1, -1) if not rows % parts]
    return list(dict.fromkeys([*([wanted] if wanted <= rows else []), *fewer, 1]))


def _kept_part(func: FuncOp) -> float:
    """Return the fraction of activations that the chosen candidate keeps; 1 if no search chose one."""
    chosen = _chosen(func)
    return chosen.get("keep", 1.0) if chosen is not None else 1.0


def _schedule(func: FuncOp) -> ScheduleName:
    """Return the schedule that a search chose, or one that suits any number of parts."""
    chosen = _chosen(func)
    if chosen is not None and (schedule := chosen.get("schedule")) is not None:
        return schedule
    if has_chunks(func):
        return "auto"
    return "1f1b" if SCHEDULE in func.attributes else "gpipe"


def _chosen(func: FuncOp) -> CandidateRecord | None:
    chosen = func.attributes.get(CHOSEN)
    return python_value(chosen) if chosen is not None else None


def _pieces(splits: Splits, dim: int, home: Sharding, mesh: Mesh) -> int:
    """Return the largest number of pieces of a dim that divides the dim as its home does."""
    size, count, spread = splits.sizes[dim], splits.counts[dim], home.dims[dim]
    for pieces in (number for number in range(count, 0, -1) if not count % number):
        counts = (*splits.counts[:dim], pieces, *splits.counts[dim + 1 :])
        if Splits(splits.sizes, counts, splits.ratios).dim(dim, spread.axes, mesh) == spread:
            return pieces
    return size
