"""Example batches for the inputs of a model: random tokens, images and sounds, with labels in the form of the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PretrainedConfig

IGNORED = -100
"""The label that losses ignore."""


@dataclass(frozen=True)
class BatchSizes:
    """
    The sizes of an example batch.

    Args:
        rows: number of rows of the global batch.
        length: number of tokens in a row of text.
        image: height and width of images, if the config has no size.
    """

    rows: int = 8
    length: int = 16
    image: int = 224


def language(config: PretrainedConfig, sizes: BatchSizes) -> dict[str, torch.Tensor]:
    """Return text with padding at the end of some rows, and a label per token, which is ignored at padding."""
    text = _text(config, sizes)
    labels = text["input_ids"].masked_fill(text["attention_mask"] == 0, IGNORED)
    return {**text, "labels": labels}


def text_classification(config: PretrainedConfig, sizes: BatchSizes) -> dict[str, torch.Tensor]:
    """Return text and a class per row."""
    return {**_text(config, sizes), "labels": _classes(config, sizes.rows)}


def token_classification(config: PretrainedConfig, sizes: BatchSizes) -> dict[str, torch.Tensor]:
    """Return text and a class per token."""
    return {**_text(config, sizes), "labels": _classes(config, sizes.rows, sizes.length)}


def question_answering(config: PretrainedConfig, sizes: BatchSizes) -> dict[str, torch.Tensor]:
    """Return text and the start and end of the answer in it."""
    ends = torch.randint(sizes.length, (2, sizes.rows), generator=_generator(2)).sort(dim=0).values
    return {**_text(config, sizes), "start_positions": ends[0].clone(), "end_positions": ends[1].clone()}


def image_classification(config: PretrainedConfig, sizes: BatchSizes) -> dict[str, torch.Tensor]:
    """Return images and a class per image."""
    return {"pixel_values": _images(config, sizes), "labels": _classes(config, sizes.rows)}


def segmentation(config: PretrainedConfig, sizes: BatchSizes) -> dict[str, torch.Tensor]:
    """Return images and a class per pixel."""
    pixels = _images(config, sizes)
    return {"pixel_values": pixels, "labels": _classes(config, sizes.rows, *pixels.shape[-2:])}


def masked_image(config: PretrainedConfig, sizes: BatchSizes) -> dict[str, torch.Tensor]:
    """Return images and a mask of their hidden patches."""
    pixels = _images(config, sizes)
    patches = pixels.size(-1) // config.patch_size * (pixels.size(-2) // config.patch_size)
    hidden = torch.randint(2, (sizes.rows, patches), generator=_generator(2)).bool()
    return {"pixel_values": pixels, "bool_masked_pos": hidden}


def contrastive(config: PretrainedConfig, sizes: BatchSizes) -> dict[str, torch.Tensor | bool]:
    """Return pairs of text and image."""
    pixels = _images(config.vision_config, sizes)
    return {**_text(config.text_config, sizes), "pixel_values": pixels, "return_loss": True}


def speech_seq2seq(config: PretrainedConfig, sizes: BatchSizes) -> dict[str, torch.Tensor]:
    """Return spectrograms of the encoder's full length, and the spoken text."""
    shape = (sizes.rows, config.num_mel_bins, 2 * config.max_source_positions)
    features = torch.randn(shape, generator=_generator(1))
    return {"input_features": features, "labels": language(config, sizes)["labels"]}


def audio_classification(config: PretrainedConfig, sizes: BatchSizes) -> dict[str, torch.Tensor]:
    """Return sounds and a class per sound."""
    return {**_sounds(config, sizes), "labels": _classes(config, sizes.rows)}


def speech_to_text(config: PretrainedConfig, sizes: BatchSizes) -> dict[str, torch.Tensor]:
    """Return sounds and the spoken symbols, fewer than the model's frames."""
    labels = torch.randint(1, config.vocab_size, (sizes.rows, 4), generator=_generator(2))
    return {**_sounds(config, sizes), "labels": labels}


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _text(config: PretrainedConfig, sizes: BatchSizes) -> dict[str, torch.Tensor]:
    vocabulary = config.get_text_config().vocab_size
    tokens = torch.randint(vocabulary, (sizes.rows, sizes.length), generator=_generator(0))
    lengths = sizes.length - torch.arange(sizes.rows) % 4
    return {"input_ids": tokens, "attention_mask": (torch.arange(sizes.length) < lengths[:, None]).long()}


def _images(config: PretrainedConfig, sizes: BatchSizes) -> torch.Tensor:
    side = getattr(config, "image_size", None) or sizes.image
    height, width = (side, side) if isinstance(side, int) else side
    return torch.randn((sizes.rows, config.num_channels, height, width), generator=_generator(1))


def _sounds(config: PretrainedConfig, sizes: BatchSizes) -> dict[str, torch.Tensor]:
    """Return waves with `length` frames, or spectrograms for a model without `conv_stride`."""
    if not hasattr(config, "conv_stride"):
        frames = 2 * config.max_source_positions if hasattr(config, "max_source_positions") else config.max_length
        bins = config.num_mel_bins
        if hasattr(config, "max_source_positions"):
            return {"input_features": torch.randn((sizes.rows, bins, frames), generator=_generator(1))}
        return {"input_values": torch.randn((sizes.rows, frames, bins), generator=_generator(1))}
    samples = sizes.length
    for kernel, stride in zip(reversed(config.conv_kernel), reversed(config.conv_stride), strict=True):
        samples = (samples - 1) * stride + kernel
    return {"input_values": torch.randn((sizes.rows, samples), generator=_generator(1))}


def _classes(config: PretrainedConfig, *shape: int) -> torch.Tensor:
    """Return a random class for each element of a tensor of this shape."""
    if config.num_labels is None:
        raise AttributeError("it has no num_labels")
    return torch.randint(config.num_labels, shape, generator=_generator(2))
