"""
Unsupported uses, with advice for each.

Errors end in this advice, and `docs/not-supported.md` is generated from it. For every entry, a script in the tests
runs into the error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """
    A use that is not supported, with advice.

    Args:
        what: the unsupported use, in Markdown.
        instead: advice that ends the error message.
    """

    what: str
    instead: str


REPLICATED = Refusal(
    "a module in `DistributedDataParallel` or `DataParallel`", "give its .module: the compiler makes the replicas"
)
FULLY_SHARDED = Refusal(
    "a module in `FullyShardedDataParallel`", "give the module before it is wrapped: the compiler shards it"
)
FULLY_SHARD = Refusal(
    "a module that `fully_shard` was applied to", "give the module before fully_shard: the compiler shards it"
)
COMPILED = Refusal(
    "a module that `torch.compile` returned", "give the module before torch.compile, and plan=PlanOptions(compile=True)"
)
SCRIPTED = Refusal("a module of `torch.jit.script` or `torch.jit.trace`", "give the original Python module")
QUANTIZED = Refusal(
    "a quantized module (`torch.ao.nn.quantized`)",
    "train the module before it is quantized: quantized weights have no gradients",
)
SYNCED_BATCH_NORM = Refusal(
    "`SyncBatchNorm`", "keep the original BatchNorm: a step computes the statistics of the global batch"
)
LAZY = Refusal("a lazy module that has seen no input", "run it on one batch first, so that its parameters have shapes")
ON_META = Refusal(
    "a module on the meta device, in `parallelize`",
    "give a function that builds it, as functools.partial(Model, config), or the module with weights",
)
COMPUTED_WEIGHT = Refusal(
    "a weight that hooks compute (`nn.utils.weight_norm`, `spectral_norm` and `prune`)",
    "use nn.utils.parametrizations or nn.utils.parametrize, or make it permanent, as by prune.remove",
)
BACKWARD_HOOK = Refusal(
    "backward hooks of modules", "remove it; in forward, tensor.register_hook of an activation works"
)
PARAMETER_HOOK = Refusal(
    "hooks of parameters: `register_hook`, `register_post_accumulate_grad_hook`",
    "remove it; clip_norm and clip_value of parallelize clip gradients",
)
HIDDEN_WEIGHT = Refusal(
    "parameters, and layers, that the module holds in a plain Python list or dict",
    "hold it in an attribute, or in nn.ParameterList, nn.ModuleList or nn.ModuleDict",
)
SHARED_MEMORY = Refusal(
    "two `Parameter` objects that share memory", "assign one object to both, so that the tie can be seen"
)
HALF = Refusal(
    "`PlanOptions(dtype=torch.float16)`",
    'use precision="fp16-mixed", which keeps weights in float32 and scales the loss; or "bf16-mixed", or'
    " dtype=torch.bfloat16",
)

SPARSE_GRADIENT = Refusal(
    "sparse tensors, and embeddings with `sparse=True`", "use dense ones: sparse=False in an embedding, to_dense()"
)
MAX_NORM = Refusal(
    "embeddings with `max_norm`",
    "leave max_norm out, since it writes into the weight in forward; normalise the output of the embedding",
)
AVERAGED_STATISTICS = Refusal(
    "a batch norm with `momentum=None` in train mode", "give it a momentum: without one, it depends on the step count"
)
VALUE = Refusal(
    "a shape, branch or Python number that depends on values: `.item()`, `if x.sum() > 0`, `nonzero`, `x[mask]`,"
    " `masked_select`, `torch.cov`, packed sequences, `ctc_loss`",
    "let no shape, branch or Python number depend on them; torch.where and a product with the mask keep shapes",
)
CONTROL_FLOW = Refusal(
    "`torch.cond` and the other control-flow operators", "use torch.where, or a Python loop of fixed length"
)
CHECKED = Refusal(
    "linear algebra that raises where a matrix is singular: `torch.linalg.cholesky`, `inv`, `solve`",
    "use the function that does not raise, torch.linalg.cholesky_ex(a)[0], inv_ex(a)[0] or solve_ex(a, b)[0]",
)
ASSERTED = Refusal(
    "an `assert` of the values of tensors in forward", "leave the assert out, or check the batch before step(batch)"
)
OTHER_ATTENTION = Refusal(
    "`flex_attention`, `varlen_attn`, and the biases of `torch.nn.attention.bias`",
    "use scaled_dot_product_attention with is_causal=True or a mask, as torch.ones(q, k, dtype=bool).tril(k - q)",
)
COMPLEX_NUMBER = Refusal(
    "complex Python numbers in forward: `x * 2j`", "compute with a complex tensor, as torch.complex(real, imag)"
)
NUMPY = Refusal("`.numpy()` in forward", "use the functions of torch, which are captured")
OTHER_RANDOM = Refusal(
    "random numbers of numpy or of Python's `random` in forward",
    "draw them with torch, or switch off the feature that needs them (SpecAugment, LayerDrop:"
    " apply_spec_augment=False, layerdrop=0)",
)
GENERATOR = Refusal(
    "a `torch.Generator` passed to random ops in forward",
    "leave the generator out: parallelize(seed=...) seeds the random numbers of steps",
)
RANDOM_OP = Refusal(
    "random ops that cannot be drawn shard by shard: `torch.multinomial`, `torch.poisson`",
    "compute them with random ops that can, or pass them as part of the batch",
)
STRIDES = Refusal(
    "`as_strided` of a part of another tensor, which may read the rest of it",
    "use slices, unfold or indices in its place",
)
REPLACED_BUFFER = Refusal(
    "a new tensor for a buffer in forward: `self.count = self.count + 1`",
    "write into it instead, as in self.count.copy_(...) or self.count += 1",
)
WRITTEN_PARAMETER = Refusal(
    "a parameter that forward writes into", "make it a buffer, or let the optimizer alone change it"
)
COUNTED = Refusal(
    "a Python number that forward changes at every call: `self.calls += 1`",
    "make it a buffer, as in self.register_buffer('calls', torch.zeros(())), and write into it",
)
SAVED_TENSORS = Refusal(
    "hooks of saved tensors in forward: `save_on_cpu`, `saved_tensors_hooks`",
    "leave them out; PlanOptions(keep_activations=0.3) sets the fraction that is kept for backward",
)
CHECKPOINT_POLICY = Refusal(
    "`torch.utils.checkpoint` with a `context_fn`",
    "leave it out, or replace the checkpoint by PlanOptions(keep_activations=0.3), the fraction that is kept",
)

LOSS_BY_ROW = Refusal(
    "a loss that is not one number", "reduce it to one floating-point number, for example with .mean()"
)
OWN_LOSS = Refusal(
    "`loss=None` of a model that does not return its loss",
    "return it first, as the key or attribute loss, or as the only scalar; or pass loss=, a function of the result and"
    " the labels",
)
KEPT_LABELS = Refusal(
    "`loss=` of a model that computes its loss from the labels",
    "with loss= the model gets no labels, and the loss function gets all of the model's output: pass loss=None if the"
    " model computes its loss, or take an item, as loss=lambda output, labels: f(output[0], labels)",
)
OUTSIDE_WEIGHT = Refusal(
    "a loss that reads weights from outside, as a penalty on `model.parameters()`",
    "make it a parameter of the model, and compute that part of the loss in the model's forward, with loss=None",
)
TRAINED_LOSS = Refusal(
    "a loss module with parameters that are trained", "make the loss part of the model and pass loss=None"
)

NESTED = Refusal("nested batches", "give each tensor as an item of its own, so that it can be sharded under a name")
ARRAY = Refusal("numpy arrays in a batch", "give a tensor, as torch.from_numpy(array)")
LAYOUT = Refusal("sparse and nested (jagged) tensors in a batch", "give dense ones, padded where rows differ in length")
INPUT_GRADIENT = Refusal(
    "gradients of a batch's items (`x.requires_grad_()`)",
    "detach it: a step computes no gradients of its inputs",
)
CHANGED_VALUE = Refusal(
    "a number, string or None in a batch that differs from the example",
    "give it as a tensor, if it changes from step to step, or parallelize again",
)
ITERABLE = Refusal(
    "an `IterableDataset` in `step.loader`",
    "make a DataLoader that returns global batches, the same on every rank, and call step(batch); or only the rows of"
    " this rank (step.rows), and call step(step.local(rows))",
)
OTHER_ITEM = Refusal(
    "an item that the example batch did not have", "leave it out, or parallelize with an example that has it"
)
OTHER_SHAPE = Refusal(
    "batches of another shape than the example, as the last partial one",
    "leave out the last batch of fewer rows (DataLoader(drop_last=True)), pad the batch, or declare its shape, by"
    " parallelize(..., shapes=[batch])",
)

OTHER_OPTIMIZER = Refusal(
    "optimizers that need more than a parameter, its gradient and its state: with a closure (LBFGS), or drawing"
    " random numbers",
    "use an optimizer whose step() computes each parameter and its state from its gradient, its state, the learning"
    " rate and the step count",
)
ONE_OPTIMIZER = Refusal(
    "several optimizers in a step",
    "return one torch.optim.Optimizer, with a group of parameters for each of the settings",
)
CLOSED_OVER = Refusal(
    "an optimizer of `model.parameters()` that the function closes over",
    "use the argument, as lambda parameters: torch.optim.SGD(parameters, lr=0.1)",
)
LEFT_OUT = Refusal(
    "an optimizer that leaves out a parameter which requires a gradient",
    "pass it too, or freeze it with requires_grad_(False)",
)
OTHER_SETTING = Refusal(
    "schedules of other settings than the learning rate, as `OneCycleLR` with `cycle_momentum=True`",
    "only lr may change while it runs; parallelize again",
)

FP8 = Refusal('products in float8: `precision="fp8-mixed"`', 'use precision="bf16-mixed"')
AUTOCAST = Refusal("`torch.autocast` around `parallelize` or `step(batch)`", 'parallelize(precision="bf16-mixed")')
CUDA_AUTOCAST = Refusal(
    '`torch.autocast("cuda")` in the model, on a machine with CUDA',
    "set precision='bf16-mixed' for the step, or use torch.autocast(x.device.type, ...) in the model",
)
NO_GRAD = Refusal(
    "`torch.no_grad()` or `torch.inference_mode()` around `step(batch)`",
    "call it outside; to evaluate, step.evaluate(batch) or step.predict(batch)",
)
OTHER_STEP = Refusal(
    "a step that reads the weights of a module which another step trains, as in a GAN",
    "train both in one step: as parts of one module whose forward returns the sum of both losses, with a group of"
    " parameters for each; torch.func.functional_call with detached weights keeps the gradients of one loss from the"
    " other part",
)
BACKWARD = Refusal(
    "`backward()` of the loss of a step: gradient accumulation by the loop, `GradScaler`",
    "leave it out: step(batch) has run backward and the update; PlanOptions(micro_batches=...) accumulates, and"
    ' precision="fp16-mixed" scales the loss',
)
CLOSURE = Refusal("`step(closure)`", "give it the batch, a tuple, list or dict: it runs forward and backward itself")
OPTIMIZER_STATE = Refusal(
    "`step.optimizer.state_dict()` and `load_state_dict()`",
    "step.optimizer_state_dict() has the states, and step.load_optimizer_state_dict(state) takes them",
)
OPTIMIZER_STEP = Refusal("`step.optimizer.step()`", "step(batch) updates the parameters itself")
COPIED_STEP = Refusal("copying or pickling a step", "keep step.state_dict(), and parallelize again where it is needed")
MODE = Refusal(
    "`model.eval()` or `model.train()` between `parallelize` and `step(batch)`, of parts of the model too",
    "restore the modes before step(): they are part of the plan",
)
STALE = Refusal(
    "the module that was given to `parallelize`: a call, `parameters()`, `state_dict()`, `clip_grad_norm_`, `to()`, a"
    " copy, hooks",
    "use step.evaluate(batch), step.predict(batch), step.state_dict(), or the module inside `with step.module():`, on"
    " every rank",
)
SURGERY = Refusal(
    "layers, parameters or buffers that are added to it, replaced or removed",
    "change a copy of it, made inside `with step.module():`, and parallelize that",
)
WRITTEN = Refusal(
    "weights that are written or replaced inside `with step.module():`, as by `load_state_dict`",
    "load weights before parallelize",
)

NOT_SUPPORTED: Mapping[str, tuple[Refusal, ...]] = {
    "Modules": (
        REPLICATED,
        FULLY_SHARDED,
        FULLY_SHARD,
        COMPILED,
        SCRIPTED,
        QUANTIZED,
        SYNCED_BATCH_NORM,
        LAZY,
        ON_META,
        COMPUTED_WEIGHT,
        BACKWARD_HOOK,
        PARAMETER_HOOK,
        HIDDEN_WEIGHT,
        SHARED_MEMORY,
        HALF,
    ),
    "What forward does": (
        SPARSE_GRADIENT,
        MAX_NORM,
        AVERAGED_STATISTICS,
        VALUE,
        CONTROL_FLOW,
        ASSERTED,
        CHECKED,
        OTHER_ATTENTION,
        COMPLEX_NUMBER,
        NUMPY,
        OTHER_RANDOM,
        GENERATOR,
        RANDOM_OP,
        STRIDES,
        REPLACED_BUFFER,
        WRITTEN_PARAMETER,
        COUNTED,
        SAVED_TENSORS,
        CHECKPOINT_POLICY,
        CUDA_AUTOCAST,
    ),
    "Losses": (LOSS_BY_ROW, OWN_LOSS, KEPT_LABELS, OUTSIDE_WEIGHT, TRAINED_LOSS),
    "Batches": (NESTED, ARRAY, LAYOUT, INPUT_GRADIENT, CHANGED_VALUE, ITERABLE, OTHER_ITEM, OTHER_SHAPE),
    "Optimizers": (ONE_OPTIMIZER, CLOSED_OVER, OTHER_OPTIMIZER, LEFT_OUT, OTHER_SETTING),
    "The loop": (
        FP8,
        AUTOCAST,
        NO_GRAD,
        OTHER_STEP,
        BACKWARD,
        CLOSURE,
        OPTIMIZER_STEP,
        OPTIMIZER_STATE,
        COPIED_STEP,
        MODE,
        STALE,
        SURGERY,
        WRITTEN,
    ),
}
"""The unsupported uses, by section of the manual."""
