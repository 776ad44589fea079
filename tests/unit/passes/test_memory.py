"""Peak memory: what each op allocates and when it is freed, checked by hand on a few ops."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_files import context, parse
from xdsl.dialects.func import FuncOp

from shardwright.dialects.mesh_ops import MeshOp
from shardwright.ir.collectives import CollectiveKind, Step, find_step
from shardwright.ir.mesh import Mesh
from shardwright.ir.sharding import DimSharding, Reduction, Sharding, local_shape
from shardwright.passes.analysis.collective_memory import CollectiveMemory, collective_memory
from shardwright.passes.analysis.memory import MemoryPeak, local_bytes_by_part, peak_memory, size_text
from shardwright.passes.analysis.memory_roles import MemoryRole

KIB = 1024
PAIR, WHOLE = Mesh.of(gpu=2), Sharding.replicated(2)


def vector(text: str) -> str:
    """Expand the short forms: `!t` for the type of all values, `#half` and the like for their shardings."""
    spreads = {"#whole": "[{}]", "#half": '[{"gpu"}]', "#sum": '[{}], unreduced={"gpu"}'}
    for short, spread in spreads.items():
        text = text.replace(short, spread)
    return text.replace("!t", "tensor<256xf32>")


def peak(body: str, arguments: str = "%x: !t") -> MemoryPeak:
    """Return the peak of a function on two ranks whose replicated values take 1 KiB each."""
    return peak_of(vector(f'spmd.mesh @mesh = <["gpu"=2]>\nfunc.func @f({arguments}) -> !t {{\n{body}\n}}'))


def peak_of(text: str) -> MemoryPeak:
    """Return the peak of the function of a module."""
    module = parse(text, context())
    func = next(op for op in module.ops if isinstance(op, FuncOp))
    return peak_memory(func, next(op.mesh for op in module.ops if isinstance(op, MeshOp)))


def relu(result: str, operand: str) -> str:
    """Return an op on replicated values that allocates memory."""
    signature = "#spmd.sig<@mesh, (#whole) -> (#whole)>"
    return f"%{result} = aten.relu %{operand} {{spmd.signature = {signature}}} : (!t) -> !t"


def add(result: str, left: str, right: str, spread: str = "#whole") -> str:
    """Return a sum."""
    signature = f"#spmd.sig<@mesh, ({spread}, {spread}) -> ({spread})>"
    return f"%{result} = aten.add.Tensor %{left}, %{right} {{spmd.signature = {signature}}} : (!t, !t) -> !t"


def returned(value: str) -> str:
    """Return the last op."""
    return f"func.return %{value} : !t"


def test_a_value_dies_after_its_last_use():
    lines = [relu("a", "x"), relu("b", "a"), relu("c", "b"), returned("c")]
    # %x is always alive, with two neighbouring values.
    assert peak("\n".join(lines)).by_rank == (3 * KIB, 3 * KIB)


def test_an_allocator_gives_whole_blocks():
    body = "\n".join([relu("a", "x"), relu("b", "a"), relu("c", "b"), returned("c")])
    module = parse(vector(f'spmd.mesh @mesh = <["gpu"=2]>\nfunc.func @f(%x: !t) -> !t {{\n{body}\n}}'), context())
    func = next(op for op in module.ops if isinstance(op, FuncOp))
    mesh = next(op.mesh for op in module.ops if isinstance(op, MeshOp))
    # There are three values of 1,024 bytes, in blocks of 600 bytes on one rank and 512 on the other.
    assert peak_memory(func, mesh, blocks=(600.0, 512.0)).by_rank == (3 * 1200, 3 * 1024)


def test_the_peak_names_its_op_and_the_values_alive():
    found = peak("\n".join([relu("a", "x"), relu("b", "a"), add("c", "a", "b"), relu("d", "c"), returned("d")]))
    assert found.op.results[0].name_hint == "b"
    assert {value.name for value in found.alive} == {"%x", "%a", "%b"}
    assert found.bytes == sum(value.bytes for value in found.alive) == 3 * KIB


def test_a_sum_is_written_over_an_operand_that_nothing_else_needs():
    assert peak("\n".join([relu("a", "x"), add("b", "a", "x"), returned("b")])).bytes == 2 * KIB


@pytest.mark.parametrize("left", ["x", "v"])
def test_a_sum_leaves_arguments_and_memory_with_another_view_alone(left: str):
    view = "%v = aten.view %a {size = [256 : i64], spmd.signature = #spmd.sig<@mesh, (#whole) -> (#whole)>}"
    lines = [relu("a", "x"), f"{view} : (!t) -> !t", add("b", left, "a"), add("c", "b", "a"), returned("c")]
    assert peak("\n".join(lines)).bytes == 3 * KIB


def test_an_update_is_in_place():
    update = '%y = train.sgd %x, %g, %lr {absent = ["momentum_buffer", "step"]} : (!t, !t, tensor<f32>) -> !t'
    found = peak(f"{update}\n{returned('y')}", "%x: !t, %g: !t, %lr: tensor<f32>")
    assert found.bytes == 2 * KIB + 4


def partial(result: str) -> str:
    """Return an op whose result is partial, a copy of the argument `%x` on the first rank."""
    return f'%{result} = spmd.partial [{{"gpu"}}] %x out_sharding = <@mesh, #sum> : !t'


def around_reduced_sum(*reduce: str) -> str:
    """
    Return a program that makes a sum `%s` and holds three more values while `reduce` reduces it to `%b`: five values
    with the argument, and six if the result is not in place.
    """
    held = [relu(each, "x") for each in "cde"]
    used = [add("f", "b", "c"), add("g", "f", "d"), add("h", "g", "e"), returned("h")]
    return "\n".join([partial("p"), partial("q"), add("s", "p", "q", "#sum"), *held, *reduce, *used])


def test_an_all_reduce_is_in_place():
    reduce = '%b = spmd.all_reduce [{"gpu"}] %s out_sharding = <@mesh, #whole> : !t'
    assert peak(around_reduced_sum(reduce)).bytes == 5 * KIB


def test_an_all_reduce_does_not_write_to_an_argument():
    reduce = '%b = spmd.all_reduce [{"gpu"}] %a out_sharding = <@mesh, #whole> : !t'
    assert peak("\n".join([partial("a"), reduce, returned("b")])).bytes == 3 * KIB


def test_a_gather_allocates_the_full_value_and_a_slice_nothing():
    half = "%x: !t {spmd.sharding = #spmd.sharding<@mesh, #half>}"
    gather = '%a = spmd.all_gather [{"gpu"}] %x out_sharding = <@mesh, #whole> : !t'
    narrow = '%b = spmd.slice [{"gpu"}] %a out_sharding = <@mesh, #half> : !t'
    assert peak("\n".join([gather, narrow, returned("b")]), half).bytes == 1.5 * KIB


def test_results_of_a_started_collective_live_from_its_start():
    start = '%t = spmd.start "all_gather" %x out_shardings = [#spmd.sharding<@mesh, #whole>] : !t'
    half = "%x: !t {spmd.sharding = #spmd.sharding<@mesh, #half>}, %y: !t"
    lines = [start, relu("a", "y"), "%b = spmd.wait %t : !t", add("c", "a", "b"), returned("c")]
    found = peak("\n".join(lines), half)
    assert (found.op.name, found.bytes) == ("aten.relu", 3.5 * KIB)


def test_a_started_all_reduce_is_in_place():
    start = '%t = spmd.start "all_reduce" %s out_shardings = [#spmd.sharding<@mesh, #whole>] : !t'
    assert peak(around_reduced_sum(start, "%b = spmd.wait %t : !t")).bytes == 5 * KIB


OFFSETS = st.lists(st.integers(0, 12), min_size=3, max_size=3).map(lambda inner: (0, *sorted(inner), 12))


@given(st.booleans(), st.none() | OFFSETS)
def test_bytes_by_rank_follow_local_shapes(both: bool, offsets: tuple[int, ...] | None):
    mesh = Mesh.of(node=2, gpu=2)
    dims = (DimSharding(("node", "gpu"), offsets), DimSharding()) if both else (DimSharding(("gpu",)), DimSharding())
    sharding = Sharding(dims)
    found = local_bytes_by_part((12, 7), 4, sharding, mesh)[:, 0]
    expected = [4 * math.prod(local_shape((12, 7), sharding, mesh, rank)) for rank in range(4)]
    assert found.tolist() == expected


@pytest.mark.parametrize(("count", "text"), [(17, "17 bytes"), (1536, "1.50 KiB"), (5 * 2**30, "5.00 GiB")])
def test_sizes_are_written_with_a_unit(count: int, text: str):
    assert size_text(count) == text


def test_a_fragment_holds_the_sums_of_its_parts_and_one_part_at_a_time():
    found = peak_of("""
      spmd.mesh @mesh = <["t"=2 temporal, "x"=2]>
      func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
        %w = aten.exp %x {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>} : (tensor<8xf32>) -> tensor<8xf32>
        %s = pipe.fragment "t" over "t" -> tensor<8xf32> {
          %part = spmd.slice [{"t"}] %x out_sharding = <@mesh, [{"t"}]> : tensor<8xf32>
          %a = aten.exp %part {spmd.signature = #spmd.sig<@mesh, ([{"t"}]) -> ([{"t"}])>}
            : (tensor<8xf32>) -> tensor<8xf32>
          %b = aten.mul.Tensor %w, %w {spmd.signature = #spmd.sig<@mesh, ([{}], [{}]) -> ([{}])>}
            : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
          %c = aten.sum %a {spmd.signature = #spmd.sig<@mesh, ([{"t"}]) -> ([], unreduced={"t"})>}
            : (tensor<8xf32>) -> tensor<f32>
          %y = aten.mul.Tensor %b, %c {
            spmd.signature = #spmd.sig<@mesh, ([{}], [], unreduced={"t"}) -> ([{}], unreduced={"t"})>
          } : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
          pipe.yield %y : tensor<8xf32>
        }
        %r = spmd.all_reduce [{"t"}] %s out_sharding = <@mesh, [{}]> : tensor<8xf32>
        func.return %r : tensor<8xf32>
      }""")
    x, w, total, a, b, c, y = 32, 32, 32, 16, 32, 4, 32
    assert found.by_rank == (max(x + w + total + a + b + c, x + w + total + b + c + y),) * 2


PRODUCT = """aten.mul.Tensor %w, %u {
            spmd.signature = #spmd.sig<@mesh, ([{}], [], unreduced={"t"}) -> ([{}], unreduced={"t"})>
          } : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>"""
NEGATIVE = """aten.neg %y {
            spmd.signature = #spmd.sig<@mesh, ([{}], unreduced={"t"}) -> ([{}], unreduced={"t"})>
          } : (tensor<8xf32>) -> tensor<8xf32>"""


@pytest.mark.parametrize(("second", "terms"), [(PRODUCT, 1), (NEGATIVE, 2)], ids=["of its own", "of the first term"])
def test_a_part_frees_a_term_of_a_sum_that_it_does_not_need(second: str, terms: int):
    found = peak_of(f"""
      spmd.mesh @mesh = <["t"=2 temporal, "x"=2]>
      func.func @f(%w: tensor<8xf32>, %c: tensor<f32>) -> (tensor<8xf32>, tensor<8xf32>) {{
        %s, %r = pipe.fragment "t" over "t" -> tensor<8xf32>, tensor<8xf32> {{
          %u = spmd.partial [{{"t"}}] %c out_sharding = <@mesh, [], unreduced={{"t"}}> : tensor<f32>
          %y = {PRODUCT}
          %z = {second}
          pipe.yield %y, %z : tensor<8xf32>, tensor<8xf32>
        }}
        %y.sum = spmd.all_reduce [{{"t"}}] %s out_sharding = <@mesh, [{{}}]> : tensor<8xf32>
        %z.sum = spmd.all_reduce [{{"t"}}] %r out_sharding = <@mesh, [{{}}]> : tensor<8xf32>
        func.return %y.sum, %z.sum : tensor<8xf32>, tensor<8xf32>
      }}""")
    w, c, u, total, term = 32, 4, 4, 32, 32
    held = w + c + 2 * total + terms * term
    assert found.bytes == (held + u if terms == 1 else held)


def test_a_reduce_scatter_holds_its_operand_and_the_received_parts():
    scatter = '%b = spmd.reduce_scatter [{"gpu"}] %a out_sharding = <@mesh, #half> : !t'
    found = peak("\n".join([partial("a"), scatter, returned("b")]))
    assert found.bytes == 3 * KIB
    assert found.by_role == {
        **dict.fromkeys(MemoryRole, 0),
        MemoryRole.BATCH: KIB,
        MemoryRole.GATHERED: 1.5 * KIB,
        MemoryRole.BUFFERS: KIB / 2,
    }


def only_step(kind: CollectiveKind, source: Sharding, target: Sharding, mesh: Mesh) -> Step:
    """Return the step of a kind between two shardings."""
    step = find_step(kind, source, target, mesh)
    assert step is not None
    return step


def test_a_gather_along_an_inner_dim_needs_a_second_buffer():
    assert [
        collective_memory(only_step(CollectiveKind.ALL_GATHER, split, WHOLE, PAIR), (4, 6), PAIR)
        for split in (Sharding.of([["gpu"], []]), Sharding.of([[], ["gpu"]]))
    ] == [CollectiveMemory(), CollectiveMemory(of_result=0.5, is_late=True)]


def test_hierarchical_phases_hold_their_messages():
    four = Mesh.of(node=2, gpu=2)
    split = Sharding.of([["node", "gpu"], []])
    gather = only_step(CollectiveKind.ALL_GATHER, split, WHOLE, four)
    assert collective_memory(gather, (4, 6), four, method="hierarchical") == CollectiveMemory(0.0, 1.5, is_late=True)
    partial = Sharding.of([[], []], {"node": Reduction.SUM, "gpu": Reduction.SUM})
    scatter = only_step(CollectiveKind.REDUCE_SCATTER, partial, split, four)
    assert collective_memory(scatter, (4, 6), four, method="hierarchical") == CollectiveMemory(3.0, is_late=True)


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("bucket", [math.inf, 64])
def test_a_reduction_is_in_place_where_memory_is_in_order_and_not_a_bucket(permuted: bool, bucket: float):
    step = only_step(CollectiveKind.ALL_REDUCE, Sharding.of([[], []], {"gpu": Reduction.SUM}), WHOLE, PAIR)
    assert collective_memory(step, (4, 6), PAIR, permuted, bucket).in_place is (not permuted and bucket == math.inf)


SCHEDULED = """
  spmd.mesh @stage0 = <["micro"=2 temporal, "gpu"=1]> on [0]
  spmd.mesh @stage1 = <["micro"=2 temporal, "gpu"=1]> on [1]
  func.func @step(%x: tensor<8xf32> {train.batch = "0", pipe.stage = 0 : i64}) -> tensor<f32> attributes {
    pipe.stages = ["stage0", "stage1"], pipe.schedule = [SLOTS]
  } {
    %h = pipe.fragment "forward0" stage 0 : i64 over "micro" -> tensor<8xf32> {
      %x.slice = spmd.slice [{"micro"}] %x out_sharding = <@stage0, [{"micro"}]> : tensor<8xf32>
      %h_1 = aten.exp %x.slice
        {pipe.stage = 0 : i64, spmd.signature = #spmd.sig<@stage0, ([{"micro"}]) -> ([{"micro"}])>}
        : (tensor<8xf32>) -> tensor<8xf32>
      pipe.yield %h_1 : tensor<8xf32>
    }
    %h.at1 = pipe.transfer "h.at1" %h to @stage1 out_sharding = <@stage1, [{"micro"}]> : tensor<8xf32>
    %s = pipe.fragment "forward1" stage 1 : i64 over "micro" -> tensor<f32> {
      %s_1 = aten.sum %h.at1
        {pipe.stage = 1 : i64, spmd.signature = #spmd.sig<@stage1, ([{"micro"}]) -> ([], unreduced={"micro"})>}
        : (tensor<8xf32>) -> tensor<f32>
      pipe.yield %s_1 : tensor<f32>
    }
    %s.all_reduce = spmd.all_reduce [{"micro"}] %s out_sharding = <@stage1, []> : tensor<f32>
    func.return %s.all_reduce : tensor<f32>
  }
"""


def slots(*texts: str) -> str:
    """Return the slots of one stage, of words such as `run forward0 1`."""
    split = (text.split() for text in texts)
    return "[" + ", ".join(f'#pipe.slot<{action} "{label}" {part}>' for action, label, part in split) + "]"


def test_a_stage_holds_the_parts_in_flight_of_its_schedule():
    sender = slots("run forward0 0", "start h.at1 0", "run forward0 1", "start h.at1 1")
    begins = "start h.at1 0", "wait h.at1 0", "run forward1 0", "start h.at1 1", "wait h.at1 1", "run forward1 1"
    early = "start h.at1 0", "start h.at1 1", "wait h.at1 0", "run forward1 0", "wait h.at1 1", "run forward1 1"
    whole, part, number = 32, 16, 4
    for receiver, arrived in ((begins, part), (early, 2 * part)):
        module = parse(SCHEDULED.replace("SLOTS", f"{sender}, {slots(*receiver)}"), context())
        (func,) = (op for op in module.ops if isinstance(op, FuncOp))
        first, second = (op.mesh for op in module.ops if isinstance(op, MeshOp))
        assert peak_memory(func, first, stage=0).bytes == whole + part
        # After the last parts, one part is alive, with the sum and its addend.
        assert peak_memory(func, second, stage=1).bytes == max(arrived + number, part + 2 * number)
