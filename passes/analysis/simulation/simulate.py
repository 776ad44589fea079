"""Runs a scheduled step function on a cluster, as discrete events."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from ....dialects.mesh_ops import MeshOp
from ....dialects.staged import Stages
from ....ir.cluster import Cluster
from ....ir.submesh import subcluster
from ...step.step_view import cluster_of_module, step_views
from .engine import Engine
from .network import Network
from .places import Place, Routes, divided
from .programs import Issue, writers_of, written_programs
from .results import RankClass, Simulation


def simulate(func: FuncOp, places: Sequence[Place], *, every_rank: bool = False) -> Simulation:
    """
    Simulate one step.

    Args:
        places: its stages in order, or the one place of a step without stages.
        every_rank: simulate each rank by itself, instead of one of each class of ranks that do the same.

    Raises:
        OpFailure: an op without a signature, a resharding without a collective, or a wait that never ends.
    """
    return Simulator(func, places, every_rank=every_rank).run()


class Simulator:
    """Simulates a step under one schedule after the other, which the function has when `run` is called."""

    def __init__(self, func: FuncOp, places: Sequence[Place], *, every_rank: bool = False) -> None:
        self.func = func
        self.divisions = divided(func, places, every_rank=every_rank)
        self.writers = writers_of(func, self.divisions)
        self.classes = tuple(
            RankClass(number, column, division.place, tuple(division.place.ranks[rank] for rank in ranks), ranks)
            for division in self.divisions
            for column, (number, ranks) in enumerate(zip(division.numbers, division.classes, strict=True))
        )

    def run(self) -> Simulation:
        """One step; the errors are those of `simulate`."""
        programs = written_programs(self.func, self.writers)
        issues = (each for program in programs for each, _ in program if isinstance(each, Issue))
        network = Network(each.traffic for each in issues)
        pairs = zip(programs, self.divisions, strict=True)
        by_class = [program for program, division in pairs for _ in division.classes]
        interference = [each.place.cluster.interference for each in self.classes]
        engine = Engine(by_class, [each.column for each in self.classes], network, interference)
        return Simulation(self.func, self.classes, engine.run())


def simulate_module(module: ModuleOp, cluster: Cluster | None = None, *, every_rank: bool = False) -> list[Simulation]:
    """
    Simulate every step function of a module; see `simulate`.

    Args:
        cluster: of all ranks, in place of the module's own. Stages have their parts of it.
    """
    whole = cluster if cluster is not None else cluster_of_module(module)
    found: dict[FuncOp, list[Cluster]] = {}
    ranks = {op.sym_name.data: op.ranks for op in module.ops if isinstance(op, MeshOp)}
    for view, own in step_views(module):
        clusters = found.setdefault(view.func, [])
        if cluster is not None:
            own = cluster if view.stage is None else subcluster(cluster, view.mesh, ranks[view.mesh.name])
        clusters.append(own)
    return [simulate(func, places_of(func, clusters, whole), every_rank=every_rank) for func, clusters in found.items()]


@lru_cache(maxsize=8)
def _routes(cluster: Cluster) -> Routes:
    """The ways between the ranks of a cluster, which one step after the other is simulated on."""
    return Routes(cluster)


def places_of(func: FuncOp, clusters: Sequence[Cluster], whole: Cluster) -> list[Place]:
    """
    The places of a function.

    Args:
        clusters: of its stages, in order, or of the function where it has none.
        whole: the cluster of all ranks of the job.
    """
    module, routes = func.parent_op(), _routes(whole)
    ops = module.ops if isinstance(module, ModuleOp) else ()
    meshes = {op.sym_name.data: op for op in ops if isinstance(op, MeshOp)}
    starts = accumulate((cluster.mesh.device_count for cluster in clusters), initial=0)
    found: list[Place] = []
    for stage, (cluster, first) in enumerate(zip(clusters, starts, strict=False)):
        ranks = tuple(range(first, first + cluster.mesh.device_count))
        if (mesh := meshes.get(cluster.mesh.name)) is not None:
            ranks = mesh.ranks
        found.append(Place(stage if Stages(func).names else None, cluster, ranks, routes))
    return found
