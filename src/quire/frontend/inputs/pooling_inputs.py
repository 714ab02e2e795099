"""`PoolingInputs`: validates requests for vectors, classes and scores.

A part of `InputProcessor`. Makes the core requests, several for a long text.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from quire.config.records import ModelConfig
from quire.errors import RequestError
from quire.frontend.arguments import EngineInput, RequestOptions
from quire.frontend.inputs.pieces import late_chunks, pieces
from quire.frontend.inputs.prompt_parser import PromptParser
from quire.frontend.inputs.refusals import cannot_pool, check_text
from quire.params import RequestOutputKind, SamplingParams
from quire.protocol import EngineCoreRequest
from quire.protocol.pooling_params import PoolingParams, prompt_of
from quire.tokenizer import Tokenizer

NEUTRAL = SamplingParams(
    max_tokens=1, seed=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
)
"""Sampling parameters of requests that pool: they end with their first result."""


class PoolingInputs:
    """Immutable."""

    def __init__(
        self, model: ModelConfig, tokenizer: Tokenizer | None, prompts: PromptParser
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._prompts = prompts

    def read(
        self,
        request_id: str,
        core_id: str,
        prompt: Any,
        params: PoolingParams,
        options: RequestOptions,
        arrival_time: float,
    ) -> EngineInput:
        """`core_id`: id of the core request, unique in this process. Raises RequestError."""
        model = self._model
        if model.pooling is None:
            raise RequestError(cannot_pool(model))
        options.check_priority()
        params.verify(model.pooling, model.served_model_name[0], self._num_token_types)
        prompt = _with_prompt(prompt, prompt_of(params, model.pooling))
        parsed = self._prompts.parse(prompt, options.tokenization)
        resolved = params.clone()
        resolved.token_type_ids = params.token_type_ids or parsed.token_type_ids
        resolved.verify(model.pooling, model.served_model_name[0], self._num_token_types)
        pooling = model.pooling.of(params.task)
        check_text(len(parsed.token_ids), pooling, model.max_model_len)
        if pooling.is_by_token:
            resolved.skip_reading_prefix_cache = True  # only computing a token gives its state
        if resolved.token_type_ids and len(resolved.token_type_ids) != len(parsed.token_ids):
            raise RequestError(
                f"token_type_ids must have one number for each of the {len(parsed.token_ids)} "
                f"tokens, got {len(resolved.token_type_ids)}",
                parameter="token_type_ids",
            )
        chunks = None
        if resolved.late_chunking_params is not None:
            chunks = late_chunks(
                self._tokenizer,
                parsed.text,
                parsed.token_ids,
                resolved.late_chunking_params.chunk_size,
                add_special_tokens=options.tokenization.add_special_tokens,
            )
        if options.prompt_adapter is not None:
            raise RequestError(
                "a pooling request must have no prompt adapter", parameter="prompt_adapter_request"
            )
        core_request = EngineCoreRequest(
            request_id=core_id,
            prompt_token_ids=parsed.token_ids,
            sampling_params=NEUTRAL,
            pooling_params=resolved,
            arrival_time=arrival_time,
            scope=parsed.scope,
            priority=options.priority,
            lora=options.lora,
        )
        core_requests = pieces(core_request, model.max_model_len)
        core_requests[0].data_parallel_rank = options.data_parallel_rank
        return EngineInput(
            request_id=request_id,
            prompt=parsed.text,
            prompt_token_ids=parsed.token_ids,
            params=NEUTRAL,
            core_requests=core_requests,
            arrival_time=arrival_time,
            options=options,
            pooling_params=resolved,
            late_chunks=chunks,
        )

    @cached_property
    def _num_token_types(self) -> int:
        from quire.models import build_program

        return build_program(self._model.hf_config).num_token_types


def _with_prompt(given: Any, beginning: str) -> Any:
    """The input with this text in front; token ids stay as they are."""
    if isinstance(given, str):
        return beginning + given
    if isinstance(given, Mapping) and given.get("prompt_token_ids") is None:
        text = given.get("prompt")
        return {**given, "prompt": beginning + text} if isinstance(text, str) else given
    return given
