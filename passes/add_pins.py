"""Add pins, the decisions of the user, to a step."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from .search.constraints import strip_pins
from .search.pin_file import PinError, load_pins
from .search.pins import add_pins
from .step.requirements import require_no_resharding
from .step.step_view import step_functions


@dataclass(frozen=True)
class AddPinsPass(ModulePass):
    """
    Write pins, the decisions of the user, on the arguments and ops that they concern.

    A pin of a pin file is resolved to the values that its glob matches: an argument gets the sharding that it must be
    kept in, the update of a parameter the sharding of its gradient. A preset is resolved to all arguments and ops: on
    some axes, arguments get the placements that they may have, with the placements of their working copies, and ops the
    placements of their operands and results (`#spmd.op_pin`). A full sharding wins over presets. A `spmd.pin` that was
    written by hand, which has no `by`, wins over both.

    Requires: a `spmd.mesh`; a step without resharding (`strip-resharding`). In a pipeline, pins are for the mesh of
    each stage.
    Ensures: the function's `spmd.pins` lists the entries with their places, entries of earlier runs first; `by` in a
    `spmd.pin` is an index into them. `search-strategy`, `search-plan` and `balance-ratios` obey pins and keep them, so
    that searches of `fixed-point` and `fit-memory` do too; `partition-stages` resolves the entries again.

    Pipeline: add-pins{pins="dp"}

    Before:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    func.func @step(
      %x: tensor<64x32xf32> {train.batch = "0"}, %w: tensor<32x16xf32> {train.param = "w"}
    ) -> tensor<64x16xf32> {
      %y = aten.mm %x, %w : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
      func.return %y : tensor<64x16xf32>
    }
    ```

    After:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    func.func @step(
      %x: tensor<64x32xf32> {train.batch = "0", spmd.pin = #spmd.pin<{"gpu" = S(0)}, by [0]>},
      %w: tensor<32x16xf32> {train.param = "w", spmd.pin = #spmd.pin<{"gpu" = R}, working {"gpu" = R}, by [0]>}
    ) -> tensor<64x16xf32> attributes {spmd.pins = [#spmd.pin_entry<preset "dp">]} {
      %y = aten.mm %x, %w {spmd.pin = #spmd.op_pin<"gpu" = (S(0), R) -> (S(0)), by [0]>}
        : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
      func.return %y : tensor<64x16xf32>
    }
    ```

    Source: DESIGN of this project (a user can pin anything); HAP 4.1 (ops and values of given properties).
    """

    name = "add-pins"

    pins: str
    """A TOML file of pins; the name of a preset, `dp`, `zero1`, `zero2`, `zero3` or `tp`; or pins as TOML text."""

    replace: bool = False
    """Whether earlier pins, from pin files or by hand, are removed first."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        try:
            pins = load_pins(self.pins)
        except PinError as error:
            raise PassFailedException(str(error)) from error
        for func in step_functions(op):
            require_no_resharding(func, self.name)
        if self.replace:
            strip_pins(op)
        add_pins(op, pins)
