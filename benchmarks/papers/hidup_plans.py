"""
HiDup's models and clusters (`hidup.py`), and the ways of planning their steps.

`Planner.in_hidups_way` is a model of HiDup without fitted constants:

- The strategy is GShard's, which HiDup finds on two machines according to the paper (6.10, figure 12): the experts are
  split among the GPUs, and all other parameters and states are replicated.
- Forward runs by phases (`duplex{order=phases}`, HiDup 3.2 and 5). Backward is autograd's: HiDup edits the graph of
  forward, its figure 2 has duplex in forward, and its released code costs backward without overlap. Other collectives
  of backward are therefore waited for where they start.
- Gradients are reduced during backward, tensor by tensor (6.10).

`Planner.in_deepspeeds_way` is the same strategy with an unsplit batch and without overlap, since the paper's table 4
measured an overlap of 0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from _steps import after, planned, prepared
from xdsl.dialects.builtin import ModuleOp

from shardwright.dialects import train
from shardwright.dialects.compute import shape_of
from shardwright.dialects.spmd import StartOp
from shardwright.ir.cluster import Cluster, Interference
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import Mesh
from shardwright.ir.overlap import ALL, Overlap
from shardwright.ir.pins import Pin
from shardwright.ir.sharding import Sharding, parse_sharding
from shardwright.ir.submesh import on_mesh
from shardwright.models.bert import BertConfig, bert_step
from shardwright.models.moe import MoEConfig, sparsely_gated, switch
from shardwright.models.vit import ViTConfig, vit_step
from shardwright.passes.analysis.simulation.names import category
from shardwright.passes.analysis.simulation.overlap_report import overlaps
from shardwright.passes.analysis.simulation.results import Simulation
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.planning.candidate_compiler import CandidateCompiler
from shardwright.passes.planning.candidates import FIRST, Candidate, Choice, Layout, preset
from shardwright.passes.planning.notes import Refused

HALVES = "split-batch{parts=2 unrolled=true},communicate"
BLOCKING = "overlap{gradients=false gathers=false activations=false},join-updates"
TENSOR_BY_TENSOR = "overlap{activations=false bucket_mb=0.0001},join-updates"
"""Overlap of parameter gathers and gradient reductions with computation, one bucket for each tensor."""

ONE_MACHINE = Interference(compute=1.14)
"""How much an all-reduce of 256 MB slows products on one machine (table 2). Cluster files are for several machines."""

EXPERTS = ".mlp.experts."
"""Part of the names of all expert parameters."""

EXPERT_PARALLEL = Choice((Pin(f"layers.*{EXPERTS}*", parse_sharding('[{"gpu"}, {}, {}]')),), FIRST[1].weights)
"""The usual choice for mixtures of experts: experts are split, and the search completes the rest."""


@dataclass(frozen=True)
class Setting:
    """
    One of the paper's models on one of its clusters.

    The batch grows with the GPUs (6.1). Its size is missing in the paper, so the samples per GPU are our choice.
    """

    model: str
    gpus: int
    cluster: str
    a_card: int = 32

    def on(self) -> Cluster:
        """Return the cluster as one axis of all its GPUs; on a single machine, products are disturbed more."""
        cluster = on_mesh(find_cluster(self.cluster), Mesh.of(gpu=self.gpus))
        assert cluster.topology is not None
        alone = self.gpus <= cluster.topology.hosts[0].devices
        return replace(cluster, interference=ONE_MACHINE) if alone else cluster


@lru_cache(maxsize=2)
def imported(model: str, gpus: int, a_card: int) -> ModuleOp:
    """Return a prepared step of table 1: 8 layers, with a mixture of experts in every second layer."""
    kind: Callable[..., MoEConfig] = sparsely_gated if model.endswith("sgmoe") else switch
    if model.startswith("bert"):
        bert = BertConfig(layers=8, vocabulary=33278, positions=128, experts=kind(max(gpus, 2)), tied=False)
        return prepared(bert_step(bert, batch=a_card * gpus, length=128))
    vit = ViTConfig(layers=8, image=32, patch=4, classes=10, experts=kind(2 * gpus, dispatch="scatter"))
    return prepared(vit_step(vit, batch=a_card * gpus))


@dataclass(frozen=True)
class Outcome:
    """A simulated plan."""

    name: str
    module: ModuleOp
    simulation: Simulation

    @property
    def seconds(self) -> float:
        return self.simulation.seconds

    @property
    def overlap(self) -> Overlap:
        """Return the overlap of the rank that computes longest."""
        return overlaps(self.simulation, self.simulation.busiest(None).number)[ALL, ALL]


class Planner:
    """Plans one setting in each way."""

    def __init__(self, setting: Setting, cluster: Cluster | None = None) -> None:
        self._cluster = cluster if cluster is not None else setting.on()
        self._step = imported(setting.model, setting.gpus, setting.a_card)
        self._compiler = CandidateCompiler(planned(self._step, self._cluster), self._cluster)
        self._unsplit, self._halves = Layout(self._cluster.mesh), Layout(self._cluster.mesh, "duplex", 2)
        self._known: dict[object, Outcome] = {}
        """Outcomes by the fingerprint of the solution, since several searches may find the same."""

    def whole(self) -> Outcome:
        """Return the fastest plan with an unsplit batch."""
        return self._fastest(self._unsplit, *FIRST, EXPERT_PARALLEL)

    def duplex(self) -> Outcome:
        """Return the fastest plan with two interleaved parts."""
        return self._fastest(self._halves, *FIRST, EXPERT_PARALLEL)

    def expert_parallel(self) -> Outcome:
        """Return data parallelism with split experts."""
        return self._fastest(self._unsplit, EXPERT_PARALLEL)

    def expert_duplex(self) -> Outcome:
        """Return data parallelism with split experts, with two interleaved parts."""
        return self._fastest(self._halves, EXPERT_PARALLEL)

    def data_parallel(self) -> Outcome:
        """Return PyTorch's DDP: a split batch, all else replicated, and gradients reduced during backward."""
        return self._fastest(self._unsplit, preset(("dp", ("gpu",))))

    def pareto_dp(self) -> Outcome:
        """Return the strategy of HiDup's algorithm, `pareto-dp`, with two interleaved parts."""
        passes = "search-strategy{algorithm=pareto-dp},program{mode=duplex parts=2}"
        return _simulated("pareto-dp", planned(self._step, self._cluster, passes))

    def in_hidups_way(self) -> Outcome:
        """Return GShard's strategy as HiDup runs it; see the docstring of this module."""
        module = after(self._gshard(self._halves), f"{HALVES},duplex{{order=phases}}")
        _wait_in_backward(module)
        return _simulated("GShard", after(module, TENSOR_BY_TENSOR))

    def in_deepspeeds_way(self) -> Outcome:
        """Return GShard's strategy with an unsplit batch and blocking collectives."""
        return _simulated("GShard", after(self._gshard(self._unsplit), f"communicate,{BLOCKING}"))

    def _gshard(self, layout: Layout) -> ModuleOp:
        """Return the step with GShard's strategy: split experts, and all other parameters and states replicated."""
        (view,) = self._compiler.views
        others = tuple(
            Pin(value.name, Sharding.replicated(len(shape_of(value.argument))))
            for value in view.inputs
            if value.role in (train.PARAM, train.STATE) and EXPERTS not in value.name
        )
        choice = Choice((*EXPERT_PARALLEL.pins, *others), FIRST[1].weights)
        return self._compiler.written(self._compiler.solve(Candidate(layout, choice)))

    def _fastest(self, layout: Layout, *choices: Choice) -> Outcome:
        found: list[Outcome] = []
        for choice in choices:
            try:
                solved = self._compiler.solve(Candidate(layout, choice))
                if solved.fingerprint not in self._known:
                    name = choice.name if choice.presets else f"searched ({choice.objective})"
                    name = "expert parallel" if choice == EXPERT_PARALLEL else name
                    finished = self._compiler.finish(solved)
                    self._known[solved.fingerprint] = Outcome(name, finished.module, finished.simulation)
                found.append(self._known[solved.fingerprint])
            except Refused as error:
                print(f"{Candidate(layout, choice).name}: {error}", file=sys.stderr)
        return min(found, key=lambda outcome: outcome.seconds)


def _simulated(name: str, module: ModuleOp) -> Outcome:
    return Outcome(name, module, simulate_module(module)[0])


def _wait_in_backward(module: ModuleOp) -> None:
    """Move the starts of backward's collectives right before their waits, so that nothing overlaps them."""
    for op in list(module.walk()):
        if isinstance(op, StartOp) and category(op) == "backward":
            (wait,) = (use.operation for use in op.token.uses)
            op.detach()
            assert wait.parent is not None
            wait.parent.insert_op_before(op, wait)
