"""`/inference/v1/generate`: a completion of one prompt of token ids, and its writer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.config import ModelConfig
from quire.config.checkpoint.model_files import MODEL_SAMPLING_KEYS
from quire.errors import RequestError
from quire.outputs import CompletionOutput, FlatLogprobs, RequestOutput
from quire.params import NOT_YET, SamplingParams
from quire.server.apis.completions.routes import completion_prompts
from quire.server.apis.completions.schema import CompletionRequest
from quire.server.apis.endpoint import BAD_BODY, Routes
from quire.server.apis.tokens.schema import (
    AbortTokensRequest,
    OutputMode,
    TokenCandidate,
    TokenLogprobs,
    TokenPosition,
    TokenSampling,
    TokensChoice,
    TokensChunk,
    TokensReply,
    TokensRequest,
)
from quire.server.bodies.json_http import context_of
from quire.server.bodies.json_pieces import JsonList, encoded
from quire.server.context import ServerContext
from quire.server.generation.begin import begin, reply_of
from quire.server.generation.limits import refuse_other_values
from quire.server.generation.prompts import PreparedPrompt
from quire.server.generation.replies.logprobs import LogprobsWriter, finite_logprob, prompt_logprobs
from quire.server.generation.replies.portions import ReplyHead, Update, Writer
from quire.server.generation.replies.writer import UsageCounter, usage_of
from quire.server.generation.run import Generation
from quire.server.http.auth import TENANT_SALT
from quire.server.http.event_stream import event
from quire.tokenizer import Tokenizer

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "features": (None, {}),
    "content_parts": (None, []),
    "kv_transfer_params": (None, {}),
    "ec_transfer_params": (None, {}),
}
"""Unsupported fields with their neutral values."""
_RENAMED = {"extra_args": "vllm_xargs"}
_COMPLETION_FIELDS = {field.name for field in msgspec.structs.fields(CompletionRequest)}
_DEFAULTS = SamplingParams()


def as_completion(request: TokensRequest, model: ModelConfig) -> CompletionRequest:
    """The completion that a request for tokens asks for. Raises RequestError for what is not
    supported, or contradicts itself; values are checked with the completion's."""
    _refuse(request)
    asked = request.sampling_params
    values = {
        _RENAMED.get(name, name): value
        for name, value in msgspec.structs.asdict(asked).items()
        if value is not None
    }
    for name in MODEL_SAMPLING_KEYS:  # a completion without one would take the model's
        values.setdefault(name, getattr(_DEFAULTS, name))
    if asked.max_tokens is None:
        own = model.default_sampling_params.get("max_tokens")
        values["max_tokens"] = model.max_model_len if own is None else own
    if asked.logprob_token_ids and asked.logprobs is None:
        values["logprobs"] = len(asked.logprob_token_ids)
    known = {name: value for name, value in values.items() if name in _COMPLETION_FIELDS}
    return CompletionRequest(
        prompt=request.token_ids,  # type: ignore[arg-type]
        model=request.model,
        request_id=request.request_id,
        stream=request.stream,
        stream_options=request.stream_options,
        cache_salt=request.cache_salt,
        priority=request.priority,
        return_token_ids=request.return_token_ids,
        **known,
    )


def fields_without_effect(request: TokensRequest) -> list[str]:
    """The accepted fields whose values ask for something that this server does not do."""
    names = []
    if request.reasoning_parser_kwargs:
        names.append("reasoning_parser_kwargs")
    if request.sampling_params.skip_reading_prefix_cache:
        names.append("sampling_params.skip_reading_prefix_cache")
    return names


def _refuse(request: TokensRequest) -> None:
    refuse_other_values(request, _NEUTRAL)
    asked = request.sampling_params
    refuse_other_values(asked, NOT_YET)
    if asked.detokenize is False:
        _refuse_text(request, asked)


def _refuse_text(request: TokensRequest, asked: TokenSampling) -> None:
    """Raises RequestError if the request disables detokenization and uses a feature that needs
    it."""
    if request.output_mode == "text":
        raise RequestError(
            "output_mode='text' requires sampling_params.detokenize to be true; leave it out.",
            parameter="detokenize",
        )
    if asked.stop:
        raise RequestError(
            "stop strings are only supported when detokenize is True; leave it out, or use "
            "stop_token_ids.",
            parameter="stop",
        )


class TokensWriter(Writer):
    """Replies to a request of one prompt, with `n` choices."""

    def __init__(
        self,
        request: CompletionRequest,
        head: ReplyHead,
        tokenizer: Tokenizer | None,
        mode: OutputMode,
    ) -> None:
        asked = request.logprobs
        self._num_top = -1 if asked == -1 else max(1, asked or 0)
        self._request = request
        self._head = head
        self._mode: OutputMode = mode
        self._logprobs = LogprobsWriter(tokenizer, self._num_top, head.tokens_as_ids)
        self._counter = UsageCounter()
        self._has_begun = False
        self.repeats_prompt = request.return_token_ids is True

    def whole(self, finals: Sequence[RequestOutput]) -> TokensReply:
        [final] = finals
        choices = JsonList()
        for one in final.outputs:
            choices.add([self._choice(one)])
        reply = TokensReply(
            request_id=self._head.id,
            model=self._head.model,
            created=self._head.created,
            output_mode=self._mode,
            choices=choices.as_field(),
            usage=usage_of(finals),
        )
        of_prompt = final.prompt_logprobs
        if isinstance(of_prompt, FlatLogprobs):
            reply.prompt_logprobs = prompt_logprobs(of_prompt).as_field()
        if self._request.return_token_ids:
            reply.prompt_token_ids = JsonList(final.prompt_token_ids or []).as_field()
        return reply

    def last(self) -> bytes:
        if not self._head.include_usage:
            return b""
        return event(msgspec.json.encode(self._chunk([], self._counter.total())))

    def events(self, updates: Sequence[Update]) -> bytes:
        """The chunks of these updates: one for each that has a token, text or the end."""
        parts = []
        for each in updates:
            one = each.completion
            self._counter.see(each.prompt_index, each.output)
            self._counter.add(one.index, len(one.token_ids))
            has_text = self._mode == "text" and bool(one.text)
            if one.token_ids or one.finish_reason is not None or has_text:
                parts.append(event(b"".join(encoded(self._update(each)))))
        return b"".join(parts)

    def _update(self, each: Update) -> TokensChunk:
        choice = self._choice(each.completion)
        chunk = self._chunk([choice])
        if self._head.continuous_usage:
            chunk.usage = self._counter.of_choice(each.prompt_index, choice.index)
        if self._request.return_token_ids and not self._has_begun:
            chunk.prompt_token_ids = JsonList(each.output.prompt_token_ids or []).as_field()
        self._has_begun = True
        return chunk

    def _chunk(self, choices: list[TokensChoice], usage: Any = None) -> TokensChunk:
        return TokensChunk(
            request_id=self._head.id, output_mode=self._mode, choices=choices, usage=usage
        )

    def _choice(self, one: CompletionOutput) -> TokensChoice:
        choice = TokensChoice(
            index=one.index,
            finish_reason=one.finish_reason,  # type: ignore[arg-type]
            stop_reason=one.stop_reason,
            token_ids=JsonList(one.token_ids).as_field(),
        )
        if self._mode == "text":
            choice.text, choice.logprobs = one.text, self._logprobs.chat(one)
        else:
            choice.logprobs = self._token_logprobs(one)
        return choice

    def _token_logprobs(self, one: CompletionOutput) -> TokenLogprobs | None:
        """Log-probabilities that name tokens by their ids; None if none were asked for."""
        positions = one.logprobs
        if not isinstance(positions, FlatLogprobs):
            return None
        content = JsonList()
        for place in range(min(len(one.token_ids), len(positions))):
            entries = [
                TokenCandidate(
                    token_id=token_id, logprob=finite_logprob(found.logprob), rank=found.rank
                )
                for token_id, found in positions[place].items()
            ]
            chosen = entries[0]
            shown = entries if self._num_top == -1 else entries[: self._num_top]
            content.add([TokenPosition(
                token_id=chosen.token_id, logprob=chosen.logprob, rank=chosen.rank,
                top_logprobs=shown,
            )])  # fmt: skip
        return TokenLogprobs(content=content.as_field())


_PREFIX = "generate-tokens"


ROUTES = Routes("generation")


@ROUTES.on("POST", "/inference/v1/generate", response=TokensReply, stream=TokensChunk)
async def generate(http: Request, request: TokensRequest) -> Response | ASGIApp:
    """Continues token ids with token ids."""
    context = context_of(http)
    model, mode = context.target(request.model).model, request.output_mode
    tokenizer = model.loaded_engine().tokenizer
    if mode == "text" and tokenizer is None:
        raise RequestError(
            f"output_mode={mode!r} requires a tokenizer, but this server does not load one "
            "(skip_tokenizer_init); use output_mode='tokens'.",
            parameter="output_mode",
        )
    completion = as_completion(request, model.config.model)
    if ignored := fields_without_effect(request):
        context.ignored_fields.tell(http, ignored)
    head = ReplyHead.of(context, http, completion, _PREFIX)

    def make_writer(
        asked: CompletionRequest, head: ReplyHead, _: list[PreparedPrompt]
    ) -> TokensWriter:
        return TokensWriter(asked, head, tokenizer, mode)

    generation, writer = await begin(http, completion, head, completion_prompts, make_writer)
    _can_be_aborted(context, (getattr(http.state, TENANT_SALT, None), head.id), generation)
    return await reply_of(http, request.stream is True, generation, writer)


@ROUTES.on("POST", "/inference/v1/abort_requests", errors=BAD_BODY)
async def abort_requests(http: Request, body: AbortTokensRequest) -> None:
    """Ends requests for tokens in flight, by the `request_id`s of their replies: those of this
    API key."""
    context, owner = context_of(http), getattr(http.state, TENANT_SALT, None)
    for request_id in set(body.request_ids):
        for abort in list(context.generating_tokens.get((owner, request_id), ())):
            abort()


def _can_be_aborted(
    context: ServerContext, key: tuple[str | None, str], generation: Generation
) -> None:
    """Keeps a generation under its id until it ends. Callers may use an id several times."""
    aborts = context.generating_tokens.setdefault(key, set())
    aborts.add(generation.abort)

    def forget() -> None:
        aborts.discard(generation.abort)
        if not aborts:
            context.generating_tokens.pop(key, None)

    generation.on_close(forget)
