"""Scripts about hooks, wrappers and weights of a module, and about the ways to pass it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from features import SGD, assert_follows, batches, cross_entropy, planned, refused, trains_alike, two_layers, works
from torch import nn
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations, prune

from shardwright.ir.not_supported import (
    BACKWARD_HOOK,
    COMPILED,
    COMPUTED_WEIGHT,
    FULLY_SHARD,
    FULLY_SHARDED,
    HALF,
    HIDDEN_WEIGHT,
    LAZY,
    ON_META,
    PARAMETER_HOOK,
    QUANTIZED,
    REPLICATED,
    SCRIPTED,
    SHARED_MEMORY,
)


@contextmanager
def job_of_one() -> Iterator[None]:
    """Open a process group of one rank, which wrappers need."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


# Hooks


@works("forward hook")
def forward_hook():
    model = two_layers()
    model[0].register_forward_hook(lambda module, given, output: torch.mul(output, 2))  # pyright: ignore[reportArgumentType]
    trains_alike(model)


@works("forward hook that keeps activations")
def forward_hook_that_keeps():
    model, kept = two_layers(), []
    model[0].register_forward_hook(lambda module, given, output: kept.append(output))
    trains_alike(model)


@works("forward pre-hook")
def forward_pre_hook():
    model = two_layers()
    model[2].register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    trains_alike(model)


@refused("backward hook of a module", "its module '0' has a backward hook.* remove it", BACKWARD_HOOK)
def backward_hook():
    model = two_layers()
    model[0].register_full_backward_hook(lambda module, inner, outer: None)
    planned(model)


@refused("backward hook of all modules", "a backward hook of all modules.* remove it", BACKWARD_HOOK)
def global_backward_hook():
    handle = nn.modules.module.register_module_full_backward_hook(lambda module, inner, outer: None)
    try:
        planned(two_layers())
    finally:
        handle.remove()


@refused("hook of a parameter", r"parameter '0\.weight' has a hook \(register_hook\).* remove it", PARAMETER_HOOK)
def parameter_hook():
    model = two_layers()
    model.get_parameter("0.weight").register_hook(lambda grad: grad * 2)
    planned(model)


@refused("hook of a gradient", r"parameter '0\.bias' has a hook \(register_post_accumulate_grad_hook\)", PARAMETER_HOOK)
def post_accumulate_hook():
    model = two_layers()
    model.get_parameter("0.bias").register_post_accumulate_grad_hook(lambda parameter: None)
    planned(model)


class HookedActivation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).tanh()
        h.register_hook(lambda grad: grad * 3)
        return self.second(h)


@works("hook of an activation")
def activation_hook():
    trains_alike(HookedActivation())


# Wrappers


@refused("DistributedDataParallel", r"is a DistributedDataParallel; give its \.module", REPLICATED)
def ddp():
    with job_of_one():
        planned(DistributedDataParallel(two_layers()))


@refused(
    "FullyShardedDataParallel",
    "is a FullyShardedDataParallel; give the module before it is wrapped",
    FULLY_SHARDED,
)
def fsdp():
    with job_of_one():
        planned(FullyShardedDataParallel(two_layers(), device_id=torch.device("cpu")))


@refused("fully_shard", "is a FSDPModule; give the module before fully_shard", FULLY_SHARD)
def fsdp2():
    with job_of_one():
        planned(fully_shard(two_layers(), mesh=init_device_mesh("cpu", (1,))))  # pyright: ignore[reportArgumentType]


@refused("torch.compile", r"is a OptimizedModule; give the module before torch\.compile", COMPILED)
def compiled():
    planned(torch.compile(two_layers()))  # pyright: ignore[reportArgumentType]


@works("model.compile(), which a captured step does without")
def compiled_in_place():
    model = two_layers()
    model.compile()
    trains_alike(model, in_plain=lambda model, batch: cross_entropy(model.forward(batch[0]), batch[1]))


@refused("DataParallel", r"is a DataParallel; give its \.module", REPLICATED)
def data_parallel():
    planned(nn.DataParallel(two_layers()))


@refused("torch.jit.script", "it is a ScriptModule; give the original Python module", SCRIPTED)
def scripted():
    planned(torch.jit.script(two_layers()))


@refused("torch.jit.trace of a part", "module '0' is a ScriptModule", SCRIPTED)
def traced_part():
    model = two_layers()
    model.add_module("0", torch.jit.trace(model[0], torch.randn(6, 4)))  # pyright: ignore[reportArgumentType]
    planned(model)


@refused("quantized module", "module '0' is a quantized Linear", QUANTIZED)
def quantized():
    planned(torch.ao.quantization.quantize_dynamic(two_layers(), {nn.Linear}))


# Weights that are not just parameters


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.embed(x).tanh())


@works("tied weights")
def tied_weights():
    trains_alike(Tied(), given=[(torch.randint(5, (6,)), torch.randint(5, (6,))) for _ in range(2)])


class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scales = nn.Linear(4, 3), [nn.Parameter(torch.ones(3))]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scales[0]


@refused("parameters in a list", "uses a parameter that is not one of the model", HIDDEN_WEIGHT)
def hidden():
    planned(Hidden())


@refused("shared memory", "the parameters '0.weight' and '1.weight' share memory", SHARED_MEMORY)
def shared_memory():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = nn.Parameter(model.get_parameter("0.weight").data)
    planned(model)


@works("frozen parameters")
def frozen():
    model = two_layers()
    model[0].requires_grad_(False)
    trains_alike(model, optimizer=lambda given: SGD([each for each in given if each.requires_grad]))


@works("weight_norm")
def weight_norm():
    model = two_layers()
    parametrizations.weight_norm(model[0])
    trains_alike(model)


@works("spectral_norm")
def spectral_norm():
    model = two_layers()
    parametrizations.spectral_norm(model[0])
    trains_alike(model)


@works("orthogonal")
def orthogonal():
    model = two_layers()
    parametrizations.orthogonal(model[2])
    trains_alike(model)


@refused(
    "weight_norm by hooks",
    "module '0' has a weight that a WeightNorm computes; use nn.utils.parametrizations",
    COMPUTED_WEIGHT,
)
def old_weight_norm():
    model = two_layers()
    nn.utils.weight_norm(model[0])
    planned(model)


@refused(
    "spectral_norm by hooks, in a function",
    "module '0' has a weight that a SpectralNorm computes",
    COMPUTED_WEIGHT,
)
def old_spectral_norm():
    planned(lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 3))))


@refused("prune", r"module '0' has a weight that a L1Unstructured computes.* prune\.remove", COMPUTED_WEIGHT)
def pruned():
    model = two_layers()
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    planned(model)


@refused("lazy module", r"parameter '0\.weight' has no shape yet; run it on one batch first", LAZY)
def lazy():
    planned(nn.Sequential(nn.LazyLinear(3)))


@refused("meta device", r"'0\.weight' is on the meta device; give a function", ON_META)
def on_meta_device():
    with torch.device("meta"):
        model = two_layers()
    planned(model)


@works("double()")
def double():
    given = [(x.double(), y) for x, y in batches()]
    trains_alike(two_layers().double(), given=given, tolerance=1e-10)


@works("bfloat16()")
def bfloat16():
    given = [(x.bfloat16(), y) for x, y in batches()]
    trains_alike(two_layers().bfloat16(), given=given, tolerance=5e-2)


@works("half()")
def half():
    trains_alike(two_layers().half(), given=[(x.half(), y) for x, y in batches()], tolerance=1e-2)


@refused("dtype=float16", "float16", HALF)
def dtype_half():
    planned(two_layers(), dtype=torch.float16)


@refused("pins beside a pipeline", r"pins=dp and pipeline=.* exclude each other.*add-pins\{pins=")
def pins_beside_a_pipeline():
    planned(two_layers(), pipeline="search-strategy")  # its pins are "dp"


@refused("decisions beside a pipeline", "pipeline=.* and mesh=.* exclude each other")
def decisions_beside_a_pipeline():
    planned(two_layers(), pins=None, mesh="1", stages=1, pipeline="search-strategy")


@works("torch.set_default_dtype")
def default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        trains_alike(two_layers(), given=batches(), tolerance=1e-10)
    finally:
        torch.set_default_dtype(torch.float32)


# How the model is given


def _made_by_function(make: Callable[[], nn.Module]) -> None:
    step = planned(make, seed=7)
    torch.manual_seed(7)
    assert_follows(step, make(), batches())


@works("function that makes the model")
def model_function():
    _made_by_function(two_layers)


@works("function with arguments given")
def partial_model():
    _made_by_function(partial(nn.Linear, 4, 3))


@works("lambda model")
def lambda_model():
    _made_by_function(lambda: nn.Linear(4, 3))


@refused("class that asks for arguments", "Linear")
def model_class_with_arguments():
    planned(nn.Linear)  # pyright: ignore[reportArgumentType]


@refused("function that gives no module", "returned a FakeTensor, not a torch.nn.Module")
def model_function_of_tensor():
    planned(lambda: torch.ones(3))  # pyright: ignore[reportArgumentType]
