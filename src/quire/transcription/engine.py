"""`EngineWindows`: decodes the windows of a sound with an `AsyncLLM`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import numpy as np

from quire.errors import QuireError
from quire.frontend.inputs.images.prompts import ImagePrompts
from quire.frontend.inputs.prompt_parser import ParsedPrompt
from quire.frontend.online.async_llm import AsyncLLM
from quire.frontend.online.request_stream import RequestStream
from quire.images.picture import Picture, picture_digest
from quire.images.rules import Layout
from quire.images.sound.rules import HOP, RATE, Sound
from quire.outputs import CompletionOutput, RequestOutput
from quire.params import RequestOutputKind, SamplingParams
from quire.protocol.cache_scope import EVERYONE, CacheScope
from quire.timestamp_rules import TimestampRules
from quire.tokenizer.whisper_tokens import WhisperTokens, read_whisper_tokens
from quire.transcription.records import Decoded, Floats, WindowEngine
from quire.transcription.transcriber import Transcriber


def transcriber_for(engine: AsyncLLM) -> Transcriber | None:
    """The transcriber of an engine; None: its model is not of Whisper's kind. Raises
    CheckpointError for tokens that a transcription cannot use."""
    model, tokenizer = engine.model_config, engine.tokenizer
    if not model.num_sources or tokenizer is None:
        return None
    rules = ImagePrompts(model).rules
    assert isinstance(rules, Sound)
    tokens = read_whisper_tokens(model.tokenizer_path or model.path, tokenizer, model.hf_config)
    return Transcriber(
        EngineWindows(engine, tokens),
        tokenizer,
        tokens,
        bins=rules.bins,
        num_positions=model.max_model_len,
    )


class EngineWindows(WindowEngine):
    """A window is encoded once for all of its requests, which share its K/V in the prefix cache.
    Each transcription of a server has one of its own: `within`."""

    def __init__(
        self,
        engine: AsyncLLM,
        tokens: WhisperTokens,
        *,
        salt: str | None = None,
    ) -> None:
        """`salt`: as of `within`."""
        self._engine, self._tokens = engine, tokens
        self._scope = EVERYONE if salt is None else CacheScope(salt)
        self._images = ImagePrompts(engine.model_config)
        self._name = f"transcribe-{uuid.uuid4().hex}"
        self._count = 0

    def within(self, salt: str | None) -> EngineWindows:
        return EngineWindows(self._engine, self._tokens, salt=salt)

    async def decode(
        self,
        window: Floats,
        prompt_token_ids: Sequence[int],
        *,
        timestamps: bool,
        temperature: float,
        max_tokens: int,
        seed: int | None,
        best_of: int = 1,
    ) -> Decoded:
        tokens = self._tokens
        params = SamplingParams(
            temperature=temperature, max_tokens=max_tokens, seed=seed or 0, logprobs=0, n=best_of
        )
        params.write_timestamps(
            TimestampRules(
                first=tokens.first_timestamp,
                end=tokens.eot,
                most_first=tokens.max_initial_timestamp_index,
                forbidden=[*tokens.suppress, tokens.no_timestamps],
                forbidden_first=[*tokens.begin_suppress],
                is_on=timestamps,
            )
        )
        _, output = await self._run(window, prompt_token_ids, params)
        return max(map(self._decoded, output.outputs), key=lambda one: one.avg_logprob)

    def _decoded(self, found: CompletionOutput) -> Decoded:
        token_ids = tuple(found.token_ids)
        logprobs = tuple(
            (position or {})[token_id].logprob
            for position, token_id in zip(found.logprobs or (), token_ids, strict=True)
        )
        if token_ids and token_ids[-1] == self._tokens.eot:
            token_ids = token_ids[:-1]
        return Decoded(token_ids=token_ids, logprobs=logprobs)

    async def probabilities(
        self, window: Floats, prompt_token_ids: Sequence[int], token_ids: Sequence[int]
    ) -> list[float]:
        params = SamplingParams(temperature=0.0, max_tokens=1, logprob_token_ids=[*token_ids])
        _, output = await self._run(window, prompt_token_ids, params)
        [position] = output.outputs[0].logprobs or ({},)
        return [float(np.exp((position or {})[token_id].logprob)) for token_id in token_ids]

    async def alignment(self, window: Floats, token_ids: Sequence[int]) -> Floats:
        params = SamplingParams(temperature=0.0, max_tokens=1)
        params.ask_for_rows()
        stream, _ = await self._run(window, token_ids, params)
        [completion] = stream.record.completions
        if completion.pooled is None:
            raise QuireError("the engine has given no rows of its attention")
        config = self._engine.model_config
        rows = np.frombuffer(completion.pooled.data, "<f4").reshape(-1, completion.pooled.width)
        head_dim = config.hf_config["d_model"] // config.hf_config["decoder_attention_heads"]
        by_head = rows.reshape(len(rows), -1, head_dim).transpose(1, 0, 2)
        keys, queries = by_head[:, : config.num_sources], by_head[:, config.num_sources :]
        found: Floats = queries @ keys.transpose(0, 2, 1) / np.float32(head_dim**0.5)
        return found

    async def _run(
        self, window: Floats, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> tuple[RequestStream, RequestOutput]:
        """A request that has ended."""
        params.detokenize, params.output_kind = False, RequestOutputKind.FINAL_ONLY
        placed = self._images.before([*prompt_token_ids], self._picture(window))
        prompt = ParsedPrompt(
            None, placed.token_ids, self._scope, input_rows=placed.input_rows, images=placed.images
        )
        self._count += 1
        name = f"{self._name}-{self._count}"
        # A busy server refuses the first request of a transcription, not one in the middle of it.
        stream = self._engine.requests.start(
            self._engine.input_processor.process(name, prompt, params), follows=self._count > 1
        )
        try:
            async for output in stream:
                if output.finished:
                    return stream, output
        finally:
            stream.close()
        raise QuireError(f"request {name} ended without a result")

    async def finish(self, window: Floats) -> None:
        digest = self._picture(window).digest
        await self._engine.call("drop_encoded_picture", self._scope.tenant, digest)

    def _picture(self, window: Floats) -> Picture:
        data = np.ascontiguousarray(window, "<f4").tobytes()
        layout = Layout((window.shape,), depth=4, seconds=len(window) * HOP / RATE)
        digest = picture_digest(self._images.rules, data)
        return Picture(digest, layout, data, self._images.rules.modality)
