"""Parameters and optimizer states of a step on the ranks of a job, and their use by other tools."""

from __future__ import annotations

import importlib
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from plan_keywords import with_plan
from split_cluster import split_cluster
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import shardwright as sw
from shardwright.api.distributed_step import DistributedStep
from shardwright.ir.mesh import parse_mesh
from shardwright.runtime.all_ranks import from_rank_0
from shardwright.runtime.plan import PlanError

# Imported as `Any`: torch does not export its names.
dcp: Any = importlib.import_module("torch.distributed.checkpoint")

ROWS = 8
LOSS = nn.functional.cross_entropy
PIPELINE = "prepare,partition-stages{stages=2},search-strategy,program{mode=pipeline parts=2 schedule=1f1b},finish"


class Net(nn.Module):
    """A model with weights of even sizes, two of them tied, and a persistent buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: torch.Tensor
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8, dtype=torch.float64))
        self.rise, self.middle, self.fall = (nn.Linear(*sizes).double() for sizes in ((8, 16), (16, 16), (16, 4)))
        self.again = nn.Linear(16, 16).double()
        self.again.weight = self.middle.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.middle(torch.tanh(self.rise(x * self.scale))))
        return self.fall(torch.tanh(self.again(hidden)))


def net(seed: int = 0) -> Net:
    """Return the same model on every rank."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net()


def adamw(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """Return AdamW with two groups."""
    named = list(named_parameters)
    matrices, others = ([p for _, p in named if (p.dim() > 1) is wide] for wide in (True, False))
    return torch.optim.AdamW([{"params": matrices, "lr": 1e-2}, {"params": others, "weight_decay": 0.0}], lr=1e-3)


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same batch on every rank."""
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(ROWS, 8, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(4, (ROWS,), generator=generator)


def planned(seed: int = 0, mesh: str | None = None, **options: Any) -> DistributedStep:
    """Return a distributed step of `Net`."""
    cluster = split_cluster(parse_mesh(mesh or str(dist.get_world_size())))
    return sw.parallelize(net(seed), LOSS, adamw, batch(0), cluster, **with_plan(options))


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
    """Train one step on one device; return the loss."""
    inputs, labels = batch(number)
    optimizer.zero_grad()
    loss = LOSS(model(inputs), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def differences(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> Iterator[str]:
    """Yield the differences of a state dict from the expected one."""
    if found.keys() != expected.keys():
        yield f"names {sorted(found)}, expected {sorted(expected)}"
    for name in found.keys() & expected.keys():
        if not torch.allclose(found[name], expected[name], rtol=1e-10, atol=1e-12):
            yield f"{name} differs by {(found[name] - expected[name]).abs().max()}"


def goes_on_in_plain_pytorch(step: DistributedStep) -> Iterator[str]:
    """Save a step with `torch.distributed.checkpoint`, load a plain module, and yield differences as both train on."""
    for number in range(3):
        step(batch(number))
    folder = from_rank_0(tempfile.mkdtemp() if dist.get_rank() == 0 else None)
    dcp.save({"model": step.state_dict(sharded=True), "optimizer": step.optimizer_state_dict()}, checkpoint_id=folder)

    model = net(seed=1)
    optimizer = adamw(model.named_parameters())
    plain_step(model, optimizer, 7)  # so that it has states, to be replaced
    target = {"model": model.state_dict(), "optimizer": dcp_state.get_optimizer_state_dict(model, optimizer)}
    dcp.load(target, checkpoint_id=folder)
    model.load_state_dict(target["model"])
    dcp_state.set_optimizer_state_dict(model, optimizer, target["optimizer"])

    assert step.optimizer is not None
    if [group["lr"] for group in optimizer.param_groups] != step.optimizer.rates:
        yield f"rates {[group['lr'] for group in optimizer.param_groups]}"
    for number in range(3, 6):
        ours, theirs = step(batch(number)).item(), plain_step(model, optimizer, number)
        if abs(ours - theirs) > 1e-10:
            yield f"step {number}: loss {ours}, in plain PyTorch {theirs}"
    yield from differences(step.state_dict(), model.state_dict())


def even() -> Iterator[str]:
    """ZeRO-3: every parameter is a DTensor that shares the step's memory."""
    step = planned(pins="zero3")
    yield from goes_on_in_plain_pytorch(step)
    mesh = step.device_mesh
    if mesh is None or mesh.mesh_dim_names != ("a0",):
        yield f"device mesh {mesh}"
    if not any(Shard(0) in value.placements for value in step.parameters() if isinstance(value, DTensor)):
        yield "nothing is split"
    names = [name for name, _ in net().named_parameters()]
    if [name for name, _ in step.named_parameters()] != names:
        yield f"parameters {[name for name, _ in step.named_parameters()]}, expected {names}"
    for (name, value), again in zip(step.named_parameters(), step.parameters(), strict=True):
        if not isinstance(value, DTensor) or not isinstance(again, DTensor):
            yield f"{name} is a {type(value).__name__}"
        elif value.to_local().data_ptr() != again.to_local().data_ptr():
            yield f"{name} is a copy"
        elif not torch.equal(value.full_tensor(), step.gather(name)):
            yield f"{name} is another tensor"


def uneven() -> Iterator[str]:
    """Shares of 0.7 and 0.3: DTensor cannot represent them, and DCP cannot save a `LocalShard`."""
    step = planned(ratios="0.7,0.3", pins="zero3", algorithm="eliminate")
    step(batch(0))
    shards = {name: value for name, value in step.named_parameters() if isinstance(value, sw.LocalShard)}
    if not shards:
        yield "nothing is split unevenly"
    for name, shard in shards.items():
        if not torch.equal(shard.local, step.gather(name)[shard.slices]) or shard.shape != step.gather(name).shape:
            yield f"{name} is at {shard.offsets} of {shard.shape}, and holds something else"
    try:
        dcp.save(step.state_dict(sharded=True), checkpoint_id=from_rank_0(tempfile.mkdtemp()))
        yield "one rank's part was saved for all"
    except dcp.CheckpointException as error:
        if "cannot save" not in str(error):
            yield f"saving said {error}"
    other = planned(seed=1, ratios="0.7,0.3", pins="zero3", algorithm="eliminate")
    other.load_state_dict(step.state_dict(sharded=True))
    yield from differences(other.state_dict(), step.state_dict())


def loads() -> Iterator[str]:
    """Load weights from a module, and from a step with other shardings; a warning names the optimizer states."""
    source, step = net(seed=3), planned(pins="zero3")
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("shardwright").addHandler(handler)
    step.load_state_dict(source.state_dict())
    yield from differences(step.state_dict(), source.state_dict())
    if messages:
        yield f"before the first step it was told {messages}"
    optimizer = adamw(source.named_parameters())
    for number in range(2):
        ours, theirs = step(batch(number)).item(), plain_step(source, optimizer, number)
        if abs(ours - theirs) > 1e-10:
            yield f"step {number}: loss {ours}, on one device {theirs}"
    other = planned(seed=4, pins="tp")
    other(batch(0))
    step.load_state_dict(other.state_dict(sharded=True))
    yield from differences(step.state_dict(), other.state_dict())
    if (dist.get_rank() == 0) != any("states of the optimizer still belong to" in each for each in messages):
        yield f"of the states it was told {messages}"
    logging.getLogger("shardwright").removeHandler(handler)


def _refused() -> dict[str, str]:
    """Return the errors of `load_state_dict`, by the fault of its argument."""
    step, state = planned(pins="zero3"), net(seed=5).state_dict()
    before = step.state_dict()
    faulty_states = {
        "missing": {name: value for name, value in state.items() if not name.endswith("rise.weight")},
        "unknown": {**state, "rise.wait": state["rise.weight"]},
        "shape": {**state, "rise.weight": state["rise.weight"][:3]},
    }
    errors: dict[str, str] = {}
    for name, each in faulty_states.items():
        try:
            step.load_state_dict(each)
        except PlanError as error:
            errors[name] = str(error)
    errors |= {f"after {name}": name for name in differences(step.state_dict(), before)}
    try:
        step.load_state_dict(net(seed=dist.get_rank()).state_dict())
    except PlanError as error:
        errors["other ranks"] = str(error)
    return errors


def given_mesh() -> Iterator[str]:
    """A DeviceMesh that is passed as the cluster is returned by `device_mesh`, if the plan is on its axes."""
    home: Any = importlib.import_module("shardwright.api.parallelize")
    measured, home.auto_cluster = home.auto_cluster, lambda device, mesh: split_cluster(mesh)
    try:
        device_mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("data",))
        step = sw.parallelize(net(), LOSS, adamw, batch(0), device_mesh, plan=sw.PlanOptions(pins="dp"), measure=1)
    finally:
        home.auto_cluster = measured
    if step.device_mesh is not device_mesh:
        yield f"another mesh: {step.device_mesh}"
    if any(value.device_mesh is not device_mesh for value in step.parameters() if isinstance(value, DTensor)):
        yield "a parameter is on another mesh"


def from_plain_pytorch() -> Iterator[str]:
    """Weights and optimizer states of one device continue training in a step."""
    model = net(seed=1)
    optimizer = adamw(model.named_parameters())
    for number in range(3):
        plain_step(model, optimizer, number)
    step = planned(pins="zero3")
    step(batch(9))  # so that it has other states, to be replaced
    step.load_state_dict(model.state_dict())
    try:
        step.load_optimizer_state_dict(adamw(model.named_parameters()).state_dict())
        yield "states were taken of an optimizer that has none"
    except PlanError as error:
        if "no 'exp_avg' of" not in str(error):
            yield str(error)
    step.load_optimizer_state_dict(optimizer.state_dict())
    for number in range(3, 6):
        ours, theirs = step(batch(number)).item(), plain_step(model, optimizer, number)
        if abs(ours - theirs) > 1e-10:
            yield f"step {number}: loss {ours}, in plain PyTorch {theirs}"


def on_two_axes() -> Iterator[str]:
    """Parameters are split over one axis or both axes of 2x2."""
    step = planned(mesh="2x2", pins="zero3")
    yield from goes_on_in_plain_pytorch(step)
    if step.device_mesh is None or step.device_mesh.shape != (2, 2):
        yield f"device mesh {step.device_mesh}"


def in_stages() -> Iterator[str]:
    """Two stages of two ranks: each has its own parameters, and together they have all parameters of the model."""
    step = planned(pipeline=PIPELINE)
    names = [name for name, _ in step.named_parameters()]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, names)
    if everyone[0] == everyone[2] or {*everyone[0], *everyone[2]} != {name for name, _ in net().named_parameters()}:
        yield f"stages have {everyone}"
    if step.device_mesh is None or step.device_mesh.mesh.tolist() != [[0, 1], [2, 3]][dist.get_rank() // 2]:
        yield f"device mesh {step.device_mesh}"
    yield from goes_on_in_plain_pytorch(step)


ON_TWO: dict[str, Callable[[], Iterator[str]]] = {
    "even": even,
    "uneven": uneven,
    "loads": loads,
    "from plain PyTorch": from_plain_pytorch,
    "given mesh": given_mesh,
}
ON_FOUR: dict[str, Callable[[], Iterator[str]]] = {"on two axes": on_two_axes, "in stages": in_stages}


def on_two() -> dict[str, Any]:
    """Return the faults of this rank by case, and the errors of `load_state_dict`."""
    return {**{name: list(case()) for name, case in ON_TWO.items()}, "refused": _refused()}


def on_four() -> dict[str, Any]:
    """Return the faults of this rank by case."""
    return {name: list(case()) for name, case in ON_FOUR.items()}
