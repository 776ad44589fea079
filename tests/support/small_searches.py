"""Small random steps on invented clusters, and their strategies by `search-strategy`."""

from typing import cast

from hypothesis import strategies as st
from ir_files import context, parse
from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, IntegerAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute

from shardwright.dialects.step import SEARCH
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.step.step_view import step_functions

HEAD = """
#cpu = #spmd.device<"cpu", flops = {{float32 = {rate}}}, bandwidth = 1.0e9, memory = 1.0e9, launch = 1.0e-6>
#node = #spmd.link<"node", alpha = 1.0e-5, beta = 1.0e-8>
#gpu = #spmd.link<"gpu", alpha = {alpha}, beta = {beta}>
spmd.mesh @mesh = <[{axes}]>
spmd.cluster @test on @mesh devices [#cpu] placement [{placement}] links [{links}]
"""
LAYERS = """
func.func @step(
  %w: tensor<64x64xf32> {train.param = "w"}, %v: tensor<64x64xf32> {train.param = "v"},
  %x: tensor<256x64xf32> {train.batch = "x"}, %t: tensor<256x64xf32> {train.batch = "t"},
  %count: tensor<f32> {train.step_count}, %lr: tensor<f32> {train.learning_rate}
) -> (tensor<64x64xf32> {train.updates = 0 : i64}, tensor<64x64xf32> {train.updates = 1 : i64}) {
  %y = aten.mm %x, %w : (tensor<256x64xf32>, tensor<64x64xf32>) -> tensor<256x64xf32>
  %z = aten.mm %y, %v : (tensor<256x64xf32>, tensor<64x64xf32>) -> tensor<256x64xf32>
  %dz = aten.sub.Tensor %z, %t : (tensor<256x64xf32>, tensor<256x64xf32>) -> tensor<256x64xf32>
  %yt = aten.t %y {train.backward} : (tensor<256x64xf32>) -> tensor<64x256xf32>
  %dv = aten.mm %yt, %dz {train.backward} : (tensor<64x256xf32>, tensor<256x64xf32>) -> tensor<64x64xf32>
  %vt = aten.t %v {train.backward} : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %dy = aten.mm %dz, %vt {train.backward} : (tensor<256x64xf32>, tensor<64x64xf32>) -> tensor<256x64xf32>
  %xt = aten.t %x {train.backward} : (tensor<256x64xf32>) -> tensor<64x256xf32>
  %dw = aten.mm %xt, %dy {train.backward} : (tensor<64x256xf32>, tensor<256x64xf32>) -> tensor<64x64xf32>
  %w.new = train.sgd %w, %dw, %count, %lr {absent = ["momentum_buffer"]}
    : (tensor<64x64xf32>, tensor<64x64xf32>, tensor<f32>, tensor<f32>) -> tensor<64x64xf32>
  %v.new = train.sgd %v, %dv, %count, %lr {absent = ["momentum_buffer"]}
    : (tensor<64x64xf32>, tensor<64x64xf32>, tensor<f32>, tensor<f32>) -> tensor<64x64xf32>
  func.return %w.new, %v.new : tensor<64x64xf32>, tensor<64x64xf32>
}
"""
"""Two layers of one matrix product each, with their backward products and updates."""

MATRIX = "tensor<4x4xf32>"
_BINARY = ("mm", "add.Tensor", "mul.Tensor")
_UNARY = ("relu", "t", "neg")


def head(rate: float = 1e6, alpha: float = 1e-6, beta: float = 1e-9, nodes: int = 1) -> str:
    """Return the IR of a mesh of `nodes` times two devices, with a cluster."""
    many = nodes > 1
    return HEAD.format(
        rate=f"{rate:.1f}",
        alpha=f"{alpha:.12f}",
        beta=f"{beta:.12f}",
        axes=f'"node"={nodes}, "gpu"=2' if many else '"gpu"=2',
        placement=", ".join("0" for _ in range(2 * nodes)),
        links="#node, #gpu" if many else "#gpu",
    )


@st.composite
def steps(draw: st.DrawFn, most: int = 3) -> str:
    """Draw a step of a few ops on square matrices that ends in the update of its parameter."""
    names, lines = ["w", "x"], list[str]()
    for index in range(draw(st.integers(1, most))):
        op = draw(st.sampled_from((*_BINARY, *_UNARY)))
        args = [draw(st.sampled_from(names)) for _ in range(2 if op in _BINARY else 1)]
        backward = draw(st.sampled_from(("", "{train.backward} ")))
        types = ", ".join([MATRIX] * len(args))
        operands = ", ".join(f"%{arg}" for arg in args)
        lines.append(f"  %v{index} = aten.{op} {operands} {backward}: ({types}) -> {MATRIX}")
        names.append(f"v{index}")
    return f"""
func.func @step(
  %w: {MATRIX} {{train.param = "w"}}, %x: {MATRIX} {{train.batch = "x"}},
  %count: tensor<f32> {{train.step_count}}, %lr: tensor<f32> {{train.learning_rate}}
) -> ({MATRIX} {{train.updates = 0 : i64}}, {MATRIX} {{train.loss}}) {{
{chr(10).join(lines)}
  %w.new = train.sgd %w, %{names[-1]}, %count, %lr {{absent = ["momentum_buffer"]}}
    : ({MATRIX}, {MATRIX}, tensor<f32>, tensor<f32>) -> {MATRIX}
  func.return %w.new, %{names[-1]} : {MATRIX}, {MATRIX}
}}"""


def searched(text: str, options: str = "") -> ModuleOp:
    """Return the module in `text` after search-strategy with `options`."""
    ctx = context()
    module = parse(text, ctx)
    run_pipeline(ctx, module, f"search-strategy{{{options}}}" if options else "search-strategy")
    return module


def report(module: ModuleOp) -> dict[str, float | str]:
    """Return the entries of the search report in a module."""
    (func,) = step_functions(module)
    entries = cast("DictionaryAttr", func.attributes[SEARCH]).data
    return {name: _plain(value) for name, value in entries.items()}


def _plain(value: Attribute) -> float | str:
    assert isinstance(value, FloatAttr | StringAttr | IntegerAttr)
    return value.value.data if not isinstance(value, StringAttr) else value.data
