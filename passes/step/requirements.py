"""Preconditions of passes: checks that earlier passes have not lowered a step further than a pass supports."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation

from ...dialects.compute import SIGNATURE
from ...dialects.mesh_ops import MeshOp
from ...dialects.pins import OpPinAttr, ValuePinAttr
from ...dialects.pipe import STAGES, FragmentOp
from ...dialects.sharding_attrs import RatiosAttr, ShardingAttr, SignatureAttr
from ...dialects.spmd import AccumulateOp, FreeOp, ReshardingOp, StartOp, WaitOp
from ...dialects.train import FOUND_INF, ForeachOp, TrainOp
from ..errors import fail

_RESHARDING = (ReshardingOp, StartOp, WaitOp, AccumulateOp, FreeOp)

_PLACEMENTS = (ShardingAttr, SignatureAttr, RatiosAttr, ValuePinAttr, OpPinAttr)


def require_no_stages(func: FuncOp, name: str) -> None:
    """Raise OpFailure if a step has stages, because ops that the pass `name` adds would belong to no stage."""
    if STAGES in func.attributes:
        fail(func, f"has stages already; run {name} before partition-stages")


def require_no_fragments(func: FuncOp, name: str) -> None:
    """Raise OpFailure if a step has fragments, because the pass `name` does not look into them."""
    _refuse(func, (FragmentOp,), f"exists already; run {name} before schedule-pipeline and accumulate")


def require_nothing_started(func: FuncOp, name: str) -> None:
    """Raise OpFailure if a step has asynchronous collectives, as `overlap` and `duplex` write them."""
    _refuse(func, (StartOp, WaitOp), f"exists already; run {name} before overlap, or strip-resharding before it")


def require_no_resharding(func: FuncOp, name: str) -> None:
    """Raise OpFailure if a step has resharding ops, or ops of later passes."""
    _refuse(func, _RESHARDING, f"exists already; run {name} before insert-resharding, or strip-resharding before it")
    require_no_fragments(func, name)


def require_not_lowered(func: FuncOp, name: str) -> None:
    """Raise OpFailure if a step has stages or resharding ops, because ops that `name` adds would lack both."""
    require_no_stages(func, name)
    require_no_resharding(func, name)


def require_undecided(func: FuncOp, name: str) -> None:
    """Raise OpFailure if a step is lowered or has signatures, because ops that `name` adds would have none."""
    require_not_lowered(func, name)
    require_no_signatures(func, name)


def require_no_signatures(func: FuncOp, name: str) -> None:
    """Raise OpFailure if a step has signatures, because ops and operands that the pass `name` adds would have none."""
    if (decided := next((op for op in func.walk() if SIGNATURE in op.attributes), None)) is not None:
        fail(decided, f"has a signature already; run {name} before search-strategy")


def require_no_skipped_updates(func: FuncOp, name: str) -> None:
    """Raise OpFailure if updates are already skipped when numbers are not finite."""
    for op in func.walk():
        if isinstance(op, TrainOp) and FOUND_INF in op.operand_names():
            said = "may be skipped already (scale-loss or skip-non-finite has run)"
            fail(op, f"{said}; {name} requires a step that always updates")


def require_no_joined_updates(func: FuncOp, name: str) -> None:
    """Raise OpFailure if one op updates several parameters, because the pass cannot find the shares of each."""
    _refuse(func, (ForeachOp,), f"updates several parameters; run {name} before join-updates")


def _refuse(func: FuncOp, kinds: tuple[type[Operation], ...], why: str) -> None:
    if (refused := next((op for op in func.walk() if isinstance(op, kinds)), None)) is not None:
        fail(refused, why)


def require_no_placements(module: ModuleOp, mesh: MeshOp, name: str) -> None:
    """Raise OpFailure if a module has placements on another mesh than the mesh that the pass `name` gives it."""
    meshes = [op for op in module.ops if isinstance(op, MeshOp)]
    if len(meshes) == 1 and meshes[0].mesh == mesh.mesh:
        return
    for op in module.walk():
        attributes = (*op.attributes.values(), *op.properties.values())
        if STAGES in op.attributes or isinstance(op, FragmentOp) or any(map(_is_placed, attributes)):
            listed = ", ".join(f"@{other.mesh.name} = {other.mesh}" for other in meshes) or "none"
            fail(op, f"is placed on the meshes of the module, {listed}, and not on {mesh.mesh}; run {name} first")


def _is_placed(attribute: Attribute) -> bool:
    return any(isinstance(leaf, _PLACEMENTS) for leaf in _leaves(attribute))


def _leaves(attribute: Attribute) -> Iterator[Attribute]:
    match attribute:
        case ArrayAttr():
            for entry in attribute:
                yield from _leaves(entry)
        case DictionaryAttr(data=entries):
            for entry in entries.values():
                yield from _leaves(entry)
        case _:
            yield attribute
