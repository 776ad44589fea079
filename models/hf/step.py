"""`from_hf`: makes a training step from a Hugging Face model, its config, or the name of its type."""

from __future__ import annotations

import copy
import json
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import torch
from torch import nn

from ...api.step_names import unknown_type
from ...api.training_step import LossFunction, TrainingStep
from .batches import BatchSizes
from .tasks import HFError, class_for, example_batch, task_of
from .tiny import TINY, Tiny

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

_ASIDE = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id", "num_labels", "problem_type")
"""Settings that every config accepts, even if its class does not name them."""

ADAMW = partial(torch.optim.AdamW, lr=3e-4)


@dataclass(frozen=True)
class _Untrained:
    """A function that makes a model with random weights; under fake tensors it allocates nothing."""

    config: PretrainedConfig
    name: str

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self) -> nn.Module:
        import transformers

        model = getattr(transformers, self.name)._from_config(copy.deepcopy(self.config))
        return model.train()


def from_hf(
    source: Any,
    batch: dict[str, Any] | None = None,
    *,
    task: str | None = None,
    loss: LossFunction | None = None,
    optimizer: Optimizer = ADAMW,
    dropout: float | None = None,
    rows: int | None = None,
    length: int | None = None,
    image: int | None = None,
    **overrides: Any,
) -> TrainingStep:
    """
    Return the training step of a Hugging Face model.

    Args:
        source: a `PreTrainedModel`, which is trained as it is; a `PretrainedConfig`; or the name of a model type, such
            as ``llama``, for its default config, or a name in `TINY`. The weights of a config are not allocated before
            a program runs.
        batch: an example of the global batch, by the names of the model's arguments, including labels; by default it is
            generated for the task.
        task: the task of the training, a key of `tasks.TASKS`; by default the task of the config's architectures, or
            the first that transformers has a class for. A model's class already determines its task.
        loss: as in `TrainingStep`; by default the loss that the model returns, with auxiliary losses if the config
            enables them.
        dropout: the value of every dropout probability (also of stochastic depth and skipped layers); by default the
            values of the config. It does not apply to an existing model.
        rows, length, image: sizes of a generated example batch: rows of the global batch (8), tokens of a row (16),
            height and width of an image if the config has none (224).
        overrides: changes of the config, by attribute; a dotted name refers to a nested config
            (`text_config.hidden_size`).

    Raises:
        HFError: there is no such model type, setting or task, or transformers is not installed.
    """
    try:
        import_module("transformers")
    except ImportError as error:
        raise HFError(f"Hugging Face models need transformers ({error}): pip install 'shardwright[hf]'") from error
    preset = BatchSizes()
    if isinstance(source, str):
        source, preset = _named(source, overrides)
        overrides = {}
    sizes = BatchSizes(rows or preset.rows, length or preset.length, image or preset.image)
    if isinstance(source, nn.Module):
        if overrides or dropout is not None:
            raise HFError(f"the {type(source).__name__} already exists; change its config before creating it")
        return TrainingStep(source, loss, optimizer, batch or _batch_of_model(source, task, sizes))
    config = _overridden(source, overrides)
    _complete(config)
    if dropout is not None:
        _set_dropout(config, dropout)
    task, name = class_for(config, task)
    return TrainingStep(_Untrained(config, name), loss, optimizer, batch or example_batch(task, config, sizes))


def hf_step(spec: str) -> TrainingStep:
    """
    Return the step that a command line names: ``llama``, or ``llama?hidden_size=64&num_hidden_layers=2&rows=32``.

    The settings after the question mark are keyword arguments of `from_hf`, including overrides of the config; values
    are JSON, or otherwise text.

    Raises:
        HFError: as in `from_hf`, or the settings are not of this form.
    """
    name, _, query = spec.partition("?")
    try:
        settings = dict(parse_qsl(query, strict_parsing=bool(query), keep_blank_values=True))
    except ValueError as error:
        raise HFError(f"'{query}' is not of the form name=value&name=value") from error
    if refused := {"source", "batch", "loss", "optimizer"} & set(settings):
        raise HFError(f"{', '.join(sorted(refused))} cannot be given in a name; call shardwright.from_hf in a script")
    return from_hf(name, **{key: _value(text) for key, text in settings.items()})


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _named(name: str, overrides: dict[str, object]) -> tuple[PretrainedConfig, BatchSizes]:
    """Return the config that a name stands for, with overrides, and the sizes of its example batch."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    tiny = TINY.get(name, Tiny(name, sizes=BatchSizes()))
    if tiny.model_type not in CONFIG_MAPPING:
        raise HFError(unknown_type(name, [*CONFIG_MAPPING, *TINY]))
    _check_known(AutoConfig.for_model(tiny.model_type), overrides)
    # Overrides go to the constructor, because the class derives some settings from others.
    nested: dict[str, Any] = {}
    for path, value in {**tiny.overrides, **overrides}.items():
        *inner, name = path.split(".")
        owner = nested
        for step in inner:
            owner = owner.setdefault(step, {})
        owner[name] = value
    return AutoConfig.for_model(tiny.model_type, **nested), tiny.sizes


def _overridden(config: PretrainedConfig, overrides: dict[str, object]) -> PretrainedConfig:
    """Return a copy of a config with some settings changed."""
    _check_known(config, overrides)
    config = copy.deepcopy(config)
    for path, value in overrides.items():
        owner, _, name = path.rpartition(".")
        setattr(operator.attrgetter(owner)(config) if owner else config, name, value)
    return config


def _check_known(config: PretrainedConfig, overrides: dict[str, object]) -> None:
    """Raise HFError for a setting that a config does not have."""
    for path in overrides:
        owner, _, name = path.rpartition(".")
        try:
            inner = operator.attrgetter(owner)(config) if owner else config
        except AttributeError:
            inner = None
        if not hasattr(inner, name) and not (inner is not None and name in _ASIDE):
            known = ", ".join(sorted(key for key in vars(inner or config) if not key.startswith("_")))
            raise HFError(f"the config of {config.model_type!r} has no {path!r}; it has {known}")


def _complete(config: PretrainedConfig) -> None:
    """Set settings that training needs and that many configs leave open."""
    config.use_cache = False  # the cache of keys and values is for generation only
    if config.is_encoder_decoder:
        for name in ("pad_token_id", "decoder_start_token_id"):
            if getattr(config, name, None) is None:
                setattr(config, name, getattr(config, "pad_token_id", None) or 0)


def _set_dropout(config: PretrainedConfig, p: float) -> None:
    """Set every dropout probability, also in nested configs."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            _set_dropout(value, p)
        elif "drop" in name and isinstance(value, float):
            setattr(config, name, float(p))


def _batch_of_model(model: nn.Module, task: str | None, sizes: BatchSizes) -> dict[str, torch.Tensor | bool]:
    config: Any = model.config
    if (task := task or task_of(model)) is None:
        raise HFError(
            f"the training task of a {type(model).__name__} is unknown; give from_hf(model, batch) a batch that makes "
            "it return a loss, or use a class with a loss (AutoModelForCausalLM, ...)"
        )
    return example_batch(task, config, sizes)
