"""
`DistributedTrainer`: Hugging Face's `Trainer` with planned training steps.

The Trainer runs the loop: epochs, schedule, logs, callbacks, evaluation, saving of weights. The planned step does
forward, backward, clipping and update. Options of the Trainer that need its own gradients or optimizer raise an error.
Like the Trainer it needs accelerate.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer

from ...api.distributed_step import DistributedStep
from ...api.parallelize import parallelize

Optimizers = Callable[[Iterable[tuple[str, nn.Parameter]]], torch.optim.Optimizer]


class DistributedTrainer(Trainer):
    """
    A Trainer that trains by `shardwright.parallelize`, on all ranks of a torchrun job.

    The global batch has `per_device_train_batch_size` rows for every rank, as usual; each rank loads all of it, in the
    order of the Trainer on one device. Weight decay, learning rate, `max_grad_norm` and ``bf16`` are taken from the
    arguments. The step is planned when training begins, and is then available as `step`.

    Args:
        parallelize: additional arguments of `shardwright.parallelize`, such as ``{"cluster": "cluster.toml",
            "micro_batches": 4}``.
        options: options of the Trainer.

    Raises:
        ValueError: an option of the Trainer is not supported by a planned step; the message suggests an alternative.
    """

    step: DistributedStep | None = None

    def __init__(self, *args: Any, parallelize: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._asked = dict(parallelize or {})
        given = self.args
        refused = {
            "gradient_accumulation_steps": given.gradient_accumulation_steps > 1,
            "fp16": given.fp16,
            "fsdp": bool(given.fsdp),
            "deepspeed": bool(given.deepspeed),
            "torch_compile": given.torch_compile,
            "label_smoothing_factor": given.label_smoothing_factor != 0,
            "auto_find_batch_size": given.auto_find_batch_size,
            "include_num_input_tokens_seen": given.include_num_input_tokens_seen != "no",
            "save_only_model=False": given.save_strategy != "no" and not given.save_only_model,
            "load_best_model_at_end": given.load_best_model_at_end,
            "compute_loss": type(self).compute_loss is not Trainer.compute_loss,
            "compute_loss_func": self.compute_loss_func is not None,
            "optimizers": self.optimizer is not None,
        }
        for name, is_asked in refused.items():
            if is_asked:
                raise ValueError(f"DistributedTrainer does not take {name}: {_INSTEAD.get(name, _LEFT_OUT)}")

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **options: Any) -> Any:
        """Train as the Trainer does; raise ValueError for resuming, or if it has already trained."""
        if resume_from_checkpoint:
            raise ValueError(
                "DistributedTrainer does not take resume_from_checkpoint: the states of the optimizer would be lost; "
                "load the weights into the model to start training from them"
            )
        if self.step is not None:
            raise ValueError(
                "this DistributedTrainer has already trained; create another, with a model that has its weights"
            )
        return super().train(None, *args, **options)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a loader of global batches, the same on every rank, in the order of one device."""
        data, rows = self._training_data()
        given = self.args
        loader = DataLoader(
            data,
            rows,
            sampler=self._get_train_sampler(data),
            collate_fn=self._collator(),
            num_workers=given.dataloader_num_workers,
            drop_last=True,
        )
        return prepare_data_loader(
            loader,
            given.device,
            num_processes=1,
            process_index=0,
            put_on_device=True,
            use_seedable_sampler=self.accelerator.use_seedable_sampler,
            data_seed=given.data_seed,
        )

    def _training_data(self) -> tuple[Any, int]:
        """Return the data set, and the number of rows of a global batch."""
        data: Any = self.train_dataset
        rows = self.args.train_batch_size * self.args.world_size
        if data is None or not hasattr(data, "__len__"):
            raise ValueError("DistributedTrainer takes a train_dataset with a length")
        if len(data) % rows and not self.args.dataloader_drop_last:
            raise ValueError(
                f"the train_dataset has {len(data)} samples, not a multiple of the {rows} rows of a global batch; the "
                "last batch of an epoch would need another program: set dataloader_drop_last=True"
            )
        return data, rows

    def _collator(self) -> Callable[[list[Any]], Any]:
        return self._get_collator_with_removed_columns(self.data_collator, description="training")

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Plan the step, and return an optimizer with the learning rates of the step's optimizer."""
        if self.step is None:
            data, rows = self._training_data()
            with torch.random.fork_rng():
                example = dict(self._collator()([data[index] for index in range(rows)]))
            example |= self._count(self._get_num_items_in_batch([example], self.args.device))
            asked = {"clip_norm": self.args.max_grad_norm or None, **self._asked}
            asked |= {"precision": "bf16-mixed"} if self.args.bf16 else {}
            trained: Any = self.model
            trained.train()
            self._flops = 6 * trained.num_parameters(exclude_embeddings=True) if _counts(trained) else 0
            self.step = parallelize(trained, None, self._optimizers(trained), example, **asked)
            self.optimizer = _Rates(self.step.optimizer)
        assert self.optimizer is not None
        return self.optimizer

    def _optimizers(self, model: nn.Module) -> Optimizers:
        """Return a function that makes the Trainer's usual optimizer."""
        kind, settings = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(self.args, model)  # pyright: ignore[reportArgumentType]
        decayed, decay = set(self.get_decay_parameter_names(model)), self.args.weight_decay

        def make(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
            named = [(name, parameter) for name, parameter in named_parameters if parameter.requires_grad]
            matrices = [parameter for name, parameter in named if name in decayed]
            others = [parameter for name, parameter in named if name not in decayed]
            groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
            return kind([group for group in groups if group["params"]], **settings)

        return make

    def _wrap_model(self, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        """Prevent accelerate from wrapping the module: the step trains, and the unwrapped module evaluates."""
        return _WrappedModule() if training and self.step is not None else model

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Train one step, including the update."""
        assert self.step is not None, "create_optimizer plans the step first"
        return self.step({**inputs, **self._count(num_items_in_batch)})

    def _count(self, items: Any) -> dict[str, Any]:
        """Return the number of labels in the global batch, for models that divide their loss by this number."""
        if items is None or not self.model_accepts_loss_kwargs:
            return {}
        # The Trainer sums the counts of all ranks, but each rank has counted the global batch.
        ranks = self.args.world_size if self.args.average_tokens_across_devices else 1
        return {"num_items_in_batch": torch.as_tensor(items, dtype=torch.float32) / ranks}

    def _clip_grad_norm(self, model: nn.Module) -> object:
        return self._get_grad_norm(model)

    def _get_grad_norm(self, model: nn.Module, grad_norm: object = None) -> object:
        """Return the norm that the step clipped, or None without clipping, which the Trainer does not log."""
        assert self.step is not None, "create_optimizer plans the step first"
        return self.step.metrics.get("grad_norm")

    def floating_point_ops(self, inputs: Mapping[str, Any]) -> int:
        """Return this rank's share of the operations: the Trainer sums over ranks, which all get the global batch."""
        name = getattr(self.model, "main_input_name", "input_ids")
        return self._flops * inputs[name].numel() // self.args.world_size if name in inputs else 0

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Evaluate as the Trainer does, with the trained weights."""
        with self._trained_module():
            return super().evaluate(*args, **options)

    def predict(self, *args: Any, **options: Any) -> Any:
        """Predict as the Trainer does, with the trained weights."""
        with self._trained_module():
            return super().predict(*args, **options)

    def save_model(self, *args: Any, **options: Any) -> None:
        """Save the full trained weights as the Trainer does; every rank must call this."""
        with self._trained_module():
            super().save_model(*args, **options)

    @contextmanager
    def _trained_module(self) -> Generator[None, None, None]:
        """Allow the use of the Trainer's module inside the context, with the trained weights."""
        if self.step is None:
            yield
            return
        with self.step.module() as model:
            mode = model.training
            yield
            model.train(mode)


_LEFT_OUT = "a planned step would silently ignore it"
_INSTEAD = {
    "gradient_accumulation_steps": "multiply per_device_train_batch_size by it, and give "
    'parallelize={"micro_batches": ...}',
    "fp16": 'use bf16=True, or give parallelize={"precision": "fp16-mixed"}',
    "fsdp": "the plan decides what is sharded",
    "deepspeed": "the plan decides what is sharded",
    "save_only_model=False": "states of the optimizer are not saved with the weights; use save_only_model=True, or "
    'save_strategy="no"',
    "optimizers": "use optimizer_cls_and_kwargs, with which the step is planned",
}


def _counts(model: nn.Module) -> bool:
    return hasattr(model, "num_parameters")


class _WrappedModule(nn.Module):
    """A stand-in for the wrapped module that the Trainer requires in training; it is never called."""


class _Rates(torch.optim.Optimizer):
    """
    An optimizer for the Trainer and its scheduler, with the parameter groups of ``step.optimizer``.

    Args:
        handle: the optimizer handle of the step.
    """

    def __init__(self, handle: torch.optim.Optimizer | None) -> None:
        assert handle is not None, "a step that trains has an optimizer"
        self._handle = handle
        super().__init__([torch.zeros(())], {})

    @property
    def param_groups(self) -> list[dict[str, object]]:
        """The handle's groups; assignments are ignored."""
        return self._handle.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, object]]) -> None: ...  # pyright: ignore[reportIncompatibleVariableOverride]

    def add_param_group(self, param_group: dict[str, object]) -> None:
        """Do nothing."""

    def step(self, closure: object = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Do nothing, because `DistributedTrainer.training_step` has updated the parameters."""

    def state_dict(self) -> dict[str, object]:
        """Return an empty dict, because the states belong to the step."""
        return {}

    def load_state_dict(self, state_dict: object) -> None:
        """Do nothing: accelerate only returns the empty state of `state_dict`."""
