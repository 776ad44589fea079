"""Functions imported as IR, for checks of rules: writes in place are replaced, or refused."""

import pytest
import torch
import torch.nn.functional as F
from import_function import import_function

from shardwright.lowering.capture.captured import CaptureError
from shardwright.lowering.interpreter.interpreter import interpret


def test_writes_of_a_composite_op_are_in_the_ir():
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [F.pad(x, (1, 2), mode="circular")]

    x = torch.arange(6.0).reshape(1, 1, 6)
    imported = import_function(function, [x])
    (found,) = interpret(imported.module, imported.inputs)
    torch.testing.assert_close(found, function(x)[0])


def test_an_argument_that_is_written_keeps_its_value():
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.mul_(2.0)]

    x = torch.ones(3)
    imported = import_function(function, [x])
    (found,) = interpret(imported.module, imported.inputs)
    torch.testing.assert_close(found, torch.full((3,), 2.0))
    torch.testing.assert_close(x, torch.ones(3))


def test_ops_that_depend_on_memory_layout_are_refused():
    with pytest.raises(CaptureError, match="as_strided of a computed tensor"):
        import_function(lambda x: [torch.as_strided(x * 2.0, (2, 2), (1, 2))], [torch.ones(4)])
