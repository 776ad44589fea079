"""
HiDup's models and clusters (`hidup.py`), and the ways in which a step of them is planned here.

`Planner.in_hidups_way` is a model of what HiDup does, with no constant of its own:

- The strategy is GShard's, which is what the paper says that HiDup finds on two machines (6.10, figure 12): each GPU
  has its experts, every other parameter and state is on all of them.
- Forward runs by phases (`duplex{order=phases}`, HiDup 3.2 and 5). Backward is autograd's: the graph that HiDup edits
  is that of forward, its figure 2 has duplex in forward, and its released code costs backward without overlap. So other
  collectives of backward are waited for where they start.
- Gradients are reduced beside backward, as 6.10 says, tensor by tensor.

`Planner.in_deepspeeds_way` is the same strategy with the batch whole and nothing beside computation: the paper's
table 4 measured an overlap of 0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import import_training_step
from shardwright.api.training_step import TrainingStep
from shardwright.dialects import train
from shardwright.dialects.compute import shape_of
from shardwright.dialects.spmd import StartOp
from shardwright.ir.cluster import Cluster
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
from shardwright.passes.planning.candidates import Candidate, Choice, Layout, preset
from shardwright.passes.planning.explore import FIRST
from shardwright.passes.planning.notes import Refused

HALVES = "split-batch{parts=2 unrolled=true},communicate"
BLOCKING = "overlap{gradients=false gathers=false activations=false},join-updates"
TENSOR_BY_TENSOR = "overlap{activations=false bucket_mb=0.0001},join-updates"
"""Gathers of parameters and reductions of gradients beside computation, in buckets that no two tensors share."""

A_CARD = 32
"""Samples for each GPU, a choice of ours: the paper says that the batch grows with the GPUs (6.1), and no size."""

EXPERTS = ".mlp.experts."
"""What the names of the parameters of experts have in them."""


@dataclass(frozen=True)
class Setting:
    """One of the paper's models on one of its clusters."""

    model: str
    gpus: int
    cluster: str
    a_card: int = A_CARD

    def on(self) -> Cluster:
        """The cluster as one axis of so many GPUs."""
        return on_mesh(find_cluster(self.cluster), Mesh.of(gpu=self.gpus))


def training_step(model: str, gpus: int, a_card: int) -> TrainingStep:
    """A model of table 1: 8 layers, a mixture of experts in every second one."""
    kind: Callable[..., MoEConfig] = sparsely_gated if model.endswith("sgmoe") else switch
    if model.startswith("bert"):
        bert = BertConfig(layers=8, vocabulary=33278, positions=128, experts=kind(max(gpus, 2)), tied=False)
        return bert_step(bert, batch=a_card * gpus, length=128)
    vit = ViTConfig(layers=8, image=32, patch=4, classes=10, experts=kind(2 * gpus, dispatch="scatter"))
    return vit_step(vit, batch=a_card * gpus)


@lru_cache(maxsize=2)
def imported(model: str, gpus: int, a_card: int) -> ModuleOp:
    """The step as passes that decide get it."""
    module = import_training_step(training_step(model, gpus, a_card))
    run_pipeline(Context(), module, "prepare", verify_each=False)
    return module


@dataclass(frozen=True)
class Outcome:
    """A plan, simulated."""

    name: str
    simulation: Simulation
    module: ModuleOp

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.simulation.seconds

    @property
    def overlap(self) -> Overlap:
        """Of the rank that computes longest."""
        return overlaps(self.simulation, self.simulation.busiest(None).number)[ALL, ALL]


class Planner:
    """Plans one setting in each way."""

    def __init__(self, setting: Setting, cluster: Cluster | None = None) -> None:
        self.cluster = cluster if cluster is not None else setting.on()
        module = imported(setting.model, setting.gpus, setting.a_card).clone()
        add_cluster(module, self.cluster)
        self.bench = CandidateCompiler(module, self.cluster)
        self.mesh = self.cluster.mesh
        self._known: dict[object, Outcome] = {}
        """What strategies come to, for several searches find the same one."""

    def whole(self) -> Outcome:
        """The fastest with the batch whole."""
        return min(self._tried(Layout(self.mesh), (*FIRST, expert_parallel())), key=lambda each: each.seconds)

    def duplex(self) -> Outcome:
        """The fastest with two parts that take turns."""
        layout = Layout(self.mesh, "duplex", 2)
        return min(self._tried(layout, (*FIRST, expert_parallel())), key=lambda each: each.seconds)

    def expert_parallel(self) -> Outcome:
        """Data parallelism with the experts apart."""
        return next(self._tried(Layout(self.mesh), (expert_parallel(),)))

    def data_parallel(self) -> Outcome:
        """Everything on all GPUs and the batch divided, gradients reduced beside backward: PyTorch's DDP."""
        return next(self._tried(Layout(self.mesh), (preset(("dp", ("gpu",))),)))

    @cached_property
    def gshard(self) -> Choice:
        """GShard's strategy: experts apart, what else there is on all GPUs."""
        (view,) = self.bench.views
        others = tuple(
            Pin(each.name, Sharding.replicated(len(shape_of(each.argument))))
            for each in view.inputs
            if each.role in (train.PARAM, train.STATE) and EXPERTS not in each.name
        )
        return Choice("GShard", (*expert_parallel().pins, *others), FIRST[1].weights)

    def in_hidups_way(self) -> Outcome:
        """GShard's strategy as HiDup runs it: see the docstring of this file."""
        module = self.bench.written(self.bench.solve(Candidate(Layout(self.mesh, "duplex", 2), self.gshard)))
        run_pipeline(Context(), module, f"{HALVES},duplex{{order=phases}}", verify_each=False)
        wait_in_backward(module)
        run_pipeline(Context(), module, TENSOR_BY_TENSOR, verify_each=False)
        return Outcome("GShard", simulate_module(module)[0], module)

    def in_deepspeeds_way(self) -> Outcome:
        """GShard's strategy with the batch whole, all of whose collectives block."""
        module = self.bench.written(self.bench.solve(Candidate(Layout(self.mesh), self.gshard)))
        run_pipeline(Context(), module, f"communicate,{BLOCKING}", verify_each=False)
        return Outcome("GShard", simulate_module(module)[0], module)

    def _tried(self, layout: Layout, choices: Sequence[Choice]) -> Iterator[Outcome]:
        for choice in choices:
            try:
                solved = self.bench.solve(Candidate(layout, choice))
                if (found := self._known.get(solved.fingerprint)) is None:
                    made = self.bench.finish(solved)
                    found = Outcome(choice.name, made.simulation, made.module)
                    self._known[solved.fingerprint] = found
            except Refused as error:
                print(f"{choice.name} on {layout.name}: {error}", file=sys.stderr)
                continue
            yield found


def expert_parallel() -> Choice:
    """What systems for mixtures of experts do: each GPU has experts of its own. The search completes the rest."""
    experts = Pin(f"layers.*{EXPERTS}*", parse_sharding('[{"gpu"}, {}, {}]'))
    return Choice("expert parallel", (experts,), FIRST[1].weights)


def wait_in_backward(module: ModuleOp) -> None:
    """Start the collectives of backward right before they are waited for, so that nothing runs beside them."""
    for op in list(module.walk()):
        if isinstance(op, StartOp) and category(op) == "backward":
            (wait,) = (use.operation for use in op.token.uses)
            op.detach()
            block = wait.parent
            assert block is not None
            block.insert_op_before(op, wait)
