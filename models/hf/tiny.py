"""
Tiny configs of many architectures, by name: `from_hf("bert-tiny")`, `shardwright check hf:bert-tiny --mesh 2x2`.

Each has the structure of its published siblings at a size for tests, without dropout. Four heads and a batch of eight
divide evenly, the odd vocabulary does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .batches import BatchSizes

_SIZES = BatchSizes(rows=8, length=12, image=32)


@dataclass(frozen=True)
class Tiny:
    """A model type, the changes of its default config, and the sizes of an example batch."""

    model_type: str
    overrides: dict[str, Any] = field(default_factory=dict)
    sizes: BatchSizes = _SIZES


_TEXT = {
    "vocab_size": 101,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ENCODER = {
    **_TEXT,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_DECODER = {**_TEXT, "intermediate_size": 64, "max_position_embeddings": 32}
_GROUPED = {**_DECODER, "num_key_value_heads": 2}
_PATCHES = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
_VISION = {
    **_PATCHES,
    "num_labels": 10,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_SEQ2SEQ = {
    "vocab_size": 101,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}

_CONFIGS: Mapping[str, dict[str, Any]] = {
    "bert": _ENCODER,
    "roberta": {**_ENCODER, "type_vocab_size": 2},
    "distilbert": {
        "vocab_size": 101,
        "dim": 32,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 64,
        "max_position_embeddings": 32,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    },
    "albert": {**_ENCODER, "embedding_size": 16},
    "gpt2": {
        "vocab_size": 101,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 32,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
    "gpt_neox": _DECODER,
    "opt": {
        **_TEXT,
        "ffn_dim": 64,
        "word_embed_proj_dim": 32,
        "max_position_embeddings": 32,
        "dropout": 0.0,
    },
    "bloom": {"vocab_size": 101, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "falcon": _TEXT,
    "phi": _DECODER,
    "llama": _GROUPED,
    "mistral": {**_GROUPED, "sliding_window": 8},
    "mixtral": {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True},
    "qwen2": _GROUPED,
    "gemma": {**_GROUPED, "head_dim": 8},
    "t5": {
        "vocab_size": 101,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "num_heads": 4,
        "dropout_rate": 0.0,
    },
    "bart": {**_SEQ2SEQ, "max_position_embeddings": 32},
    "vit": _VISION,
    "deit": _VISION,
    "swin": {
        "image_size": 32,
        "num_labels": 10,
        "patch_size": 2,
        "embed_dim": 16,
        "depths": [2, 2],
        "num_heads": [2, 4],
        "window_size": 4,
        "drop_path_rate": 0.0,
    },
    "resnet": {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 2], "num_labels": 10},
    "convnext": {"image_size": 32, "num_labels": 10, "hidden_sizes": [16, 32], "depths": [1, 2], "num_stages": 2},
    "clip": {
        **{f"text_config.{key}": value for key, value in _DECODER.items()},
        **{f"vision_config.{key}": value for key, value in _PATCHES.items()},
        "projection_dim": 16,
    },
    "whisper": {**_SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 32},
    # Additional architectures.
    "deberta-v2": {**_ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 4},
    "electra": {**_ENCODER, "embedding_size": 16},
    "mpt": {"vocab_size": 101, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 32},
    "stablelm": _GROUPED,
    "olmo": _GROUPED,
    "qwen3": {**_GROUPED, "head_dim": 8},
    "gemma2": {**_GROUPED, "head_dim": 8, "sliding_window": 8},
    "gemma3_text": {**_GROUPED, "head_dim": 8, "sliding_window": 8},
    "segformer": {
        "num_labels": 10,
        "hidden_sizes": [8, 16, 24, 32],
        "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 2, 2, 4],
        "decoder_hidden_size": 16,
        "hidden_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.0,
        "drop_path_rate": 0.0,
    },
    "dinov2": {key: value for key, value in _VISION.items() if key != "intermediate_size"},
    "wav2vec2": {
        "vocab_size": 33,
        "num_labels": 10,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "conv_dim": [16, 16, 16],
        "conv_kernel": [4, 3, 2],
        "conv_stride": [2, 2, 2],
        "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2,
        "classifier_proj_size": 16,
        "apply_spec_augment": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "feat_proj_dropout": 0.0,
        "final_dropout": 0.0,
        "layerdrop": 0.0,
    },
    "xlnet": {"vocab_size": 101, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64, "dropout": 0.0},
    "pegasus": {**_SEQ2SEQ, "max_position_embeddings": 32},
    "mamba": {"vocab_size": 101, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
}
"""The changes of the default config, by model type."""

TINY: dict[str, Tiny] = {f"{name}-tiny": Tiny(name, overrides) for name, overrides in _CONFIGS.items()}
"""The tiny configs, by name."""
