"""Tiny random checkpoints of Whisper, and what transformers computes with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from quire.tokenizer.whisper_tokens import WhisperTokens

RATE = 16_000
_SIZES: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 80, "vocab_size": 300,
    "num_mel_bins": 80, "max_source_positions": 1500, "max_target_positions": 60,
    "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 4,
    "init_std": 0.3, "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "whisper": {},
    "large-v3": {"num_mel_bins": 128, "vocab_size": 301},
    "distil": {"decoder_layers": 1, "encoder_layers": 3},
    "turbo": {"decoder_layers": 1, "num_mel_bins": 128, "activation_function": "relu"},
    "scaled": {"scale_embedding": True, "tie_word_embeddings": False},
}

TOKENS = WhisperTokens(
    sot=4, eot=3, transcribe=5, translate=6, sot_prev=9, no_speech=7, no_timestamps=199,
    first_timestamp=200, languages={"en": 10}, suppress=(11, 12), begin_suppress=(13, 3),
    alignment_heads=(), max_initial_timestamp_index=20, is_multilingual=True,
)  # fmt: skip
"""Of these checkpoints, which have no tokenizer."""


def write(path: Path, name: str = "whisper", **changes: Any) -> Any:
    """Write a checkpoint and return transformers' model."""
    torch.manual_seed(7)
    config = transformers.WhisperConfig(**{**_SIZES, **CASES[name], **changes})
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape) * 0.2)
    model.generation_config.suppress_tokens = None
    model.generation_config.begin_suppress_tokens = None
    model.save_pretrained(path)
    extractor = transformers.WhisperFeatureExtractor(feature_size=config.num_mel_bins)
    extractor.save_pretrained(path)
    return model


def sound(seconds: float, seed: int = 0) -> Any:
    """Noise."""
    return np.random.default_rng(seed).normal(0, 0.2, round(seconds * RATE)).astype(np.float32)


def features(model: Any, samples: Any) -> torch.Tensor:
    """The spectrum that transformers computes [1, bins, frames]."""
    extractor = transformers.WhisperFeatureExtractor(feature_size=model.config.num_mel_bins)
    given = extractor(samples, sampling_rate=RATE, return_tensors="pt")
    found: torch.Tensor = given["input_features"]
    return found


def logprobs(model: Any, samples: Any, token_ids: Sequence[int]) -> Any:
    """The log-probabilities [tokens, vocabulary] after each of the decoder's tokens."""
    with torch.no_grad():
        found = model(features(model, samples), decoder_input_ids=torch.tensor([[*token_ids]]))
    return torch.log_softmax(found.logits[0].double(), -1).numpy()
