"""Texts of refusals: what a model cannot do and what works instead; prompts that are too long."""

from __future__ import annotations

from collections.abc import Mapping

from quire.config.pooling import PoolingConfig
from quire.config.records import ModelConfig
from quire.errors import PromptError, RequestError, quoted
from quire.params import SamplingParams

_METHODS: Mapping[str, str] = {
    "embed": "LLM.embed, LLM.score (POST /v1/embeddings, /pooling, /score, /rerank)",
    "classify": "LLM.classify (POST /classify, /pooling)",
    "token_embed": "LLM.encode, LLM.score (POST /pooling, /score, /rerank)",
    "token_classify": "LLM.encode (POST /pooling)",
}
_RERANKS = "LLM.score (POST /score, /rerank), LLM.classify (POST /classify, /pooling)"


def works(pooling: PoolingConfig) -> str:
    """The methods and routes for the task of a pooling model."""
    if pooling.is_sparse:
        return "LLM.encode (POST /embed_sparse, /pooling)"
    return _RERANKS if pooling.scoring == "cross-encoder" else _METHODS[pooling.task]


def cannot_generate(model: ModelConfig) -> str:
    """The error for a request for text to a model that pools."""
    pooling = model.pooling
    what = "" if pooling is None else f"; use {works(pooling)}"
    return f"{quoted(model.served_model_name[0])} is a pooling model and generates no text{what}"


def only_hears(model: ModelConfig) -> str:
    """The error for a request without a sound to a model of Whisper's kind."""
    return (
        f"{quoted(model.served_model_name[0])} writes down what it hears: send a sound to "
        "POST /v1/audio/transcriptions, use `quire transcribe FILES`, or give LLM.generate a "
        "prompt with multi_modal_data={'audio': samples}"
    )


def cannot_pool(model: ModelConfig) -> str:
    """The error for a request for vectors or classes to a model that generates."""
    if model.num_sources:
        return only_hears(model)
    return (
        f"{quoted(model.served_model_name[0])} generates text and gives no vectors or classes; use "
        "LLM.generate or LLM.chat (POST /v1/completions, /v1/chat/completions), or start the "
        "engine with runner='pooling' and convert='embed'"
    )


def wrong_task(model: ModelConfig, wanted: str) -> str:
    """The error for a method or route of another pooling task."""
    pooling = model.pooling
    if pooling is None:
        return cannot_pool(model)
    message = (
        f"The model does not support the {wanted} task; its task is {pooling.task}: use "
        f"{works(pooling)}"
    )
    if wanted == f"token_{pooling.task}":
        message += f", or start the engine with pooler_config={{'task': '{wanted}'}}"
    return message


LESS = "Please reduce the length of the input prompt."


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
        f"contains {count} input tokens, {excess}. {LESS}",
        parameter="input_tokens",
        value=num_tokens,
    )


def prompt_fills_context(max_model_len: int) -> PromptError:
    """The error for a prompt that fills the whole context, outside a server."""
    return PromptError(
        f"The decoder prompt (length {max_model_len}) plus the number of requested output tokens "
        f"(at least 1) is longer than the maximum model length of {max_model_len}. Make sure that "
        "`max_model_len` is no smaller than the number of text tokens (prompt + requested output "
        f"tokens). {LESS}",
        parameter="input_tokens",
        value=max_model_len,
    )


def text_too_long(num_bytes: int, max_bytes: int, max_model_len: int) -> PromptError:
    """The error for a text that is too long for any tokenization to fit."""
    return PromptError(
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
        f"contains {num_bytes} bytes (more than {max_bytes} bytes, which is the upper bound for "
        f"{max_model_len} input tokens). {LESS}",
        parameter="input_text",
        value=num_bytes,
    )


def check_text(num_tokens: int, pooling: PoolingConfig, max_model_len: int) -> None:
    """Raises PromptError for a text that is longer than the longest of a pooling task."""
    longest = pooling.longest_text(max_model_len)
    if longest is None or num_tokens <= longest:
        return
    pieces = (
        ", or start the engine with pooler_config {'enable_chunked_processing': true} to average "
        "the vectors of its pieces"
    )
    raise PromptError(
        f"This model's maximum context length is {longest} tokens. However, your text "
        f"contains {num_tokens} input tokens. {LESS} Or set truncate_prompt_tokens=-1 to cut it"
        f"{pieces * (pooling.task == 'embed')}.",
        parameter="input_tokens",
        value=num_tokens,
    )


def check_without_tokenizer(params: SamplingParams) -> None:
    """Raises RequestError for parameters that need a tokenizer."""
    for name in ("stop", "bad_words"):
        if getattr(params, name):
            raise RequestError(
                f"{name} strings require a tokenizer: start without skip_tokenizer_init",
                parameter=name,
                value=getattr(params, name),
            )
    if params.structured_outputs is not None:
        raise RequestError(
            "Structured outputs requires a tokenizer so it can't be used with "
            "'skip_tokenizer_init'",
            parameter="structured_outputs",
        )
