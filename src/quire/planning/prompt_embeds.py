"""Whether an engine takes prompts of embeddings, and how wide their rows are."""

from __future__ import annotations

from typing import Any

from quire.errors import ConfigError, quoted
from quire.planning.checkpoint import Checkpoint
from quire.program import Embed, EmbedSlices


def prompt_embeds_width(enabled: Any, checkpoint: Checkpoint) -> int | None:
    """Numbers of a row of `prompt_embeds`; None: they are not asked for. Raises ConfigError for a
    model that cannot take them."""
    if not isinstance(enabled, bool):
        raise ConfigError(f"enable_prompt_embeds must be True or False, got {quoted(enabled)}")
    if not enabled:
        return None
    ops, reason = checkpoint.model.program.ops, None
    widths = {op.out.dim for op in ops if isinstance(op, Embed)}
    if checkpoint.pooling is not None:
        reason = "a model that pools takes texts and token ids alone"
    elif checkpoint.model.is_transformers:
        reason = "a model that transformers computes takes token ids alone"
    elif any(isinstance(op, EmbedSlices) for op in ops) or len(widths) != 1:
        reason = "every layer of this model looks up the token id"
    if reason is not None:
        raise ConfigError(f"enable_prompt_embeds must be left out: {reason}")
    return widths.pop()
