"""The predicted timeline: the stream and the start of each op."""

import pytest
from ir_files import context, parse
from xdsl.dialects.func import FuncOp

from shardwright.ir.collectives import CollectiveKind
from shardwright.passes.analysis.simulation.timeline import Timeline, predict
from shardwright.passes.errors import OpFailure
from shardwright.passes.step.step_view import cluster_of_module

# A relu of 500 floats moves 4,000 bytes: 4 s. A collective starts in 1 s and sends 1,000 bytes in 1 s.
HEAD = """
spmd.mesh @mesh = <["dp"=2, "tp"=2]>
spmd.cluster @c on @mesh
  devices [#spmd.device<"a", flops = {float32 = 1.0e9}, bandwidth = 1.0e3, memory = 1.0e9, launch = 0.0>]
  placement [0, 0, 0, 0]
  links [#spmd.link<"dp", alpha = 1.0, beta = 1.0e-3>, #spmd.link<"tp", alpha = 1.0, beta = 1.0e-3>]
"""
RELU = "{spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>} : (tensor<500xf32>) -> tensor<500xf32>"
SUM = "out_sharding = <@mesh, [{}]> : tensor<500xf32>"


def timeline(*lines: str, over: str = '"dp"') -> Timeline:
    """Return the timeline of a function of `%p`, partial over the axes `over`, and `%x`."""
    spread = f"spmd.sharding = #spmd.sharding<@mesh, [{{}}], unreduced={{{over}}}>"
    head = f"func.func @f(%p: tensor<500xf32> {{{spread}}}, %x: tensor<500xf32>)"
    module = parse("\n".join([HEAD, f"{head} {{", *lines, "func.return", "}"]), context())
    func = next(op for op in module.ops if isinstance(op, FuncOp))
    return predict(func, cluster_of_module(module))


def start(token: str, operand: str = "%p", sharding: str = "[{}]") -> str:
    """Return the start of an all-reduce."""
    shardings = f"out_shardings = [#spmd.sharding<@mesh, {sharding}>]"
    return f'%{token} = spmd.start "all_reduce" {operand} {shardings} : tensor<500xf32>'


def test_compute_takes_its_roofline_time():
    found = timeline(f"%a = aten.relu %x {RELU}")
    assert (found.seconds, found.compute_seconds, found.exposed_seconds) == (4.0, 4.0, 0.0)


@pytest.mark.parametrize(("method", "seconds"), [("flat", 3.0), ("padded", 5.0), ("grouped_broadcast", 7.0)])
def test_a_collective_takes_the_measured_time_of_its_method(method: str, seconds: float):
    points = {"all_gather": 3.0, "all_gather:padded": 5.0, "all_gather:grouped_broadcast": 7.0}
    given = ", ".join(f'"{name}" = [(2000.0, {each})]' for name, each in points.items())
    tp = '#spmd.link<"tp", alpha = 1.0, beta = 1.0e-3'
    head = HEAD.replace(tp, f"{tp}, points = {{{given}}}")
    gather = f'%a = spmd.all_gather [{{"tp"}}] %x out_sharding = <@mesh, [{{}}]> method = "{method}" : tensor<500xf32>'
    arguments = '%x: tensor<500xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"tp"}]>}'
    module = parse("\n".join([head, f"func.func @f({arguments}) {{", gather, "func.return", "}"]), context())
    func = next(op for op in module.ops if isinstance(op, FuncOp))
    assert predict(func, cluster_of_module(module)).seconds == pytest.approx(seconds)


def test_a_collective_blocks_both_streams():
    found = timeline(f'%a = spmd.all_reduce [{{"dp"}}] %p {SUM}', f"%b = aten.relu %a {RELU}")
    assert found.communication_seconds == found.exposed_seconds == pytest.approx(3.0)
    assert found.seconds == pytest.approx(7.0)
    assert found.collective_bytes == {CollectiveKind.ALL_REDUCE: 2000.0}
    assert [(event.stream, event.start) for event in found.events] == [("dp", 0.0), ("compute", 3.0)]


def test_a_started_collective_is_hidden_behind_compute():
    found = timeline(start("t"), f"%b = aten.relu %x {RELU}", "%a = spmd.wait %t : tensor<500xf32>")
    assert found.seconds == pytest.approx(4.0)
    assert found.exposed_seconds == pytest.approx(0.0)


def test_a_wait_blocks_compute():
    found = timeline(start("t"), "%a = spmd.wait %t : tensor<500xf32>", f"%b = aten.relu %x {RELU}")
    assert found.seconds == pytest.approx(7.0)


def test_only_collectives_over_the_same_axes_queue():
    waits = ["%a = spmd.wait %s : tensor<500xf32>", "%b = spmd.wait %t : tensor<500xf32>"]
    same = timeline(start("s"), start("t"), *waits)
    first = start("s", sharding='[{}], unreduced={"tp"}')
    second = start("t", sharding='[{}], unreduced={"dp"}')
    other = timeline(first, second, *waits, over='"dp", "tp"')
    assert (same.seconds, other.seconds) == (pytest.approx(6.0), pytest.approx(3.0))
    assert {event.stream for event in other.events} == {"dp", "tp"}


def test_undecided_ops_are_refused():
    with pytest.raises(OpFailure, match="run search-strategy"):
        timeline("%a = aten.relu %x : (tensor<500xf32>) -> tensor<500xf32>")
    with pytest.raises(OpFailure, match="run select-collectives"):
        timeline("%a = spmd.reshard %p to <@mesh, [{}]> : tensor<500xf32>")


def test_a_fragment_runs_once_for_every_part_and_sums_over_time_send_nothing():
    relu = 'aten.relu %part {spmd.signature = #spmd.sig<@mesh, ([{"t"}]) -> ([{"t"}])>}'
    total = 'aten.sum %a {spmd.signature = #spmd.sig<@mesh, ([{"t"}]) -> ([], unreduced={"t"})>}'
    module = parse(
        HEAD.replace('<["dp"', '<["t"=4 temporal, "dp"')
        + f"""
        func.func @f(%x: tensor<500xf32>) {{
          %s = pipe.fragment "t" over "t" -> tensor<f32> {{
            %part = spmd.slice [{{"t"}}] %x out_sharding = <@mesh, [{{"t"}}]> : tensor<500xf32>
            %a = {relu} : (tensor<500xf32>) -> tensor<500xf32>
            %b = {total} : (tensor<500xf32>) -> tensor<f32>
            pipe.yield %b : tensor<f32>
          }}
          %r = spmd.all_reduce [{{"t"}}] %s out_sharding = <@mesh, []> : tensor<f32>
          func.return
        }}""",
        context(),
    )
    found = predict(next(op for op in module.ops if isinstance(op, FuncOp)), cluster_of_module(module))
    # A part has 125 floats: relu moves 1,000 bytes, the sum 504; the three scalar sums move 12 bytes each.
    assert found.seconds == pytest.approx(4 * (1.0 + 0.504) + 3 * 0.012)
    assert found.communication_seconds == 0.0
    assert found.collective_bytes == {}
