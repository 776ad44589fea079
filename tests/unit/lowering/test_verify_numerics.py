"""Comparing the output of a pass with its input: equal results pass, planted faults are named."""

import pytest
import torch
from ir_files import context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import DiagnosticException, VerifyException

from shardwright.dialects.text import parse_module
from shardwright.lowering.interpreter.interpreter import find_function
from shardwright.lowering.interpreter.random_inputs import random_inputs
from shardwright.lowering.interpreter.verify_numerics import NumericsError, check_pass

_CONTEXT = context()

STEP = """
spmd.mesh @mesh = <["x"=4]>
func.func @step(
    %w: tensor<8x5xf32> {train.param = "fc.weight"}, %m: tensor<8x5xf32> {train.state = ["fc.weight", "exp_avg"]},
    %v: tensor<8x5xf32> {train.state = ["fc.weight", "exp_avg_sq"]},
    %x: tensor<6xi64> {train.batch = "x", train.range = [0, 8]},
    %step_count: tensor<f32> {train.step_count}, %lr: tensor<f32> {train.learning_rate}
  ) -> (tensor<f32> {train.loss}, tensor<8x5xf32> {train.updates = 0}, tensor<8x5xf32> {train.updates = 1},
        tensor<8x5xf32> {train.updates = 2}, tensor<f32> {train.updates = 4},
        tensor<8x5xf32> {train.grad = "fc.weight"}) {
  %h = aten.embedding %w, %x : (tensor<8x5xf32>, tensor<6xi64>) -> tensor<6x5xf32>
  %s = aten.mul.Tensor %h, %h : (tensor<6x5xf32>, tensor<6x5xf32>) -> tensor<6x5xf32>
  %loss = aten.sum %s : (tensor<6x5xf32>) -> tensor<f32>
  %g = aten.mul.Scalar %h {other = 2.0 : f64} : (tensor<6x5xf32>) -> tensor<6x5xf32>
  %d = aten.embedding_dense_backward %g, %x {num_weights = 8, padding_idx = -1, scale_grad_by_freq = false}
    : (tensor<6x5xf32>, tensor<6xi64>) -> tensor<8x5xf32>
  %n = train.increment %step_count : (tensor<f32>) -> tensor<f32>
  %w2, %m2, %v2 = train.adamw %w, %d, %m, %v, %n, %lr
    {beta1 = 0.9 : f64, beta2 = 0.99 : f64, eps = 1.0e-8 : f64, weight_decay = 0.1 : f64}
    : (tensor<8x5xf32>, tensor<8x5xf32>, tensor<8x5xf32>, tensor<8x5xf32>, tensor<f32>, tensor<f32>)
    -> (tensor<8x5xf32>, tensor<8x5xf32>, tensor<8x5xf32>)
  func.return %loss, %w2, %m2, %v2, %n, %d : tensor<f32>, tensor<8x5xf32>, tensor<8x5xf32>, tensor<8x5xf32>,
    tensor<f32>, tensor<8x5xf32>
}"""

BY_ROWS = '{spmd.signature = #spmd.sig<@mesh, ([{"x"}, {}], [{"x"}, {}]) -> ([{"x"}, {}])>}'
BY_BATCH = '([{"x"}, {}], [{"x"}]) -> ([{}, {}], unreduced={"x"})'


def module_of(text: str) -> ModuleOp:
    return parse_module(_CONTEXT, text)


def changed(*replacements: tuple[str, str]) -> ModuleOp:
    """Return the step as a pass might leave it."""
    text = STEP
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    return module_of(text)


def test_a_sharded_step_passes():
    after = changed(
        ("aten.mul.Tensor %h, %h :", f"aten.mul.Tensor %h, %h {BY_ROWS} :"),
        ("scale_grad_by_freq = false", f"scale_grad_by_freq = false, spmd.signature = #spmd.sig<@mesh, {BY_BATCH}>"),
    )
    after.verify()
    check_pass(module_of(STEP), after, "search-strategy")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (("aten.sum %s", "aten.mean %s"), r"after 'p' the loss of @step differs: \|difference\| = "),
        (("beta2 = 0.99", "beta2 = 0.98"), "the new value of %w of @step differs"),
        (("beta1 = 0.9 ", "beta1 = 0.8 "), "the new value of %w of @step differs"),
        (("embedding_dense_backward %g", "embedding_dense_backward %s"), "the new value of %w of @step differs"),
        (("%n, %d : tensor<f32>, t", "%n, %v : tensor<f32>, t"), "the gradient of 'fc.weight' of @step differs"),
    ],
)
def test_a_changed_computation_is_named(fault: tuple[str, str], message: str):
    with pytest.raises(NumericsError, match=message):
        check_pass(module_of(STEP), changed(fault), "p")


def test_a_signature_without_its_reduction_is_detected():
    wrong = f"scale_grad_by_freq = false, spmd.signature = #spmd.sig<@mesh, {BY_BATCH}>".replace(
        ', unreduced={"x"}', ""
    )
    with pytest.raises(DiagnosticException, match="the copy on rank 1 differs"):
        check_pass(module_of(STEP), changed(("scale_grad_by_freq = false", wrong)), "p")


REDUCED = """
spmd.mesh @mesh = <["x"=2, "y"=2]>
func.func @f(%a: tensor<6x4xf32>, %b: tensor<4x5xf32>) -> tensor<6x5xf32> {
  %h = aten.mm %a, %b {spmd.signature = #spmd.sig<@mesh,
      ([{}, {"x", "y"}], [{"x", "y"}, {}]) -> ([{}, {}], unreduced={"x", "y"})>}
    : (tensor<6x4xf32>, tensor<4x5xf32>) -> tensor<6x5xf32>
  %y = spmd.all_reduce [{"x", "y"}] %h out_sharding = <@mesh, [{}, {}]> : tensor<6x5xf32>
  %z = aten.relu %y : (tensor<6x5xf32>) -> tensor<6x5xf32>
  func.return %z : tensor<6x5xf32>
}"""


EARLY = """
  %z = aten.relu %h {spmd.signature = #spmd.sig<@mesh,
      ([{}, {}], unreduced={"x", "y"}) -> ([{}, {}], unreduced={"x", "y"})>}
    : (tensor<6x5xf32>) -> tensor<6x5xf32>
  %y = spmd.all_reduce [{"x", "y"}] %z out_sharding = <@mesh, [{}, {}]> : tensor<6x5xf32>
  func.return %y"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (REDUCED.replace('"x", "y"}', '"x" max, "y" max}').replace('[{"x" max, "y" max}] %h', '[{"x", "y"}] %h')
         .replace('[{}, {"x" max, "y" max}], [{"x" max, "y" max}, {}]', '[{}, {"x", "y"}], [{"x", "y"}, {}]'),
         r"after 'p' result 0 \(%z\) of @f differs"),
        (REDUCED[: REDUCED.index("  %y")] + EARLY + " : tensor<6x5xf32>\n}", r"result 0 \(%z\) of @f differs"),
        (REDUCED.replace('[{"x", "y"}] %h', '[{"x"}] %h'), "'spmd.all_reduce' %y: .* works on axes"),
    ],
    ids=["another reduction", "an op that is not linear on partial sums", "fewer axes"],
)  # fmt: skip
def test_a_wrong_collective_is_detected(text: str, message: str):
    with pytest.raises(DiagnosticException, match=message):
        check_pass(module_of(REDUCED), module_of(text), "p")


def test_functions_and_their_types_must_stay():
    with pytest.raises(NumericsError, match="'p' left no function @f to compare with"):
        check_pass(module_of(REDUCED), module_of(REDUCED.replace("@f", "@g")), "p")
    with pytest.raises(NumericsError, match="'p' changed the type of @f: it had no argument 0 : tensor<6x3xf32>"):
        check_pass(module_of(REDUCED), module_of(REDUCED.replace("6x4x", "6x3x").replace("4x5x", "3x5x")), "p")


TWICE = """
func.func @f(%x: tensor<4xf32> {train.batch = "0"}, %y: tensor<4xf32> {train.batch = "0"})
    -> (tensor<f32> {train.loss}, tensor<f32> {train.loss}) {
  %a = aten.sum %x : (tensor<4xf32>) -> tensor<f32>
  %b = aten.sum %y : (tensor<4xf32>) -> tensor<f32>
  func.return %a, %b : tensor<f32>, tensor<f32>
}"""
ONCE = """
func.func @f(%x: tensor<4xf32> {train.batch = "0"}) -> (tensor<f32> {train.loss}) {
  %a = aten.sum %x : (tensor<4xf32>) -> tensor<f32>
  func.return %a : tensor<f32>
}"""


def test_several_results_may_have_the_same_role():
    check_pass(module_of(ONCE), module_of(TWICE), "p")
    with pytest.raises(NumericsError, match="after 'p' the loss of @f differs"):
        check_pass(module_of(ONCE), module_of(TWICE.replace("aten.sum %y", "aten.amax %y")), "p")
    with pytest.raises(NumericsError, match="'p' changed the type of @f: it lacks the loss"):
        check_pass(module_of(ONCE), module_of(ONCE.replace("train.loss", 'train.grad = "w"')), "p")


def test_inputs_follow_the_roles_of_the_arguments():
    first, second = (random_inputs(find_function(module_of(STEP)), seed) for seed in (0, 1))
    again = random_inputs(find_function(module_of(STEP)), 0)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], second[0])
    weight, _, second_moment, index, count, lr = first
    assert weight.dtype == torch.float32
    assert (second_moment > 0).all()
    assert index.dtype == torch.int64
    assert 0 <= index.min() <= index.max() < 8
    assert (count.item(), lr.item()) == (0, pytest.approx(1e-2))


def test_constants_keep_their_values():
    text = """
func.func @f(%c: tensor<3xi64> {train.constant = "c", train.value = dense<[1, 2, 4]> : tensor<3xi64>},
             %d: tensor<2xf32> {train.constant = "d", train.value = dense<0.5> : tensor<2xf32>}) {
  func.return
}"""
    numbers, halves = random_inputs(find_function(module_of(text)))
    assert (numbers.tolist(), halves.tolist()) == ([1, 2, 4], [0.5, 0.5])


def test_a_negative_end_of_a_range_marks_ignored_labels():
    text = 'func.func @f(%y: tensor<100xi64> {train.batch = "y", train.range = [-100, 7]}) {\n func.return\n}'
    [labels] = random_inputs(find_function(module_of(text)))
    assert set(labels.tolist()) == {-100, *range(7)}


def test_a_range_must_rise():
    text = 'func.func @f(%x: tensor<3xi64> {train.batch = "x", train.range = [2, 2]}) {\n func.return\n}'
    with pytest.raises(VerifyException, match=r"%x: `train\.range` must be two rising integers, found"):
        random_inputs(find_function(module_of(text)))
