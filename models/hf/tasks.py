"""The training tasks of Hugging Face models: the classes with the loss, and their example batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from . import batches
from .batches import BatchSizes

if TYPE_CHECKING:
    from transformers import PretrainedConfig

MakeBatch = Callable[["PretrainedConfig", BatchSizes], Mapping[str, torch.Tensor | bool]]


@dataclass(frozen=True)
class TrainingTask:
    """
    A kind of training.

    Args:
        classes: the name of transformers' mapping from model types to the classes that have this loss.
        batch: a function from a config and sizes to an example batch.
    """

    classes: str
    batch: MakeBatch


TASKS: dict[str, TrainingTask] = {
    "speech-seq2seq": TrainingTask("MODEL_FOR_SPEECH_SEQ_2_SEQ", batches.speech_seq2seq),
    "seq2seq-lm": TrainingTask("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM", batches.language),
    "contrastive": TrainingTask("MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION", batches.contrastive),
    "masked-lm": TrainingTask("MODEL_FOR_MASKED_LM", batches.language),
    "causal-lm": TrainingTask("MODEL_FOR_CAUSAL_LM", batches.language),
    "image-classification": TrainingTask("MODEL_FOR_IMAGE_CLASSIFICATION", batches.image_classification),
    "audio-classification": TrainingTask("MODEL_FOR_AUDIO_CLASSIFICATION", batches.audio_classification),
    "semantic-segmentation": TrainingTask("MODEL_FOR_SEMANTIC_SEGMENTATION", batches.segmentation),
    "ctc": TrainingTask("MODEL_FOR_CTC", batches.speech_to_text),
    "sequence-classification": TrainingTask("MODEL_FOR_SEQUENCE_CLASSIFICATION", batches.text_classification),
    "token-classification": TrainingTask("MODEL_FOR_TOKEN_CLASSIFICATION", batches.token_classification),
    "question-answering": TrainingTask("MODEL_FOR_QUESTION_ANSWERING", batches.question_answering),
    "masked-image": TrainingTask("MODEL_FOR_MASKED_IMAGE_MODELING", batches.masked_image),
}
"""The tasks by name; if a model supports several, the first is the default."""


class HFError(ValueError):
    """An error that reports that a Hugging Face model cannot become a training step, with the reason and a remedy."""


def class_for(config: PretrainedConfig, task: str | None) -> tuple[str, str]:
    """
    Return the task of a config, and the name of the class that has its loss.

    Args:
        config: the config, whose `architectures` decide if they name a trainable class.
        task: a key of `TASKS`; by default the config decides.

    Raises:
        HFError: no such task, or none for this model.
    """
    possible = dict(_classes(config.model_type))
    if task is None:
        if not possible:
            raise HFError(
                f"no task is known for the model type {config.model_type!r}; build the model yourself and give "
                "from_hf(model, batch) a batch that makes it return a loss"
            )
        named = [(key, name) for key, name in possible.items() if name in (config.architectures or ())]
        as_decoder = [(key, possible[key]) for key in ("causal-lm",) if getattr(config, "is_decoder", False)]
        return (*named, *(pair for pair in as_decoder if pair[0] in possible), *possible.items())[0]
    if task not in TASKS:
        raise HFError(f"there is no task {task!r}; choose one of {', '.join(TASKS)}")
    if task not in possible:
        offered = ", ".join(possible) or "none"
        raise HFError(f"transformers has no class of {config.model_type!r} for {task!r}; it has one for: {offered}")
    return task, possible[task]


def task_of(model: Any) -> str | None:
    """Return the task of a model's class, or None if it is unknown."""
    return next((key for key, name in _classes(model.config.model_type) if name == type(model).__name__), None)


def example_batch(task: str, config: PretrainedConfig, sizes: BatchSizes) -> dict[str, torch.Tensor | bool]:
    """
    Return an example batch for a task.

    Raises:
        HFError: the config lacks a size that the batch needs.
    """
    try:
        return dict(TASKS[task].batch(config, sizes))
    except AttributeError as error:
        raise HFError(
            f"cannot make an example batch of a {config.model_type!r} for {task!r}: {error}; give "
            "from_hf(..., batch) an example batch"
        ) from error


def _classes(model_type: str) -> Iterator[tuple[str, str]]:
    """Yield the tasks that have a class in transformers, with the name of the class."""
    from transformers.models.auto import modeling_auto

    for key, task in TASKS.items():
        mapping: Mapping[str, Any] = getattr(modeling_auto, f"{task.classes}_MAPPING_NAMES")
        names = mapping.get(model_type)
        if names is not None:
            yield key, names if isinstance(names, str) else names[0]
