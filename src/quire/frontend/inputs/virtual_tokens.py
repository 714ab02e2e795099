"""`VirtualTokens`: the tokens that a prompt adapter puts before a prompt."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from quire.adapters.prompt_request import PromptAdapterRequest
from quire.config.records import ModelConfig
from quire.errors import RequestError
from quire.frontend.inputs.prompt_embeds import PLACEHOLDER
from quire.frontend.inputs.prompt_parser import ParsedPrompt
from quire.frontend.inputs.too_long import prompt_fills_context, prompt_too_long
from quire.params import SamplingParams
from quire.protocol import InputRows


@dataclass(frozen=True, slots=True)
class VirtualTokens:
    """A prompt as the engine core gets it: placeholders of virtual tokens, then the prompt's own
    tokens."""

    count: int
    token_ids: list[int]
    input_rows: list[InputRows]

    @classmethod
    def of(
        cls,
        adapter: PromptAdapterRequest | None,
        prompt: ParsedPrompt,
        params: SamplingParams,
        model: ModelConfig,
    ) -> VirtualTokens:
        """The tokens of a prompt with its adapter, if it has one. Raises RequestError if they do
        not fit into the context, and for what cannot be combined."""
        if adapter is None:
            return cls(0, prompt.token_ids, prompt.input_rows)
        if params.prompt_logprobs is not None:
            raise RequestError(
                "prompt_logprobs is not compatible with prompt adapters.",
                parameter="prompt_logprobs",
            )
        count = adapter.prompt_adapter_num_virtual_tokens
        total, limit = count + len(prompt.token_ids), model.max_model_len
        if total > limit:
            raise prompt_too_long(total, limit)
        if total == limit:
            raise prompt_fills_context(limit)
        rows = [msgspec.structs.replace(one, first=one.first + count) for one in prompt.input_rows]
        token_ids = [PLACEHOLDER] * count + prompt.token_ids
        return cls(count, token_ids, [InputRows(0, count, b""), *rows])
