"""Ops become the calls that compute them."""

import pytest
from ir_files import context, parse
from xdsl.utils.exceptions import VerifyException

from shardwright.dialects.compute import ComputeOp
from shardwright.ir.mesh import Mesh
from shardwright.lowering.calls.calls import Call, Dtype, Operand, call_of

_X, _Y, _Z = map(Operand, range(3))
_IN_ORDER = tuple(Operand(i, ordered=True) for i in range(2))
_MESH = Mesh.of(x=4)


def the_call(line: str, arguments: str, results: str, rank: int = 0) -> Call:
    """Return the call, on one rank of four, of the op in `line`, whose operands are %a, %b, ... in order."""
    types = arguments.split(", ")
    block = ", ".join(f"%{name}: {t}" for name, t in zip("abcdefg", types, strict=False) if t)
    text = f"""
spmd.mesh @mesh = <["x"=4]>
func.func @f({block}) {{
  {line} : ({arguments}) -> ({results})
  func.return
}}"""
    module = parse(text, context())
    return next(call_of(op, _MESH, rank) for op in module.walk() if isinstance(op, ComputeOp))


F, G = "tensor<6x4xf32>", "tensor<4x5xf32>"


@pytest.mark.parametrize(
    ("line", "types", "result", "expected"),
    [
        ("%y = aten.mm %a, %b", f"{F}, {G}", "tensor<6x5xf32>", Call("aten.mm.default", (_X, _Y))),
        ("%y = aten.add.Tensor %a, %b", f"{F}, {F}", F, Call("aten.add.Tensor", (_X, _Y))),
        ("%y = aten.mul.Tensor %a {other = 2.0 : f64}", F, F, Call("aten.mul.Tensor", (_X, 2.0))),
        (
            "%y = aten.add.Tensor %a, %b {alpha = 2.0 : f64}",
            f"{F}, {F}",
            F,
            Call("aten.add.Tensor", (_X, _Y), (("alpha", 2.0),)),
        ),
        ("%y = aten.pow.Scalar %a {self = 2.0 : f64}", F, F, Call("aten.pow.Scalar", (2.0, _X))),
        (
            "%y = aten.sum.dim_IntList %a {keepdim = true}",
            F,
            "tensor<1x1xf32>",
            Call("aten.sum.dim_IntList", (_X, None, True)),
        ),
        (
            "%y = aten._to_copy %a {dtype = bf16}",
            F,
            "tensor<6x4xbf16>",
            Call("aten._to_copy.default", (_X,), (("dtype", Dtype("bfloat16")),)),
        ),
        (
            '%y = aten.opaque "aten::clone" %a {memory_format = "contiguous_format"}',
            F,
            F,
            Call("aten.clone.default", (_IN_ORDER[0],)),
        ),
        (
            "%y = aten.cat %a, %b, %a {dim = 1}",
            f"{F}, {F}, {F}",
            "tensor<6x12xf32>",
            Call("aten.cat.default", ((_X, _Y, _Z), 1)),
        ),
        (
            "%y, %m, %r = aten.native_layer_norm %a {normalized_shape = [4], eps = 1.0e-5 : f64,"
            ' absent = ["weight", "bias"]}',
            F,
            f"{F}, tensor<6x1xf32>, tensor<6x1xf32>",
            Call("aten.native_layer_norm.default", (_X, (4,), None, None, 1e-5)),
        ),
        (
            '%y = aten.opaque "aten::index.Tensor" %a, %b',
            "tensor<6x4xf32>, tensor<3xi64>",
            "tensor<3x4xf32>",
            Call("aten.index.Tensor", (_IN_ORDER[0], (_IN_ORDER[1],))),
        ),
        ('%y = aten.opaque "aten::relu" %a', F, F, Call("aten.relu.default", (_IN_ORDER[0],))),
        ("%y = train.increment %a", "tensor<f32>", "tensor<f32>", Call("increment", (_X,))),
    ],
)
def test_arguments_are_in_the_order_of_the_schema(line: str, types: str, result: str, expected: Call):
    assert the_call(line, types, result) == expected


def test_views_and_squeezes_are_reshapes_to_the_local_size():
    rows = '[{"x"}], offsets={0: [0, 5, 15, 20, 30]}'
    line = f'%y = aten.view %a {{size = [30], spmd.signature = #spmd.sig<@mesh, ([{{"x"}}, {{}}]) -> ({rows})>}}'
    sizes = [the_call(line, "tensor<6x5xf32>", "tensor<30xf32>", rank).args for rank in range(4)]
    assert sizes == [(_X, (5,)), (_X, (10,)), (_X, (5,)), (_X, (10,))]
    assert the_call("%y = aten.squeeze.dim %a {dim = 1}", "tensor<6x1xf32>", "tensor<6xf32>").args == (
        _X,
        (6,),
    )


def test_factories_make_the_part_of_the_rank():
    line = (
        "%y = aten.full {size = [6], fill_value = 1.0 : f64, dtype = f32,"
        ' spmd.signature = #spmd.sig<@mesh, () -> ([{"x"}], offsets={0: [0, 3, 3, 5, 6]})>}'
    )
    calls = [the_call(line, "", "tensor<6xf32>", rank) for rank in range(4)]
    assert [call.args for call in calls] == [((3,), 1.0), ((0,), 1.0), ((2,), 1.0), ((1,), 1.0)]
    assert calls[0].kwargs == (("dtype", Dtype("float32")),)


def test_draws_know_where_their_part_is():
    rows = '[{"x"}, {}], offsets={0: [0, 3, 3, 5, 6]}'
    line = (
        "%y, %m = aten.random_dropout %a, %b {p = 0.1 : f64, stream = 2 : i64,"
        f" spmd.signature = #spmd.sig<@mesh, ({rows}, []) -> ({rows}, {rows})>}}"
    )
    calls = [the_call(line, f"{F}, tensor<i64>", f"{F}, tensor<6x4xi1>", rank) for rank in range(4)]
    assert calls[0].args == (_X, _Y, 0.1)
    assert [dict(call.kwargs)["start"] for call in calls] == [(0, 0), (3, 0), (3, 0), (5, 0)]
    assert {dict(call.kwargs)["whole"] for call in calls} == {(6, 4)}
    line = "%y = aten.random_normal %a {mean = 0.0 : f64, std = 1.0 : f64, stream = 0 : i64, dtype = f32, size = [6, 4]"
    found = the_call(f'{line}, absent = ["like"]}}', "tensor<i64>", F)
    assert found.args == (None, _X, 0.0, 1.0)
    assert [name for name, _ in found.kwargs] == ["stream", "dtype", "size", "start", "whole"]


def test_attention_takes_all_its_arguments():
    q, row = "tensor<2x4x5x3xf32>", "tensor<2x4x5xf32>"
    line = '%y, %l = aten.attention %a, %b, %c {absent = ["attn_mask"], is_causal = true}'
    found = the_call(line, f"{q}, {q}, {q}", f"{q}, {row}")
    assert found == Call("attention", (_X, _Y, _Z, None, True, None))
    line = '%x, %y, %z = aten.attention_backward %a, %b, %c, %d, %e, %f {absent = ["attn_mask"], scale = 0.5 : f64}'
    found = the_call(line, f"{q}, {q}, {q}, {q}, {q}, {row}", f"{q}, {q}, {q}")
    assert found == Call("attention_backward", (*map(Operand, range(6)), None, False, 0.5))


def test_updates_take_states_by_position_and_settings_by_name():
    s = "tensor<f32>"
    line = (
        "%p, %m, %v = train.adamw %a, %b, %c, %d, %e, %f"
        " {beta1 = 0.9 : f64, beta2 = 0.99 : f64, eps = 1.0e-8 : f64, weight_decay = 0.1 : f64}"
    )
    found = the_call(line, f"{F}, {F}, {F}, {F}, {s}, {s}", f"{F}, {F}, {F}")
    assert found.target == "adamw_"
    assert found.args == tuple(map(Operand, range(6)))
    assert found.kwargs == (("betas", (0.9, 0.99)), ("eps", 1e-8), ("weight_decay", 0.1))
    line = '%p = train.sgd %a, %b, %c, %d {absent = ["momentum_buffer"], weight_decay = 0.1 : f64}'
    found = the_call(line, f"{F}, {F}, {s}, {s}", F)
    assert found == Call("sgd_", (_X, _Y, None, _Z, Operand(3)), (("weight_decay", 0.1),))


@pytest.mark.parametrize(
    ("line", "types", "result", "message"),
    [
        ('%y = aten.opaque "aten::softplus" %a {gamma = 1}', F, F, "an argument 'gamma' that aten.softplus.default"),
        ('%y = aten.opaque "aten::select.int" %a {index = 1}', F, "tensor<4xf32>", "lacks the argument 'dim'"),
        ('%y = aten.opaque "nobody::knows.it" %a', F, F, "torch has no op 'nobody.knows.it'"),
    ],
)
def test_errors_say_which_argument(line: str, types: str, result: str, message: str):
    with pytest.raises(VerifyException, match=message):
        the_call(line, types, result)
