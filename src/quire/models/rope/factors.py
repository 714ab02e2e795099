"""Chooses between the factors of longrope by the longest context of an engine.

Up to the length of the original training, a model takes its short factors, and the long ones
beyond: for all tokens, as a token's K and V must not depend on the length that its request reaches
later. Called by planning. Source: vLLM, `Phi3LongRoPEScaledRotaryEmbedding`.
"""

from __future__ import annotations

from quire.models.description import ModelDescription
from quire.models.rope.settings import SHORT_FACTORS
from quire.models.text_part import with_text_keys


def with_rope_factors(model: ModelDescription, max_model_len: int) -> ModelDescription:
    """Return the model with the factors for this longest context."""
    short = model.facts.short_rope_len
    is_short = short is not None and max_model_len <= short
    if is_short == bool(model.text.get(SHORT_FACTORS)):
        return model
    return ModelDescription(with_text_keys(model.hf_config, {SHORT_FACTORS: is_short}))


def rope_factors(model: ModelDescription, max_model_len: int) -> str | None:
    """Return for users which factors were taken, and why; None: the model has one set."""
    short, longest = model.facts.short_rope_len, model.facts.max_model_len
    if short is None or short == longest:
        return None
    if max_model_len > short:
        return (
            f"long, for all texts, because max_model_len is above the original {short}; "
            f"max_model_len={short} takes the short ones"
        )
    return (
        f"short, because max_model_len is at most the original {short}; a larger one, up to "
        f"{longest}, takes the long ones for all texts"
    )
