"""Measurements that agree with the prediction, for tests of comparisons."""

from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp

from shardwright.ir.measured_steps import MeasuredRank, MeasuredSteps, MeasuredTraffic
from shardwright.ir.overlap import Span
from shardwright.passes.analysis.simulation.names import category
from shardwright.passes.analysis.simulation.simulate import simulate_module


def as_predicted(module: ModuleOp) -> MeasuredSteps:
    """Return a measured step that equals the prediction, except for the phases of traffic."""
    (simulation,) = simulate_module(module)
    ranks: dict[int, MeasuredRank] = {}
    for each in simulation.classes:
        computed: dict[str, list[Span]] = {}
        for run in simulation.ops(each.number):
            computed.setdefault(category(run.op), []).append((run.start, run.end))
        sent = tuple(
            MeasuredTraffic(
                run.traffic.kind, run.channel.name, f"{run.channel.name} {n}", "fc", "forward", 8, run.start, run.end
            )
            for n, run in enumerate(simulation.traffic(each.number))
        )
        spans = {phase: tuple(found) for phase, found in computed.items()}
        made = MeasuredRank(0, each.stage, 0.0, simulation.seconds, spans, sent)
        ranks |= {rank: replace(made, rank=rank) for rank in each.ranks}
    return MeasuredSteps("road", (tuple(ranks[rank] for rank in sorted(ranks)),))
