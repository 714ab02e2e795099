"""Whether an engine takes rows in place of embeddings: `prompt_embeds` and prompt adapters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quire.adapters.config import PromptAdapterConfig, prompt_adapter_config
from quire.backends.given_rows import RowWidths
from quire.config.engine_args import EngineArgs
from quire.errors import ConfigError, quoted
from quire.program import Embed, EmbedSlices

if TYPE_CHECKING:
    from quire.planning.checkpoint import Checkpoint


def prompt_embeds_width(enabled: Any, checkpoint: Checkpoint) -> int | None:
    """Numbers of a row of `prompt_embeds`; None: they are not asked for. Raises ConfigError for a
    model that cannot take them."""
    if not isinstance(enabled, bool):
        raise ConfigError(f"enable_prompt_embeds must be True or False, got {quoted(enabled)}")
    return _widths("enable_prompt_embeds", checkpoint).embedding if enabled else None


def prompt_adapters(args: EngineArgs, checkpoint: Checkpoint) -> PromptAdapterConfig | None:
    """The limits of prompt adapters; None: they are not asked for. Raises ConfigError for a model
    that cannot take them."""
    config = prompt_adapter_config(
        enable_prompt_adapter=args.enable_prompt_adapter,
        max_prompt_adapters=args.max_prompt_adapters,
        max_prompt_adapter_token=args.max_prompt_adapter_token,
    )
    if config is None:
        return None
    widths = _widths("enable_prompt_adapter", checkpoint)
    return replace(config, token_bytes=4 * max(widths.embedding, widths.kv))


def _widths(argument: str, checkpoint: Checkpoint) -> RowWidths:
    """The widths of rows. Raises ConfigError for a model that takes none."""
    ops, reason = checkpoint.model.program.ops, None
    if checkpoint.pooling is not None:
        reason = "a model that pools takes texts and token ids alone"
    elif checkpoint.model.is_transformers:
        reason = "a model that transformers computes takes token ids alone"
    elif any(isinstance(op, EmbedSlices) for op in ops) or not any(
        isinstance(op, Embed) for op in ops
    ):
        reason = "every layer of this model looks up the token id"
    if reason is not None:
        raise ConfigError(f"{argument} must be left out: {reason}")
    return RowWidths.of(checkpoint.model.program)
