"""Only pure functions of tensors are run: torch's functional ops, and ops that a user vouches for."""

from __future__ import annotations

import pytest
import torch
from xdsl.utils.exceptions import VerifyException

import shardwright as sw
from shardwright.ir.ops.registered import unregister_rule
from shardwright.ir.ops.table import op_table
from shardwright.lowering.calls.allowed_ops import vouch_for
from shardwright.lowering.calls.calls import resolve

REFUSED = {
    "aten.from_file.default": "takes text",
    "aten.from_file.out": "writes to its arguments",
    "aten.add.out": "writes to its arguments",
    "aten.add_.Tensor": "writes to its arguments",
    "aten.set_.source_Tensor": "",
    "aten.set.source_Tensor": "",
    "aten.resize.default": "not one of the functional torch ops",
    "aten._copy_from.default": "not one of the functional torch ops",
    "aten._sparse_coo_tensor_unsafe.default": "not one of the functional torch ops",
    "aten._print.default": "returns a value that is not a tensor",
    "aten.item.default": "returns a value that is not a tensor",
    "aten.record_stream.default": "",
    "aten.save.default": "TorchScript",
    "aten.randn.generator": "takes an argument that is neither tensor nor plain value",
    "debugprims.load_tensor.default": "not one of the functional torch ops",
    "_c10d_functional.all_reduce.default": "communicates",
    "symm_mem.one_shot_all_reduce.default": "communicates",
    "quantized.add.default": "",
    "aten.__class__.default": "",
    "aten.mm": "not an overload",
    "load_library": "not an overload",
    "ops.load_library.default": "",
    "__class__.__init__.__globals__": "",
}


@pytest.mark.parametrize(("target", "why"), REFUSED.items(), ids=REFUSED)
def test_op_that_may_do_more_than_compute_is_refused(target: str, why: str) -> None:
    with pytest.raises(VerifyException, match=why) as error:
        resolve(target)
    assert target in str(error.value)


def test_every_torch_op_of_the_table_may_run() -> None:
    torchs = [name for name in op_table() if hasattr(torch.ops.aten, name.partition(".")[0])]
    assert len(torchs) > 400
    for name in torchs:
        resolve(f"aten.{name}" if "." in name else f"aten.{name}.default")


@pytest.mark.parametrize(
    "target",
    ["aten.einsum.default", "aten.rand_like.default", "aten._fft_r2c.default", "prims.convert_element_type.default"],
)
def test_functional_ops_of_torch_may_run(target: str) -> None:
    assert isinstance(resolve(target), torch._ops.OpOverload)


@torch.library.custom_op("hostile::doubled", mutates_args=())
def _doubled(x: torch.Tensor, mode: str) -> torch.Tensor:
    return x + x


@torch.library.custom_op("hostile::filled", mutates_args=("x",))
def _filled(x: torch.Tensor) -> torch.Tensor:
    return x.zero_().clone()


def test_a_custom_op_may_run_after_its_user_registers_a_rule() -> None:
    with pytest.raises(VerifyException, match="register_rule"):
        resolve("hostile.doubled.default")
    sw.register_rule("hostile::doubled", "([a]) -> ([a])")
    try:
        assert resolve("hostile.doubled.default")._schema.name == "hostile::doubled"
    finally:
        unregister_rule("hostile::doubled")
        resolve.cache_clear()
    with pytest.raises(VerifyException, match="register_rule"):
        resolve("hostile.doubled.default")
    vouch_for("hostile::filled.default")
    with pytest.raises(VerifyException, match="writes to its arguments"):
        resolve("hostile.filled.default")
