"""Simulate a scheduled step function on a cluster by discrete events."""

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
        places: stages in order, or the one place of a step without stages.
        every_rank: whether to simulate each rank by itself, instead of one of each class of equivalent ranks.

    Raises:
        OpFailure: an op lacks a signature, a resharding lacks a collective, or a wait never ends.
    """
    return Simulator(func, places, every_rank=every_rank).run()


class Simulator:
    """Simulates a step under several schedules in turn: `run` uses the schedule that the function has then."""

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
        """Simulate one step; raise the same errors as `simulate`."""
        programs = written_programs(self.func, self.writers)
        issues = (instruction for program in programs for instruction, _ in program if isinstance(instruction, Issue))
        network = Network(issue.traffic for issue in issues)
        pairs = zip(programs, self.divisions, strict=True)
        by_class = [program for program, division in pairs for _ in division.classes]
        interference = [rank_class.place.cluster.interference for rank_class in self.classes]
        engine = Engine(by_class, [rank_class.column for rank_class in self.classes], network, interference)
        return Simulation(self.func, self.classes, engine.run())


def simulate_module(module: ModuleOp, cluster: Cluster | None = None, *, every_rank: bool = False) -> list[Simulation]:
    """
    Simulate every step function of a module; see `simulate`.

    Args:
        cluster: cluster of all ranks, in place of the module's own; stages use parts of it.
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
    """Return the routes between the ranks of a cluster, cached since many steps are simulated on it."""
    return Routes(cluster)


def places_of(func: FuncOp, clusters: Sequence[Cluster], whole: Cluster) -> list[Place]:
    """
    Return the places of a function.

    Args:
        clusters: clusters of its stages in order, or of a function without stages.
        whole: the cluster of all ranks of the job.
    """
    module, routes = func.parent_op(), _routes(whole)
    ops = module.ops if isinstance(module, ModuleOp) else ()
    meshes = {op.sym_name.data: op for op in ops if isinstance(op, MeshOp)}
    starts = accumulate((cluster.mesh.device_count for cluster in clusters), initial=0)
    places: list[Place] = []
    for stage, (cluster, first) in enumerate(zip(clusters, starts, strict=False)):
        ranks = tuple(range(first, first + cluster.mesh.device_count))
        if (mesh := meshes.get(cluster.mesh.name)) is not None:
            ranks = mesh.ranks
        places.append(Place(stage if Stages(func).names else None, cluster, ranks, routes))
    return places
