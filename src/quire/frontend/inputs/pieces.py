"""Core requests that differ from their prompt: texts that are cut into pieces, and virtual tokens;
and `late_chunks`, the places of the pieces of a text whose tokens' vectors are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from quire.adapters.request import PromptAdapterRequest
from quire.config.records import ModelConfig
from quire.errors import RequestError
from quire.frontend.inputs.prompt_embeds import PLACEHOLDER
from quire.frontend.inputs.prompt_parser import ParsedPrompt
from quire.frontend.inputs.refusals import only_hears, prompt_fills_context, prompt_too_long
from quire.outputs.pooling import LateChunk, LateChunkingMetadata
from quire.params import SamplingParams
from quire.protocol import EngineCoreRequest, InputRows
from quire.tokenizer import Tokenizer


def pieces(request: EngineCoreRequest, max_model_len: int) -> list[EngineCoreRequest]:
    """The request, or one for each `max_model_len` tokens of a longer text."""
    ids, params = request.prompt_token_ids, request.pooling_params
    if len(ids) <= max_model_len or params is None:
        return [request]
    found = []
    for index, start in enumerate(range(0, len(ids), max_model_len)):
        own = params.clone()
        own.token_type_ids = params.token_type_ids[start : start + max_model_len]
        found.append(
            msgspec.structs.replace(
                request,
                request_id=f"{request.request_id}.{index}",
                prompt_token_ids=ids[start : start + max_model_len],
                pooling_params=own,
            )
        )
    return found


def with_virtual_tokens(
    adapter: PromptAdapterRequest, prompt: ParsedPrompt, params: SamplingParams, model: ModelConfig
) -> ParsedPrompt:
    """The prompt as the engine core gets it: placeholders of the adapter's virtual tokens, then its
    own tokens. Raises RequestError if they do not fit into the context, and for what cannot be
    combined."""
    if params.prompt_logprobs is not None:
        raise RequestError(
            "prompt_logprobs is not compatible with prompt adapters.", parameter="prompt_logprobs"
        )
    count = adapter.prompt_adapter_num_virtual_tokens
    total, limit = count + len(prompt.token_ids), model.max_model_len
    if total > limit:
        raise prompt_too_long(total, limit)
    if total == limit:
        raise prompt_fills_context(limit)
    rows = [msgspec.structs.replace(one, first=one.first + count) for one in prompt.input_rows]
    return replace(
        prompt,
        token_ids=[PLACEHOLDER] * count + prompt.token_ids,
        input_rows=[InputRows(0, count, b""), *rows],
    )


def with_sources(prompt: ParsedPrompt, model: ModelConfig) -> ParsedPrompt:
    """The prompt as the engine core gets it: placeholders of the rows of an encoder, then its own
    tokens. Raises RequestError if it has no rows."""
    if sum(one.count for one in prompt.input_rows) != model.num_sources:
        raise RequestError(only_hears(model), parameter="multi_modal_data")
    return replace(prompt, token_ids=[PLACEHOLDER] * model.num_sources + prompt.token_ids)


def late_chunks(
    tokenizer: Tokenizer | None,
    text: str | None,
    token_ids: Sequence[int],
    chunk_size: int,
    *,
    add_special_tokens: bool,
) -> LateChunkingMetadata:
    """The pieces of `chunk_size` tokens, special tokens included, with their places in the text.
    Raises RequestError unless the tokens are those of the whole text."""
    if tokenizer is None or not text:
        raise _error("needs texts, not token ids")
    found = tokenizer.backend.encode(text, add_special_tokens=add_special_tokens)
    if found.ids != list(token_ids):
        raise _error("needs a whole text, and a tokenizer that knows where its tokens are")
    chunks = []
    for begin in range(0, len(token_ids), chunk_size):
        end = min(begin + chunk_size, len(token_ids))
        places = [place for place in found.offsets[begin:end] if place[0] < place[1]]
        chars = (min(a for a, _ in places), max(b for _, b in places)) if places else None
        chunks.append(LateChunk((begin, end), chars))
    return LateChunkingMetadata(chunk_size, len(token_ids), chunks)


def _error(why: str) -> RequestError:
    return RequestError(f"late_chunking_params {why}", parameter="late_chunking_params")
