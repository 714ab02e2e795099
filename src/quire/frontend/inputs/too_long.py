"""Errors for prompts that do not fit into the context, in vLLM's words, which clients match.

Raised by the engine's front end and by the server, which checks texts before tokenizing them.
"""

from __future__ import annotations

from quire.errors import PromptError

_LESS = "Please reduce the length of the input prompt."


def prompt_too_long(num_tokens: int, max_model_len: int, *, is_whole: bool = True) -> PromptError:
    """The error for a prompt of `num_tokens` tokens. `is_whole`: False if it has even more."""
    count = f"{num_tokens}" if is_whole else f"at least {num_tokens}"
    excess = (
        "which leaves no room for output tokens"
        if num_tokens == max_model_len
        else "which exceeds this limit even without any output tokens"
    )
    return PromptError(
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
        f"contains {count} input tokens, {excess}. {_LESS}",
        parameter="input_tokens",
        value=num_tokens,
    )


def prompt_fills_context(max_model_len: int) -> PromptError:
    """The error for a prompt that fills the whole context, outside a server."""
    return PromptError(
        f"The decoder prompt (length {max_model_len}) plus the number of requested output tokens "
        f"(at least 1) is longer than the maximum model length of {max_model_len}. Make sure that "
        "`max_model_len` is no smaller than the number of text tokens (prompt + requested output "
        f"tokens). {_LESS}",
        parameter="input_tokens",
        value=max_model_len,
    )


def text_fills_model(num_tokens: int, max_model_len: int) -> PromptError:
    """The error for a text that is longer than a pooling model's longest."""
    return PromptError(
        f"This model's maximum context length is {max_model_len} tokens. However, your text "
        f"contains {num_tokens} input tokens. {_LESS} Or set truncate_prompt_tokens=-1 to cut it, "
        "or start the engine with pooler_config {'enable_chunked_processing': true} to average the "
        "vectors of its pieces.",
        parameter="input_tokens",
        value=num_tokens,
    )


def text_too_long(num_bytes: int, max_bytes: int, max_model_len: int) -> PromptError:
    """The error for a text that is too long for any tokenization to fit."""
    return PromptError(
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
        f"contains {num_bytes} bytes (more than {max_bytes} bytes, which is the upper bound for "
        f"{max_model_len} input tokens). {_LESS}",
        parameter="input_text",
        value=num_bytes,
    )
