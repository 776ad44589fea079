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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import import_training_step
from shardwright.api.training_step import TrainingStep
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
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.simulation.names import category
from shardwright.passes.analysis.simulation.overlap_report import overlaps
from shardwright.passes.analysis.simulation.results import Simulation
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.planning.candidate_compiler import CandidateCompiler
from shardwright.passes.planning.candidates import ADDITIVE, FIRST, Candidate, Choice, Layout, preset
from shardwright.passes.planning.notes import Refused

HALVES = "split-batch{parts=2 unrolled=true},communicate"
BLOCKING = "overlap{gradients=false gathers=false activations=false},join-updates"
TENSOR_BY_TENSOR = "overlap{activations=false bucket_mb=0.0001},join-updates"
"""Overlap of parameter gathers and gradient reductions with computation, one bucket for each tensor."""

A_CARD = 32
"""Samples per GPU, chosen by us: in the paper the batch grows with the GPUs (6.1), but its size is missing."""

ONE_MACHINE = Interference(compute=1.14)
"""How much an all-reduce of 256 MB slows products on one machine (table 2). Cluster files are for several machines."""

EXPERTS = ".mlp.experts."
"""Part of the names of all expert parameters."""


@dataclass(frozen=True)
class Setting:
    """One of the paper's models on one of its clusters."""

    model: str
    gpus: int
    cluster: str
    a_card: int = A_CARD

    def on(self) -> Cluster:
        """Return the cluster as one axis of all its GPUs; on a single machine, products are disturbed more."""
        cluster = on_mesh(find_cluster(self.cluster), Mesh.of(gpu=self.gpus))
        assert cluster.topology is not None
        alone = self.gpus <= cluster.topology.hosts[0].devices
        return replace(cluster, interference=ONE_MACHINE) if alone else cluster


def training_step(model: str, gpus: int, a_card: int) -> TrainingStep:
    """Return a model of table 1: 8 layers, with a mixture of experts in every second layer."""
    kind: Callable[..., MoEConfig] = sparsely_gated if model.endswith("sgmoe") else switch
    if model.startswith("bert"):
        bert = BertConfig(layers=8, vocabulary=33278, positions=128, experts=kind(max(gpus, 2)), tied=False)
        return bert_step(bert, batch=a_card * gpus, length=128)
    vit = ViTConfig(layers=8, image=32, patch=4, classes=10, experts=kind(2 * gpus, dispatch="scatter"))
    return vit_step(vit, batch=a_card * gpus)


@lru_cache(maxsize=2)
def imported(model: str, gpus: int, a_card: int) -> ModuleOp:
    """Return the step, prepared for the passes that decide."""
    module = import_training_step(training_step(model, gpus, a_card))
    run_pipeline(Context(), module, "prepare", verify_each=False)
    return module


@dataclass(frozen=True)
class Outcome:
    """A simulated plan."""

    name: str
    choice: Choice
    simulation: Simulation
    module: ModuleOp

    @property
    def seconds(self) -> float:
        """Return the seconds of a step."""
        return self.simulation.seconds

    @property
    def overlap(self) -> Overlap:
        """Return the overlap of the rank that computes longest."""
        return overlaps(self.simulation, self.simulation.busiest(None).number)[ALL, ALL]


class Planner:
    """Plans one setting in each way."""

    def __init__(self, setting: Setting, cluster: Cluster | None = None) -> None:
        self.setting, self.cluster = setting, cluster if cluster is not None else setting.on()
        module = imported(setting.model, setting.gpus, setting.a_card).clone()
        add_cluster(module, self.cluster)
        self.bench = CandidateCompiler(module, self.cluster)
        self.mesh = self.cluster.mesh
        self._known: dict[object, Outcome] = {}
        """Outcomes by the fingerprint of the solution, since several searches may find the same."""

    def whole(self) -> Outcome:
        """Return the fastest plan with an unsplit batch."""
        return min(self._tried(Layout(self.mesh), (*FIRST, expert_parallel())), key=lambda outcome: outcome.seconds)

    def duplex(self) -> Outcome:
        """Return the fastest plan with two interleaved parts."""
        layout = Layout(self.mesh, "duplex", 2)
        return min(self._tried(layout, (*FIRST, expert_parallel())), key=lambda outcome: outcome.seconds)

    def pareto_dp(self) -> Outcome:
        """Return the strategy of HiDup's algorithm, `pareto-dp`, with two interleaved parts."""
        module = imported(self.setting.model, self.setting.gpus, self.setting.a_card).clone()
        add_cluster(module, self.cluster)
        passes = "search-strategy{algorithm=pareto-dp},program{mode=duplex parts=2}"
        run_pipeline(Context(), module, passes, verify_each=False)
        return Outcome("pareto-dp", ADDITIVE, simulate_module(module)[0], module)

    def expert_parallel(self) -> Outcome:
        """Return data parallelism with split experts."""
        return next(self._tried(Layout(self.mesh), (expert_parallel(),)))

    def expert_duplex(self) -> Outcome:
        """Return data parallelism with split experts, with two interleaved parts."""
        return next(self._tried(Layout(self.mesh, "duplex", 2), (expert_parallel(),)))

    def data_parallel(self) -> Outcome:
        """Return PyTorch's DDP: a split batch, all else replicated, and gradients reduced during backward."""
        return next(self._tried(Layout(self.mesh), (preset(("dp", ("gpu",))),)))

    @cached_property
    def gshard(self) -> Choice:
        """Return GShard's strategy: split experts, and all other parameters and states replicated."""
        (view,) = self.bench.views
        others = tuple(
            Pin(value.name, Sharding.replicated(len(shape_of(value.argument))))
            for value in view.inputs
            if value.role in (train.PARAM, train.STATE) and EXPERTS not in value.name
        )
        return Choice((*expert_parallel().pins, *others), FIRST[1].weights)

    def in_hidups_way(self) -> Outcome:
        """Return GShard's strategy as HiDup runs it; see the docstring of this module."""
        module = self.bench.written(self.bench.solve(Candidate(Layout(self.mesh, "duplex", 2), self.gshard)))
        run_pipeline(Context(), module, f"{HALVES},duplex{{order=phases}}", verify_each=False)
        wait_in_backward(module)
        run_pipeline(Context(), module, TENSOR_BY_TENSOR, verify_each=False)
        return Outcome("GShard", self.gshard, simulate_module(module)[0], module)

    def in_deepspeeds_way(self) -> Outcome:
        """Return GShard's strategy with an unsplit batch and blocking collectives."""
        module = self.bench.written(self.bench.solve(Candidate(Layout(self.mesh), self.gshard)))
        run_pipeline(Context(), module, f"communicate,{BLOCKING}", verify_each=False)
        return Outcome("GShard", self.gshard, simulate_module(module)[0], module)

    def _tried(self, layout: Layout, choices: Sequence[Choice]) -> Iterator[Outcome]:
        for choice in choices:
            try:
                solved = self.bench.solve(Candidate(layout, choice))
                if (outcome := self._known.get(solved.fingerprint)) is None:
                    finished = self.bench.finish(solved)
                    outcome = Outcome(_name(choice), choice, finished.simulation, finished.module)
                    self._known[solved.fingerprint] = outcome
            except Refused as error:
                print(f"{Candidate(layout, choice).name}: {error}", file=sys.stderr)
                continue
            yield outcome


def _name(choice: Choice) -> str:
    """Return a choice in words."""
    if choice == expert_parallel():
        return "expert parallel"
    return choice.name if choice.presets else f"searched ({choice.objective})"


def expert_parallel() -> Choice:
    """Return the usual choice for mixtures of experts: experts are split, and the search completes the rest."""
    experts = Pin(f"layers.*{EXPERTS}*", parse_sharding('[{"gpu"}, {}, {}]'))
    return Choice((experts,), FIRST[1].weights)


def wait_in_backward(module: ModuleOp) -> None:
    """Move the starts of backward's collectives right before their waits, so that nothing overlaps them."""
    for op in list(module.walk()):
        if isinstance(op, StartOp) and category(op) == "backward":
            (wait,) = (use.operation for use in op.token.uses)
            op.detach()
            block = wait.parent
            assert block is not None
            block.insert_op_before(op, wait)
