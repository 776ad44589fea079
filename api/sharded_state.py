"""
Parameters and optimizer states for other tools of PyTorch: as `DTensor`s if a DTensor can express the split.

A DTensor splits a dim into equal parts, by the axes of its mesh in their order. A value with another split (parts of
several sizes, axes in another order) becomes a `LocalShard`: the local part, and its position in the full tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..ir.mesh import Mesh
from ..runtime.agreement import SAMPLED, differing, digest
from ..runtime.executor import Executor
from ..runtime.plan import LocalShard, PlanError, SpreadTensor, Value

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor, Placement

Sharded: TypeAlias = "torch.Tensor | LocalShard"
"""A `DTensor` or a `LocalShard`; without a process group the tensor itself."""


def placements_of(value: SpreadTensor, mesh: Mesh) -> tuple[Placement, ...] | None:
    """Return the DTensor placements of a value, one per axis of the mesh, or None if DTensor cannot express them."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    placements: dict[str, Placement] = {}
    for dim, (size, spread) in enumerate(zip(value.shape, value.spread.dims, strict=True)):
        is_even = spread.offsets is None and size % mesh.parts(spread.axes) == 0
        if spread.axes and not (is_even and spread.axes == mesh.in_order(spread.axes)):
            return None
        placements |= {axis: Shard(dim) for axis in spread.axes}
    for axis, reduction in value.spread.partial:
        placements[axis] = Partial(reduction.value)
    return tuple(placements.get(axis.name, Replicate()) for axis in mesh.spatial)


class ShardedState:
    """
    The values of a step on this rank, by single-device names.

    Args:
        given: the user's DeviceMesh, if the plan was made for one.
    """

    def __init__(self, executor: Executor, given: DeviceMesh | None = None) -> None:
        self._executor = executor
        self._given = given

    @cached_property
    def device_mesh(self) -> DeviceMesh | None:
        """
        The mesh of the plan (of this rank's stage in a pipeline), or None without a process group.

        The user's DeviceMesh is returned if the plan uses its axes. Every rank must access this property together.
        """
        if not dist.is_initialized():
            return None
        mine, kind = self._executor.plan, self._executor.comm.device.type
        if self._given is not None and len(self._executor.plans) == 1 and _is_of(self._given, mine.mesh):
            return self._given
        # All ranks create the groups of all stages, in the same order.
        meshes = {plan.ranks: _device_mesh(plan.mesh, plan.ranks, kind) for plan in self._executor.plans}
        return meshes[mine.ranks]

    def sharded(self, value: Value) -> Sharded:
        """Return one value of this rank's stage, without a copy."""
        local, mesh = self._executor.local(value), self.device_mesh
        if mesh is None:
            return local
        placements = placements_of(value, self._plan_mesh)
        if placements is None:
            return LocalShard(local, value.shape, tuple(part.start for part in self._slices(value)))
        from torch.distributed.tensor import DTensor

        shape, stride = torch.Size(value.shape), torch.empty(value.shape, device="meta").stride()
        return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)

    def named_parameters(self) -> Iterator[tuple[str, Sharded]]:
        """Yield the parameters of this rank's stage by their first names, in the order of the model."""
        for value in self._executor.plan.inputs:
            if value.role == "param":
                yield value.name, self.sharded(value)

    def weights(self) -> dict[str, Sharded]:
        """Return parameters and persistent buffers of this rank's stage, by all of their names."""
        weights: dict[str, Sharded] = {}
        for value in self._executor.plan.inputs:
            if value.keys:
                weights |= dict.fromkeys(value.keys, self.sharded(value))
        return weights

    def optimizer_state(self, rates: Sequence[float] = ()) -> dict[str, Any]:
        """
        Return the optimizer state in the form of `torch.distributed.checkpoint.state_dict.get_optimizer_state_dict`.

        ``state`` covers this rank's stage, by parameter and state; ``param_groups`` covers all stages, by parameter
        name.

        Args:
            rates: the learning rates of the groups; by default the initial rates of the optimizer.
        """
        plan = self._executor.plan
        state: dict[str, dict[str, object]] = {}
        for value in plan.inputs:
            if value.role == "state" and value.name:
                state.setdefault(value.name, {})[value.state] = self.sharded(value)
        count = next((value for value in plan.inputs if value.role == "step_count"), None)
        if count is not None and self._counts:
            for states in state.values():
                # torch keeps one step count per parameter, on the host.
                states[_STEP] = self._executor.local(count).to("cpu", torch.float32, copy=True)
        return {"state": state, "param_groups": self._parameter_groups(rates)}

    def _parameter_groups(self, rates: Sequence[float]) -> list[dict[str, Any]]:
        plan = self._executor.plan
        results = ((stage, result) for stage in self._executor.plans for result in stage.outputs)
        updated = (stage.inputs[result.updates] for stage, result in results if result.updates is not None)
        named = (value.name for value in updated if value.role == "param")
        members = (plan.optimizer or {}).get("members", [list(dict.fromkeys(named))])
        kind = (plan.optimizer or {}).get("kind", "")
        groups = [_as_in_torch(kind, settings) for settings in plan.parameter_groups]
        for group, rate in zip(groups, rates, strict=False):
            group["lr"] = rate
        return [{**group, "params": list(names)} for group, names in zip(groups, members, strict=True)]

    def load_weights(self, state: Mapping[str, Sharded]) -> None:
        """
        Load parameters and persistent buffers from full tensors, or from the result of `weights`.

        A value for a buffer that is not persistent is ignored, because an earlier `state_dict` included such buffers.

        Raises:
            PlanError: a value is missing, unknown, of another shape, or differs between ranks; nothing was changed.
        """
        loaded = [(value, self._given_for(value, state)) for value in self._executor.plan.inputs if value.keys]
        inputs = (value for plan in self._executor.plans for value in plan.inputs)
        known = {name for value in inputs if value.role in ("param", "buffer") for name in (value.name, *value.tied)}
        if unknown := [name for name in state if name not in known]:
            raise PlanError(
                f"load_state_dict() was given {_listed(unknown)}, which the model does not have; give what "
                "step.state_dict() or the module's state_dict() has"
            )
        _verify_alike({name: given for name, given in state.items() if _is_whole(given)})
        with torch.no_grad():
            for value, given in loaded:
                self._executor.local(value).copy_(self._part(value, given))

    def load_optimizer(self, state: Mapping[str, Any]) -> None:
        """
        Load the states of the optimizer from the result of `optimizer_state`, or from the state dict of a torch
        optimizer, whose parameters are numbered in the order of its groups.

        Raises:
            PlanError: a state is missing, of another shape, or differs between ranks; nothing was changed.
        """
        given = self._by_name(state)
        loaded: list[tuple[Value, Sharded]] = []
        counts: list[tuple[Value, float]] = []
        for value in self._executor.plan.inputs:
            if value.role == "state" and value.name:
                loaded.append((value, self._given_state(value, given)))
            elif value.role == "step_count" and self._counts:
                steps = {float(states[_STEP]) for states in given.values() if _STEP in states}
                if len(steps) != 1:
                    raise PlanError(f"load_optimizer_state_dict() was given the steps {sorted(steps)}, expected one")
                counts.append((value, next(iter(steps))))
        whole = {f"{name}.{key}": each for name, one in given.items() for key, each in one.items() if _is_whole(each)}
        _verify_alike(whole, "load_optimizer_state_dict()")
        with torch.no_grad():
            for value, each in loaded:
                self._executor.local(value).copy_(self._part(value, each))
            for value, count in counts:
                self._executor.local(value).fill_(count)

    @property
    def _counts(self) -> bool:
        return (self._executor.plan.optimizer or {}).get("kind") not in _UNCOUNTED

    def _by_name(self, state: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """Return the states by the names of parameters; a torch optimizer numbers its parameters."""
        given: Mapping[Any, Mapping[str, Any]] = state["state"]
        groups = self._parameter_groups(())
        numbered = [number for group in state["param_groups"] for number in group["params"]]
        names = [name for group in groups for name in group["params"]]
        if not any(isinstance(key, int) for key in given):
            return dict(given)
        if len(numbered) != len(names):
            raise PlanError(
                f"load_optimizer_state_dict() was given the states of {len(numbered)} parameters; the step's optimizer "
                f"has {len(names)}: give the states of an optimizer with the same groups"
            )
        return {name: given[number] for name, number in zip(names, numbered, strict=True) if number in given}

    def _given_state(self, value: Value, given: Mapping[str, Mapping[str, Any]]) -> Sharded:
        tensor = given.get(value.name, {}).get(value.state)
        if tensor is None:
            raise PlanError(
                f"load_optimizer_state_dict() was given no {value.state!r} of {value.name!r}; give the states of the "
                "same optimizer, after at least one step"
            )
        if not isinstance(tensor, torch.Tensor | LocalShard) or tuple(tensor.shape) != value.shape:
            shape = list(tensor.shape) if isinstance(tensor, torch.Tensor | LocalShard) else type(tensor).__name__
            raise PlanError(
                f"load_optimizer_state_dict() was given {value.state!r} of {value.name!r} as {shape}, expected "
                f"{list(value.shape)}"
            )
        return tensor

    def _given_for(self, value: Value, state: Mapping[str, Sharded]) -> Sharded:
        """Return the given tensor for a value under one of its names, after checking its shape and part."""
        given = next((state[name] for name in value.keys if name in state), None)
        if given is None:
            raise PlanError(f"load_state_dict() was given no {value.name!r}; give all parameters and buffers")
        if tuple(given.shape) != value.shape:
            raise PlanError(
                f"load_state_dict() was given {value.name!r} in shape {tuple(given.shape)}; expected {value.shape}"
            )
        if isinstance(given, LocalShard) and given.slices != self._slices(value):
            raise PlanError(
                f"load_state_dict() was given the part {given.slices} of {value.name!r}, but this rank has "
                f"{self._slices(value)}: give full tensors, or DTensors"
            )
        return given

    def _slices(self, value: Value) -> tuple[slice, ...]:
        return value.slices(self._executor.plan.mesh, self._executor.comm.rank)

    def _part(self, value: Value, given: Sharded) -> torch.Tensor:
        """Return this rank's part of a given tensor; a DTensor with another sharding is gathered first."""
        if isinstance(given, LocalShard):
            return given.local
        if _is_dtensor(given):
            if given.device_mesh == self.device_mesh and given.placements == placements_of(value, self._plan_mesh):
                return given.to_local()
            given = given.full_tensor()
        return given[self._slices(value)]

    @property
    def _plan_mesh(self) -> Mesh:
        return self._executor.plan.mesh


_STEP = "step"
"""The name of the count of updates in torch's optimizers."""

_UNCOUNTED = ("sgd",)
"""Torch's optimizers that do not count updates."""


def _is_whole(given: Sharded) -> TypeGuard[torch.Tensor]:
    return isinstance(given, torch.Tensor) and not _is_dtensor(given)


def _is_dtensor(given: object) -> TypeGuard[DTensor]:
    """Check for a DTensor without importing `torch.distributed.tensor`, which takes most of a second, if nobody has."""
    tensor = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and isinstance(given, tensor.DTensor)


def _verify_alike(state: Mapping[str, torch.Tensor], call: str = "load_state_dict()") -> None:
    """Raise PlanError if a tensor differs between ranks, since loading only parts of it would hide the difference."""
    if (found := differing({name: digest(tensor, SAMPLED) for name, tensor in state.items()})) is not None:
        name, holder, rank = found
        raise PlanError(
            f"{call} was given a different {name!r} on rank {rank} than on rank {holder}; give all ranks the same"
        )


def _as_in_torch(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a group under torch's names, with torch's defaults for all others."""
    renamed = {name: value for name, value in settings.items() if name not in ("kind", "beta1", "beta2")}
    if "beta1" in settings:
        renamed["betas"] = (settings["beta1"], settings["beta2"])
    defaults = _CLASSES[kind]([torch.zeros(())]).defaults if kind in _CLASSES else {}
    return {**defaults, **renamed}


_CLASSES: Mapping[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}
"""Torch's optimizer class, by kind of update."""


def _listed(names: Sequence[str]) -> str:
    details = ", ".join(map(repr, names[:_MOST_NAMES]))
    return details if len(names) <= _MOST_NAMES else f"{details} and {len(names) - _MOST_NAMES} more"


_MOST_NAMES = 3


def _is_of(given: DeviceMesh, mesh: Mesh) -> bool:
    """Return whether a DeviceMesh has the spatial axes of a plan's mesh."""
    names = given.mesh_dim_names or tuple(f"a{dim}" for dim in range(given.mesh.ndim))
    return [*zip(names, given.mesh.shape, strict=True)] == [(axis.name, axis.size) for axis in mesh.spatial]


def _device_mesh(mesh: Mesh, ranks: Sequence[int], device: str) -> DeviceMesh:
    shape = [axis.size for axis in mesh.spatial]
    names = tuple(axis.name for axis in mesh.spatial)
    return DeviceMesh(device, torch.tensor(ranks).view(shape), mesh_dim_names=names)
