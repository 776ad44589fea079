"""The interpreter: small functions on simulated ranks."""

import pytest
import torch
from ir_files import context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import VerifyException

from shardwright.dialects.text import parse_module
from shardwright.ir.mesh import Mesh
from shardwright.ir.sharding import parse_sharding
from shardwright.lowering.fused.update_ops import adamw, sgd
from shardwright.lowering.interpreter.errors import InterpreterError
from shardwright.lowering.interpreter.interpreter import interpret
from shardwright.lowering.interpreter.local_values import Spread, assemble, split

_CONTEXT = context()
_LINE, _SQUARE = '<["x"=4]>', '<["x"=2, "y"=2]>'


def module_of(text: str, mesh: str = _LINE) -> ModuleOp:
    """Parse functions and a mesh without verifying them, so that faults can be planted."""
    return parse_module(_CONTEXT, f"spmd.mesh @mesh = {mesh}\n{text}")


def sharded(sharding: str) -> str:
    return f"{{spmd.sharding = #spmd.sharding<@mesh, {sharding}>}}"


def chain(steps: list[tuple[str, str]], source: str, mesh: str, shape: str = "6x5") -> ModuleOp:
    """Return a function that applies `steps` to its argument: pairs of a collective with axes, and a sharding."""
    tensor = f"tensor<{shape}xf64>"
    lines = [f"func.func @f(%v0: {tensor} {sharded(source)}) -> {tensor} {{"]
    for i, (collective, target) in enumerate(steps):
        out = f"out_sharding = <@mesh, {target}>"
        lines.append(f"%v{i + 1} = spmd.{collective} %v{i} {out} : {tensor}")
    return module_of("\n".join([*lines, f"func.return %v{len(steps)} : {tensor}", "}"]), mesh)


COLLECTIVES = [
    ('[{"x"}, {}]', "all_gather [{\"x\"}, {}]", "[{}, {}]", _LINE),
    ('[{"x"}, {}], offsets={0: [0, 3, 3, 5, 6]}', "all_gather [{\"x\"}, {}]", "[{}, {}]", _LINE),
    ('[{"x", "y"}, {}]', "all_gather [{\"y\"}, {}]", '[{"x"}, {}]', _SQUARE),
    ('[{"x", "y"}, {}]', "all_gather [{\"x\", \"y\"}, {}]", "[{}, {}]", _SQUARE),
    ('[{}, {}], unreduced={"x"}', "all_reduce [{\"x\"}]", "[{}, {}]", _LINE),
    ('[{}, {}], unreduced={"x" max}', "all_reduce [{\"x\"}]", "[{}, {}]", _LINE),
    ('[{}, {}], unreduced={"x" min}', "all_reduce [{\"x\"}]", "[{}, {}]", _LINE),
    ('[{"y"}, {}], unreduced={"x"}', "all_reduce [{\"x\"}]", '[{"y"}, {}]', _SQUARE),
    ('[{}, {}], unreduced={"x", "y"}', "all_reduce [{\"x\", \"y\"}]", "[{}, {}]", _SQUARE),
    ('[{}, {}], unreduced={"x"}', "reduce_scatter [{\"x\"}, {}]", '[{"x"}, {}]', _LINE),
    ('[{"x"}, {}], unreduced={"y"}', "reduce_scatter [{\"y\"}, {}]", '[{"x", "y"}, {}]', _SQUARE),
    ('[{}, {}], unreduced={"x" max}', "reduce_scatter [{\"x\"}, {}]", '[{"x"}, {}]', _LINE),
    ('[{"x"}, {}]', "all_to_all [{}, {\"x\"}]", '[{}, {"x"}]', _LINE),
    ('[{"x", "y"}, {}]', "all_to_all [{}, {\"y\"}]", '[{"x"}, {"y"}]', _SQUARE),
    ("[{}, {}]", "slice [{}, {\"x\"}]", '[{}, {"x"}]', _LINE),
    ('[{"x"}, {}]', "slice [{\"y\"}, {}]", '[{"x", "y"}, {}]', _SQUARE),
    ("[{}, {}]", "partial [{\"x\"}]", '[{}, {}], unreduced={"x"}', _LINE),
]  # fmt: skip


@pytest.mark.parametrize(("source", "collective", "target", "mesh"), COLLECTIVES)
def test_a_collective_is_the_identity_on_the_global_value(source: str, collective: str, target: str, mesh: str):
    module = chain([(collective, target)], source, mesh)
    module.verify()
    value = torch.randn(6, 5, dtype=torch.float64)
    [found] = interpret(module, [value], check_replicas=True, explicit=True)
    torch.testing.assert_close(found, value)


def test_a_start_and_its_wait_are_a_bucket_of_collectives():
    module = module_of("""
      func.func @f(%a: tensor<6x5xf64>, %b: tensor<3xf64>) -> (tensor<6x5xf64>, tensor<3xf64>) {
        %t = spmd.start "all_reduce" %a, %b
          out_shardings = [#spmd.sharding<@mesh, [{}, {}]>, #spmd.sharding<@mesh, [{}]>]
          : tensor<6x5xf64>, tensor<3xf64>
        %c, %d = spmd.wait %t : tensor<6x5xf64>, tensor<3xf64>
        func.return %c, %d : tensor<6x5xf64>, tensor<3xf64>
      }""".replace("%a: tensor<6x5xf64>", "%a: tensor<6x5xf64> " + sharded('[{}, {}], unreduced={"x"}'))
      .replace("%b: tensor<3xf64>", "%b: tensor<3xf64> " + sharded('[{}], unreduced={"x"}')))  # fmt: skip
    values = [torch.randn(6, 5, dtype=torch.float64), torch.randn(3, dtype=torch.float64)]
    for found, value in zip(interpret(module, values, explicit=True), values, strict=True):
        torch.testing.assert_close(found, value)


MATMUL = """
func.func @f(%a: tensor<6x4xf64>, %b: tensor<4x5xf64>) -> tensor<6x5xf64> {
  %h = aten.mm %a, %b {spmd.signature = #spmd.sig<@mesh, SIGNATURE>}
    : (tensor<6x4xf64>, tensor<4x5xf64>) -> tensor<6x5xf64>
  %y = aten.relu %h : (tensor<6x5xf64>) -> tensor<6x5xf64>
  func.return %y : tensor<6x5xf64>
}"""


@pytest.mark.parametrize(
    ("signature", "mesh"),
    [
        ("([{}, {}], [{}, {}]) -> ([{}, {}])", _LINE),
        ('([{"x"}, {}], [{}, {}]) -> ([{"x"}, {}])', _LINE),
        ('([{}, {"x"}], [{"x"}, {}]) -> ([{}, {}], unreduced={"x"})', _LINE),
        ('([{"x"}, {"y"}], [{"y"}, {}]) -> ([{"x"}, {}], unreduced={"y"})', _SQUARE),
        ('([{}, {}], unreduced={"x"}, [{}, {}]) -> ([{}, {}], unreduced={"x"})', _LINE),
    ],
)
def test_operands_are_resharded_to_the_signature(signature: str, mesh: str):
    module = module_of(MATMUL.replace("SIGNATURE", signature), mesh)
    module.verify()
    a, b = torch.randn(6, 4, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    [found] = interpret(module, [a, b], check_replicas=True)
    torch.testing.assert_close(found, (a @ b).relu())


def test_parts_of_a_temporal_axis_run_like_devices():
    signature = '([{}, {"x"}], [{"x"}, {}]) -> ([{}, {}], unreduced={"x"})'
    module = module_of(MATMUL.replace("SIGNATURE", signature), '<["x"=2 temporal]>')
    a, b = torch.randn(6, 4, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    torch.testing.assert_close(interpret(module, [a, b])[0], (a @ b).relu())


def test_explicit_requires_an_op_for_each_change_of_sharding():
    signature = '([{}, {"x"}], [{"x"}, {}]) -> ([{}, {}], unreduced={"x"})'
    module = module_of(MATMUL.replace("SIGNATURE", signature))
    inputs = [torch.ones(6, 4), torch.ones(4, 5)]
    with pytest.raises(InterpreterError, match=r"'aten.mm' %h: %a is spread as \[\{\}, \{\}\], expected"):
        interpret(module, inputs, explicit=True)


def test_a_reduction_that_is_not_declared_shows_as_copies_that_differ():
    signature = '([{}, {"x"}], [{"x"}, {}]) -> ([{}, {}])'
    module = module_of(MATMUL.replace("SIGNATURE", signature).replace("return %y", "return %h"))
    inputs = [torch.randn(6, 4), torch.randn(4, 5)]
    with pytest.raises(InterpreterError, match=r"'func\.return': %h: the copy on rank 1 differs"):
        interpret(module, inputs, check_replicas=True)


def test_a_freed_value_is_gone():
    module = module_of("""
func.func @f(%a: tensor<4xf64>) -> tensor<4xf64> {
  %b = aten.relu %a : (tensor<4xf64>) -> tensor<4xf64>
  spmd.free %b : tensor<4xf64>
  %c = aten.neg %b : (tensor<4xf64>) -> tensor<4xf64>
  func.return %c : tensor<4xf64>
}""")
    with pytest.raises(InterpreterError, match=r"'aten\.neg' %c: %b is used after it was freed"):
        interpret(module, [torch.ones(4)])


@pytest.mark.parametrize(
    ("right", "result", "message"),
    [
        ("4x5xf64", "6x7xf64", r"%h: rank 0 holds a part of shape \[6, 5\]"),
        ("4x5xf64", "6x5xf32", r"%h is of float32, torch gives torch\.float64"),
        ("3x5xf64", "6x5xf64", r"of operands \[6, 4\], \[3, 5\], torch says:"),
    ],
)
def test_types_that_differ_from_torch_are_errors(right: str, result: str, message: str):
    text = f"""
func.func @f(%a: tensor<6x4xf64>, %b: tensor<{right}>) -> tensor<{result}> {{
  %h = aten.mm %a, %b : (tensor<6x4xf64>, tensor<{right}>) -> tensor<{result}>
  func.return %h : tensor<{result}>
}}"""
    with pytest.raises(InterpreterError, match=message):
        interpret(module_of(text), [torch.ones(6, 4), torch.ones(int(right[0]), 5)])


def test_functions_are_found_by_name():
    module = module_of(MATMUL.replace("SIGNATURE", "([{}, {}], [{}, {}]) -> ([{}, {}])"))
    with pytest.raises(VerifyException, match="expected @g in the module; its functions with a body: @f"):
        interpret(module, [], function="g")
    with pytest.raises(InterpreterError, match="@f takes 2 arguments, found 1 inputs"):
        interpret(module, [torch.ones(6, 4)])
    with pytest.raises(InterpreterError, match=r"%b is of shape \[4, 5\], found an input of \[5, 4\]"):
        interpret(module, [torch.ones(6, 4), torch.ones(5, 4)])


def test_a_part_that_does_not_fit_its_sharding_is_an_error():
    mesh = Mesh.of(x=4)
    spread = split(torch.arange(6.0), parse_sharding('[{"x"}]'), mesh)
    assert [part.tolist() for part in spread.parts if part is not None] == [[0], [1, 2], [3], [4, 5]]
    wrong = Spread(spread.shape, spread.sharding, spread.parts[::-1], mesh)
    with pytest.raises(ValueError, match=r"rank 0 holds a part of shape \[2\], expected \[1\] of \[6\]"):
        assemble(wrong)


def test_partial_sums_have_both_signs():
    spread = split(torch.ones(100), parse_sharding('[{}], unreduced={"x"}'), Mesh.of(x=2))
    assert all(part is not None and (part < 0).any() for part in spread.parts)
    torch.testing.assert_close(assemble(spread), torch.ones(100))


def parameter(value: torch.Tensor, gradients: list[torch.Tensor], optimizer: type, **settings: object) -> torch.Tensor:
    """Update a parameter with torch's optimizer and return it."""
    one = torch.nn.Parameter(value.clone())
    made = optimizer([one], lr=0.1, **settings)
    for gradient in gradients:
        one.grad = gradient
        made.step()
    return one.detach()


def test_adamw_equals_torch():
    value, gradients = torch.randn(5), [torch.randn(5) for _ in range(3)]
    expected = parameter(value, gradients, torch.optim.AdamW, betas=(0.8, 0.95), weight_decay=0.1)
    found, first, second = value, torch.zeros(5), torch.zeros(5)
    for step, gradient in enumerate(gradients, 1):
        count, lr = torch.tensor(float(step)), torch.tensor(0.1)
        found, first, second = adamw(found, gradient, first, second, count, lr, betas=(0.8, 0.95), weight_decay=0.1)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_equals_torch(momentum: float, nesterov: bool):
    settings = {"momentum": momentum, "nesterov": nesterov and momentum > 0, "weight_decay": 0.1}
    value, gradients = torch.randn(5), [torch.randn(5) for _ in range(3)]
    expected = parameter(value, gradients, torch.optim.SGD, **settings)
    found, buffer = value, torch.zeros(5) if momentum else None
    for step, gradient in enumerate(gradients, 1):
        count, lr = torch.tensor(float(step)), torch.tensor(0.1)
        found, *rest = sgd(found, gradient, buffer, count, lr, **settings)
        buffer = rest[0] if rest else None
    torch.testing.assert_close(found, expected)


PARTS = """
  func.func @f(%x: tensor<6x5xf64> SHARDED) -> tensor<5xf64> {
    %part = spmd.slice [{"t"}, {}] %x out_sharding = <@mesh, [{"x", "t"}, {}]>AT0 : tensor<6x5xf64>
    %a = aten.sum.dim_IntList %part {dim = [0 : i64], AT0,
      spmd.signature = #spmd.sig<@mesh, ([{"x", "t"}, {}]) -> ([{}], unreduced={"x", "t"})>
    } : (tensor<6x5xf64>) -> tensor<5xf64>
    %rest = spmd.slice [{"t"}, {}] %x out_sharding = <@mesh, [{"x", "t"}, {}]> {AT1} : tensor<6x5xf64>
    %b = aten.sum.dim_IntList %rest {dim = [0 : i64], AT1,
      spmd.signature = #spmd.sig<@mesh, ([{"x", "t"}, {}]) -> ([{}], unreduced={"x", "t"})>
    } : (tensor<6x5xf64>) -> tensor<5xf64>
    %c = spmd.accumulate %a, %b out_sharding = <@mesh, [{}], unreduced={"x"}> : tensor<5xf64>
    %d = spmd.all_reduce [{"x"}] %c out_sharding = <@mesh, [{}]> : tensor<5xf64>
    func.return %d : tensor<5xf64>
  }""".replace(">AT0", "> {AT0}").replace("SHARDED", sharded('[{"x"}, {}]'))
_TIME = '<["x"=2, "t"=2 temporal]>'


def at(text: str, first: int = 0, second: int = 1) -> ModuleOp:
    parts = {"AT0": first, "AT1": second}
    for mark, part in parts.items():
        text = text.replace(mark, f'spmd.at = {{"t" = {part} : i64}}')
    return module_of(text, _TIME)


def test_an_unrolled_axis_is_accumulated_part_by_part():
    module = at(PARTS)
    module.verify()
    value = torch.randn(6, 5, dtype=torch.float64)
    torch.testing.assert_close(interpret(module, [value], explicit=True)[0], value.sum(0))


def test_the_same_part_twice_is_not_the_whole():
    value = torch.randn(6, 5, dtype=torch.float64)
    [found] = interpret(at(PARTS, 0, 0), [value], explicit=True)
    assert not torch.allclose(found, value.sum(0))


def test_a_value_of_one_part_is_not_used_in_another():
    module = at(PARTS.replace("%rest {dim = [0 : i64], AT1", "%rest {dim = [0 : i64], AT0"))
    with pytest.raises(InterpreterError, match=r"'aten.sum.dim_IntList' %b: has an operand that is computed only"):
        interpret(module, [torch.randn(6, 5, dtype=torch.float64)])


STAGES = """
  spmd.mesh @other = <["y"=2]> on [2, 3]
  func.func @f(%x: tensor<4x5xf64> {spmd.sharding = #spmd.sharding<@mesh, [{"x"}, {}]>}) -> tensor<4x5xf64> {
    %y = pipe.transfer "y" %x to @other out_sharding = <@other, [{}, {"y"}]>TASKS : tensor<4x5xf64>
    func.return %y : tensor<4x5xf64>
  }"""


def transfer(*tasks: str) -> ModuleOp:
    listed = ", ".join(f"#pipe.task<part 0, {task}>" for task in tasks)
    return module_of(STAGES.replace("TASKS", f" tasks = [{listed}]" if tasks else ""), '<["x"=2]>')


@pytest.mark.parametrize("tasks", [(), ("[0:2, 0:5], 0 to [2, 3]", "[2:4, 0:2], 1 to [2]", "[2:4, 2:5], 1 to [3]")])
def test_a_transfer_brings_a_value_to_another_mesh(tasks: tuple[str, ...]):
    module = transfer(*tasks)
    module.verify()
    value = torch.randn(4, 5, dtype=torch.float64)
    torch.testing.assert_close(interpret(module, [value], explicit=True)[0], value)


def test_a_transfer_that_misses_something_is_an_error():
    module = transfer("[0:2, 0:5], 0 to [2, 3]", "[2:4, 0:2], 1 to [2]")
    with pytest.raises(InterpreterError, match="no task sends rank 3 6 of the 12 elements of its part"):
        interpret(module, [torch.randn(4, 5, dtype=torch.float64)])


def test_a_rank_sends_only_what_it_holds():
    module = transfer("[0:4, 0:5], 0 to [2, 3]")
    with pytest.raises(InterpreterError, match="rank 0 does not hold the slice that it has to send"):
        interpret(module, [torch.randn(4, 5, dtype=torch.float64)])
