"""`schedule-pipeline{schedule=auto}`: as fast as any fixed order, as simulated, and within memory."""

from collections.abc import Mapping

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.checking.cases import CheckCase, imported, plan_case
from shardwright.dialects.mesh_ops import ClusterOp
from shardwright.dialects.stage_program import schedule_of
from shardwright.ir.cluster import Cluster, Device, Link
from shardwright.ir.mesh import Mesh
from shardwright.passes.analysis.memory import peak_memory
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.errors import OpFailure
from shardwright.passes.plan_transfers import PlanTransfersPass
from shardwright.passes.schedule_pipeline import SchedulePipelinePass
from shardwright.passes.stages.estimate import in_flight
from shardwright.passes.stages.schedules import FragmentKind, PipelineShape, ScheduleName, Work, policies
from shardwright.passes.step.step_view import step_functions, step_views

STAGES, PARTS = 3, 8
LINKS = {"free": (0.0, 0.0), "usual": (2e-3, 1e-9), "slow": (2e-3, 1e-7)}


@pytest.fixture(scope="module")
def planned() -> Mapping[str, ModuleOp]:
    """Return GPT-2 in three stages before it is scheduled, by kind of link."""
    mesh = Mesh.of(gpu=STAGES)
    device = Device("cpu", (("float32", 1e9),), 1e10, 1e10, 0.0)
    cluster = Cluster("three", mesh, (device,), (0,) * STAGES, (Link("gpu", *LINKS["free"]),))
    passes = f"prepare,partition-stages{{stages={STAGES}}},search-strategy,split-batch{{parts={PARTS}}}"
    case = CheckCase("gpt2-tiny", mesh, cluster=cluster, pipeline=f"{passes},communicate")
    plan_case(case, module := imported(case))
    found: dict[str, ModuleOp] = {}
    for name, link in LINKS.items():
        found[name] = module.clone()
        # Each stage has one rank, so that only links between stages matter.
        whole = next(op for op in found[name].ops if isinstance(op, ClusterOp))
        new = ClusterOp(Cluster("three", mesh, (device,), (0,) * STAGES, (Link("gpu", *link),)))
        found[name].body.block.insert_op_after(new, whole)
        whole.detach()
    return found


def scheduled(
    module: ModuleOp, schedule: ScheduleName, in_flight: int | None = None, limit: int | None = None
) -> ModuleOp:
    made = module.clone()
    SchedulePipelinePass(schedule, in_flight=in_flight, limit=limit).apply(Context(), made)
    PlanTransfersPass().apply(Context(), made)
    made.verify()
    return made


def seconds(module: ModuleOp) -> float:
    (simulation,) = simulate_module(module)
    return simulation.seconds


def most_in_flight(module: ModuleOp) -> list[int]:
    (func,) = step_functions(module)
    works = [Work(f"{kind}{stage}", stage, kind) for stage in range(STAGES) for kind in FragmentKind]
    works = [each for each in works if each.label != "weights0"]
    return [in_flight(slots, works) for slots in schedule_of(func)]


def peaks(module: ModuleOp) -> list[int]:
    return [peak_memory(view.func, cluster.mesh, None, view.stage).bytes for view, cluster in step_views(module)]


@pytest.mark.parametrize("link", LINKS)
def test_auto_is_as_fast_as_any_fixed_order_in_the_simulator(link: str, planned: Mapping[str, ModuleOp]):
    fixed = [seconds(scheduled(planned[link], policy)) for policy in policies(PipelineShape(STAGES, PARTS))]
    assert seconds(scheduled(planned[link], "auto")) <= min(fixed)


def test_auto_hides_waits_of_every_fixed_order(planned: Mapping[str, ModuleOp]):
    fixed = [seconds(scheduled(planned["usual"], policy)) for policy in policies(PipelineShape(STAGES, PARTS))]
    assert seconds(scheduled(planned["usual"], "auto")) < 0.9 * min(fixed)


def test_auto_respects_the_limit_of_parts_in_flight(planned: Mapping[str, ModuleOp]):
    free = most_in_flight(scheduled(planned["usual"], "auto"))
    assert max(free) > STAGES
    for parts in (2, STAGES):
        assert max(most_in_flight(scheduled(planned["usual"], "auto", in_flight=parts))) <= parts


def test_auto_respects_its_memory_limit_and_uses_it(planned: Mapping[str, ModuleOp]):
    frugal, free = (scheduled(planned["usual"], name) for name in ("1f1b", "auto"))
    limit = max(peaks(frugal))
    assert max(peaks(free)) > limit, "or there is nothing to keep to"
    within = scheduled(planned["usual"], "auto", limit=limit)
    assert max(peaks(within)) <= limit
    assert seconds(free) <= seconds(within) <= seconds(frugal)


def test_auto_takes_the_least_memory_if_nothing_fits(planned: Mapping[str, ModuleOp]):
    assert max(peaks(scheduled(planned["usual"], "auto", limit=1))) <= max(peaks(scheduled(planned["usual"], "1f1b")))


def test_no_part_in_flight_is_refused(planned: Mapping[str, ModuleOp]):
    with pytest.raises(OpFailure, match="in-flight=0: expected at least one part"):
        scheduled(planned["usual"], "auto", in_flight=0)
