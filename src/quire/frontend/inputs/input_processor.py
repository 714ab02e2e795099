"""`InputProcessor`: validates requests; every front end uses it.

Converts the user's input (text or token ids, `SamplingParams`) to fully resolved
`EngineCoreRequest`s. Messages are vLLM's. Thread-safe.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from quire.adapters.request import PromptAdapterRequest
from quire.config.records import EngineConfig, ModelConfig
from quire.errors import RequestError
from quire.frontend.arguments import (
    PLAIN,
    EngineInput,
    RequestOptions,
    check_request_id,
)
from quire.frontend.inputs.pieces import with_sources, with_virtual_tokens
from quire.frontend.inputs.pooling_inputs import PoolingInputs
from quire.frontend.inputs.prompt_parser import ParsedPrompt, PromptParser
from quire.frontend.inputs.reasoning import check_budget, tokens_of_marks
from quire.frontend.inputs.refusals import cannot_generate, check_without_tokenizer
from quire.frontend.inputs.tokenization import Tokenization
from quire.frontend.kv_hand_off import hand_off
from quire.inputs import PromptType
from quire.logits_processors.interface import check_processor
from quire.logits_processors.loading import load_processors
from quire.params import SamplingParams, check_for_model
from quire.protocol import EngineCoreRequest
from quire.protocol.pooling_params import PoolingParams
from quire.reasoning.marks import ReasoningTokens
from quire.structured.params import StructuredOutputsParams
from quire.structured.trial import GrammarTrial
from quire.system import clock
from quire.token_checks import check_bans
from quire.tokenizer import Tokenizer


class InputProcessor:
    """Validates and resolves requests. Immutable except for two counters, which are thread-safe."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer | None,
        on_first_grammar: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_first_grammar` is called by any thread before the first grammar is compiled."""
        self.model_config = config.model
        self._reasoning = config.reasoning
        self._is_held = config.structured_outputs.enable_in_reasoning
        self.tokenizer = tokenizer
        self.block_keys: Callable[[EngineCoreRequest], list[bytes]] = lambda _: []
        """`EngineCoreClient.block_keys`, called where the prompt is read."""
        self._config = config
        self._prompts = PromptParser(config.model, tokenizer, config.cache.block_size)
        self._pooling_inputs = PoolingInputs(config.model, tokenizer, self._prompts)
        self._grammars = GrammarTrial(
            config.structured_outputs,
            config.model.vocab_size,
            lambda: {} if tokenizer is None else tokenizer.added_texts,
            on_first_grammar,
        )
        self._logits_processors = load_processors(config.model.logits_processors)
        self._numbers = itertools.count()
        self._seeds = itertools.count()
        eos = None if tokenizer is None else tokenizer.eos_token_id
        self.eos_token_id = eos
        self._generation_config = {"eos_token_id": list(config.model.eos_token_ids)}

    def process(
        self,
        request_id: str,
        prompt: PromptType | ParsedPrompt,
        params: SamplingParams | PoolingParams,
        options: RequestOptions = PLAIN,
    ) -> EngineInput:
        """Validate one request. Raises RequestError, and TypeError for objects of a wrong type.

        A request that passes can be served: no later step fails because of the caller's input.
        """
        check_request_id(request_id)
        options.check(self._config)
        arrival_time = clock.now() if options.arrival_time is None else options.arrival_time
        if isinstance(params, PoolingParams):
            found = self._pooling_inputs.read(
                request_id, self._unique(request_id), prompt, params, options, arrival_time
            )
            for one in found.core_requests:
                one.block_keys = self.block_keys(one)
            return found
        if isinstance(params, SamplingParams):
            return self._generating(request_id, prompt, params, options, arrival_time)
        raise TypeError(
            f"params must be SamplingParams or PoolingParams, but got {type(params).__name__}"
        )

    def _generating(
        self,
        request_id: str,
        prompt: Any,
        params: SamplingParams,
        options: RequestOptions,
        arrival_time: float,
    ) -> EngineInput:
        if self.model_config.pooling is not None:
            raise RequestError(cannot_generate(self.model_config))
        params.verify()
        check_for_model(params, self.model_config.vocab_size, self.model_config.max_logprobs)
        if self.tokenizer is None:
            check_without_tokenizer(params)
        options.check_priority()
        parsed = whole = self._prompts.parse(prompt, options.tokenization)
        adapter = options.prompt_adapter
        _check_rows(parsed, params, adapter, self.model_config)
        if adapter is not None:
            whole = with_virtual_tokens(adapter, parsed, params, self.model_config)
        num_tokens = len(whole.token_ids)
        if self.model_config.num_sources:
            whole = with_sources(parsed, self.model_config)
        resolved = self._resolve(params, num_tokens)
        for processor in self._logits_processors:
            check_processor(processor, resolved)
        handed = hand_off(resolved) if resolved.extra_args else {}
        base = EngineCoreRequest(
            request_id=self._unique(request_id),
            prompt_token_ids=whole.token_ids,
            sampling_params=resolved,
            arrival_time=arrival_time,
            stop_token_ids=self._stop_token_ids(resolved),
            banned_token_ids=self._banned_token_ids(resolved),
            eos_token_ids=[] if self.eos_token_id is None else [self.eos_token_id],
            reasoning=self._reasoning_of(resolved, parsed.token_ids),
            scope=parsed.scope,
            predicted_token_ids=parsed.predicted_token_ids,
            priority=options.priority,
            data_parallel_rank=options.data_parallel_rank,
            lora=options.lora,
            prompt_adapter=adapter,
            input_rows=whole.input_rows,
            images=parsed.images,
            **handed,
        )
        base.block_keys = self.block_keys(base)
        return EngineInput(
            request_id=request_id,
            prompt=options.prompt_text if parsed.text is None else parsed.text,
            prompt_token_ids=parsed.token_ids,
            params=resolved,
            core_requests=self._children(base),
            arrival_time=arrival_time,
            options=options,
            num_virtual_tokens=len(whole.token_ids) - len(parsed.token_ids),
        )

    def _unique(self, request_id: str) -> str:
        """An id that no other request of this process has."""
        return f"{request_id}-{next(self._numbers):x}"

    def check_grammar(self, spec: StructuredOutputsParams) -> StructuredOutputsParams:
        """The grammar with the engine's settings. Raises GrammarError if it cannot be compiled."""
        return self._grammars.checked(spec)

    def parse(
        self, prompt: PromptType, tokenization: Tokenization = PLAIN.tokenization
    ) -> ParsedPrompt:
        """Validate a prompt and return its token ids. Raises RequestError."""
        return self._prompts.parse(prompt, tokenization)

    def _resolve(self, params: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        """A copy with a number for `max_tokens`, the model's end tokens, and bad words as
        tokens."""
        resolved = params.clone()
        if resolved.max_tokens is None:
            resolved.max_tokens = self.model_config.max_model_len - num_prompt_tokens
            if resolved.min_tokens > resolved.max_tokens:
                raise RequestError(
                    "min_tokens must be less than or equal to "
                    f"max_tokens={resolved.max_tokens}, got {resolved.min_tokens}.",
                    parameter="min_tokens",
                    value=resolved.min_tokens,
                )
        resolved.update_from_generation_config(self._generation_config, self.eos_token_id)
        resolved.update_from_trace(self.model_config.max_model_len - num_prompt_tokens)
        if self.tokenizer is not None:
            resolved.update_from_tokenizer(self.tokenizer)
        if resolved.trace_decode_token_ids is None:
            resolved.forbid(self.model_config.never_generated)
        if resolved.structured_outputs is not None:
            resolved.structured_outputs = self._grammars.checked(resolved.structured_outputs)
        banned, never = self._banned_token_ids(resolved), resolved.never_generated
        is_banning = banned or resolved.bad_words or never.words or never.first
        if is_banning or resolved.allowed_token_ids is not None:
            check_bans(resolved, banned, self.model_config.vocab_size)
        return resolved

    def _reasoning_of(
        self, params: SamplingParams, prompt: Sequence[int]
    ) -> ReasoningTokens | None:
        """The tokens of the reasoning marks; None if nothing depends on the reasoning."""
        marks = params.reasoning or self._reasoning
        is_whole = marks is not None and marks.is_in_grammar
        has_grammar = params.structured_outputs is not None and not is_whole
        if params.thinking_token_budget is not None:
            check_budget(params, marks, self.tokenizer, is_held=has_grammar and self._is_held)
        elif not has_grammar or self._is_held:
            return None
        if marks is None or self.tokenizer is None:
            return None
        return tokens_of_marks(marks, self._reasoning, prompt, self.tokenizer, self.model_config)

    def _stop_token_ids(self, params: SamplingParams) -> list[int]:
        ids = list(params.stop_token_ids or [])
        if self.eos_token_id is not None and not params.ignore_eos:
            ids.append(self.eos_token_id)
        return list(dict.fromkeys(ids))

    def _banned_token_ids(self, params: SamplingParams) -> list[int]:
        """Tokens that `min_tokens` forbids for a time; includes EOS ids even with `ignore_eos`."""
        if not params.min_tokens:
            return []
        own = [] if self.eos_token_id is None else [self.eos_token_id]
        all_eos = [*own, *self.model_config.eos_token_ids]
        return list(dict.fromkeys([*self._stop_token_ids(params), *all_eos]))

    def _children(self, base: EngineCoreRequest) -> list[EngineCoreRequest]:
        """One request per output. Seeds are the user's seed plus the index, or drawn for each
        output. Only the first request computes the prompt's log-probabilities."""
        params = base.sampling_params
        children = []
        for index in range(params.n):
            own = copy.copy(params)
            own.n = 1
            seed = self._draw_seed() if params.seed is None else params.seed + index
            own.seed = seed % 2**64
            if index and params.prompt_logprobs is not None:
                # Without the cache, none finishes before the first has computed the prompt's.
                own.prompt_logprobs, own.skip_reading_prefix_cache = None, True
            request_id = base.request_id if params.n == 1 else f"{base.request_id}.{index}"
            children.append(
                msgspec.structs.replace(base, request_id=request_id, sampling_params=own)
            )
        return children

    def _draw_seed(self) -> int:
        """The next seed of the sequence that the engine's seed determines."""
        state = struct.pack("<qQ", self.model_config.seed, next(self._seeds))
        return int.from_bytes(hashlib.sha256(state).digest()[:8], "little")


def _check_rows(
    parsed: ParsedPrompt,
    params: SamplingParams,
    prompt_adapter: PromptAdapterRequest | None,
    model: ModelConfig,
) -> None:
    """Check that no parameter is excluded by embeddings or images in the prompt. Raises
    RequestError."""
    if parsed.input_rows and not parsed.images and params.prompt_logprobs is not None:
        raise RequestError(
            "prompt_logprobs is not compatible with prompt embeds.", parameter="prompt_logprobs"
        )
    if model.num_sources and params.prompt_logprobs is not None:
        raise RequestError(
            "prompt_logprobs must be left out: this model has an encoder",
            parameter="prompt_logprobs",
        )
    if parsed.images and prompt_adapter is not None:
        raise RequestError(
            "a request with images must have no prompt adapter", parameter="prompt_adapter_request"
        )
