"""`/v1/completions`: the route, the prompts of a request, and the writer of its reply."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from heapq import nlargest
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.errors import RequestError
from quire.frontend.arguments import located
from quire.frontend.inputs.prompt_embeds import PLACEHOLDER
from quire.frontend.inputs.tokenization import Truncation
from quire.outputs import CompletionOutput, FlatLogprobs, RequestOutput
from quire.server.apis.completions.schema import (
    CompletionChoice,
    CompletionChunk,
    CompletionRequest,
    CompletionResponse,
)
from quire.server.apis.endpoint import Routes
from quire.server.bodies.json_pieces import JsonList
from quire.server.generation.begin import generate
from quire.server.generation.gaps import Gap, gap_prompt
from quire.server.generation.prompts import PreparedPrompt, decode_embeds, prompt_ids
from quire.server.generation.replies.logprobs import CompletionLists, prompt_logprobs
from quire.server.generation.replies.portions import ReplyHead, Update
from quire.server.generation.replies.writer import ReplyWriter
from quire.server.generation.request_fields import PROMPT_KINDS
from quire.server.generation.sampling import is_echo_alone
from quire.server.served_model import ServedModel
from quire.tokenizer import Tokenizer


class CompletionWriter(ReplyWriter[CompletionRequest, CompletionChunk]):
    """Replies to a request of one or several prompts, each with `n` choices."""

    def __init__(
        self,
        request: CompletionRequest,
        head: ReplyHead,
        prompts: Sequence[PreparedPrompt],
        tokenizer: Tokenizer | None,
    ) -> None:
        num_top = len(request.logprob_token_ids or ()) or request.logprobs or 0
        super().__init__(
            request, head, prompts, tokenizer, num_top=num_top, chunk_kind=CompletionChunk
        )
        self._is_echo_alone = is_echo_alone(request)
        """The one token that is generated is not shown."""
        self.repeats_prompt = request.echo is True or self._wants_ids
        self._started = set[int]()
        """Choices of a stream that have had a chunk."""
        self._echoes: dict[int, str] = {}
        self._echoed_lists: dict[int, CompletionLists] = {}
        """Echoed log-probabilities by prompt; all `n` choices share them."""

    def whole(self, finals: Sequence[RequestOutput]) -> CompletionResponse:
        choices = JsonList()
        for prompt_index, final in enumerate(finals):
            if self._request.echo:
                self._take_prompt(prompt_index, final)
            of_prompt = self._of_prompt(final)
            shown = best_of(final, self._n, shows_logprobs=self._request.logprobs is not None)
            for one in shown.outputs:
                choice = self._choice(prompt_index, one, is_first=True)
                choice.prompt_logprobs = None if of_prompt is None else of_prompt.as_field()
                if self._wants_ids:
                    token_ids = self._prompts[prompt_index].token_ids
                    choice.prompt_token_ids = JsonList(token_ids).as_field()
                choices.add([choice])
        response = self._response(CompletionResponse, choices, finals)
        response.kv_transfer_params = finals[0].kv_transfer_params if len(finals) == 1 else None
        return response

    def events(self, updates: Sequence[Update]) -> bytes:
        parts = []
        for each in updates:
            self._chunks.see(each.prompt_index, each.output)
            if self._request.echo:
                self._take_prompt(each.prompt_index, each.output)
            index = each.prompt_index * self._n + each.completion.index
            is_first = index not in self._started
            choice = self._choice(each.prompt_index, each.completion, is_first)
            if is_first and self._wants_ids:
                token_ids = each.output.prompt_token_ids or []
                choice.prompt_token_ids = JsonList(token_ids).as_field()
            self._started.add(index)
            self._chunks.count(index, len(each.completion.token_ids))
            parts.append(self._chunks.chunk(each.prompt_index, choice))
        return b"".join(parts)

    def _choice(self, prompt_index: int, one: CompletionOutput, is_first: bool) -> CompletionChoice:
        """A choice's new output; the first time also the echoed prompt and its
        log-probabilities."""
        index = prompt_index * self._n + one.index
        text = "" if self._is_echo_alone else one.text
        echoed = None
        if is_first and self._request.echo:
            text = self._echo(prompt_index) + text
            echoed = self._echoed_lists.get(prompt_index)
        logprobs = None
        if self._is_echo_alone:
            logprobs = None if echoed is None else echoed.as_field()
        elif echoed is not None or one.logprobs is not None:
            logprobs = self._logprobs.completion(index, one, echoed)
        return CompletionChoice(index=index, text=text, logprobs=logprobs, **self._end_of(one))

    def _of_prompt(self, final: RequestOutput) -> JsonList | None:
        """The prompt's log-probabilities, if `prompt_logprobs` asks for them."""
        entries = final.prompt_logprobs
        if self._request.prompt_logprobs is None or not isinstance(entries, FlatLogprobs):
            return None
        return prompt_logprobs(entries)

    def _take_prompt(self, prompt_index: int, output: RequestOutput) -> None:
        """Writes the log-probabilities of an echoed prompt as soon as they arrive."""
        positions = output.prompt_logprobs
        if isinstance(positions, FlatLogprobs) and prompt_index not in self._echoed_lists:
            lists = CompletionLists()
            self._logprobs.add_tokens(lists, self._prompts[prompt_index].token_ids, positions)
            self._echoed_lists[prompt_index] = lists

    def _echo(self, prompt_index: int) -> str:
        text = self._echoes.get(prompt_index)
        if text is None:
            prompt = self._prompts[prompt_index]
            text = prompt.text
            if text is None:
                text = ""
                if self._tokenizer is not None:
                    text = self._tokenizer.decode(prompt.token_ids, skip_special_tokens=False)
            self._echoes[prompt_index] = text
        return text


def best_of(final: RequestOutput, n: int, *, shows_logprobs: bool) -> RequestOutput:
    """The `n` samples with the highest log-probability per token, the best first. Without
    `shows_logprobs` they were asked for to compare samples alone."""
    if len(final.outputs) <= n:
        return final
    best = nlargest(n, final.outputs, key=_mean_logprob)
    shown = [
        replace(one, index=index, logprobs=one.logprobs if shows_logprobs else None)
        for index, one in enumerate(best)
    ]
    return replace(final, outputs=shown)


def _mean_logprob(one: CompletionOutput) -> float:
    if one.cumulative_logprob is None or not one.token_ids:
        return -math.inf
    return one.cumulative_logprob / len(one.token_ids)


ROUTES = Routes("generation")


@ROUTES.on("POST", "/v1/completions", response=CompletionResponse, stream=CompletionChunk)
async def completions(http: Request, request: CompletionRequest) -> Response | ASGIApp:
    """Continues a prompt, or several."""
    return await generate(http, request, "cmpl", completion_prompts, _completion_writer)


def _completion_writer(
    request: CompletionRequest, head: ReplyHead, prompts: list[PreparedPrompt]
) -> CompletionWriter:
    tokenizer = head.target.model.loaded_engine().tokenizer
    return CompletionWriter(request, head, prompts, tokenizer)


_IDS_PER_UNIT = 16
"""Token ids that take as long to check as one unit of the pool's work."""


async def completion_prompts(
    model: ServedModel, request: CompletionRequest
) -> list[PreparedPrompt]:
    """The prompts of a completion request, in order. Raises RequestError."""
    parts = [request.prompt] if isinstance(request.prompt, str) else request.prompt or []
    size = len(parts) // _IDS_PER_UNIT + sum(map(len, _embeds(request)))
    size += len(request.suffix or "")
    if parts and not isinstance(parts[0], int):
        sizes = [len(each) for each in parts if isinstance(each, str)]
        model.limits.check_text("prompt", max(sizes, default=0))
        num_ids = sum(len(each) for each in parts if isinstance(each, list))
        size += sum(sizes) + num_ids // _IDS_PER_UNIT
    return await model.pool.run(size, _completion_prompts, model, request)


def _embeds(request: CompletionRequest) -> list[str]:
    given = request.prompt_embeds
    return [given] if isinstance(given, str) else given or []


def _completion_prompts(model: ServedModel, request: CompletionRequest) -> list[PreparedPrompt]:
    if request.suffix:
        return [_gap_prompt(model, request)]
    texts = _embeds(request)
    parts, salt = _split_prompts(request.prompt, is_optional=bool(texts)), request.cache_salt
    model.limits.check_prompts(len(parts) + len(texts), max(request.n or 1, request.best_of or 1))
    truncation = Truncation.of(
        request.truncate_prompt_tokens, request.truncation_side, model.limits.max_model_len
    )
    add_special_tokens = request.add_special_tokens is not False
    prompts = _prompts_of_embeds(model, request, texts) if texts else []
    for index, part in enumerate(parts):
        if isinstance(part, str):
            with located("prompt", index, len(parts)):
                token_ids = prompt_ids(model, part, add_special_tokens, truncation)
            prompts.append(PreparedPrompt(token_ids, part, salt))
        else:
            token_ids = part if truncation is None else truncation.kept(part)
            prompts.append(PreparedPrompt(token_ids, None, salt))
    return prompts


def _gap_prompt(model: ServedModel, request: CompletionRequest) -> PreparedPrompt:
    for name in ("echo", "use_beam_search", "truncate_prompt_tokens", "prompt_embeds"):
        if getattr(request, name):
            raise RequestError(
                f"{name} is not supported with suffix; leave one of the two out", parameter=name
            )
    if not isinstance(request.prompt, str):
        raise RequestError(
            "prompt must be one text where suffix is given, which follows it after the gap",
            parameter="prompt",
        )
    model.limits.check_prompts(1, max(request.n or 1, request.best_of or 1))
    ids, ends = gap_prompt(model, Gap(request.prompt, request.suffix or ""))
    return PreparedPrompt(ids, None, request.cache_salt, end_token_ids=ends)


def _prompts_of_embeds(
    model: ServedModel, request: CompletionRequest, texts: list[str]
) -> list[PreparedPrompt]:
    if request.echo:
        raise RequestError("Echo is unsupported with prompt embeds.", parameter="echo")
    if request.truncate_prompt_tokens is not None:
        raise RequestError(
            "truncate_prompt_tokens is not supported with prompt_embeds",
            parameter="truncate_prompt_tokens",
        )
    prompts = []
    for index, text in enumerate(texts):
        with located("prompt_embeds", index, len(texts)):
            rows = decode_embeds(model, text)
        ids = [PLACEHOLDER] * len(rows)
        prompts.append(PreparedPrompt(ids, None, request.cache_salt, embeds=rows))
    return prompts


def _split_prompts(prompt: Any, *, is_optional: bool) -> list[str | list[int]]:
    if is_optional and (prompt is None or prompt == ""):
        return []
    if prompt is None:
        raise RequestError(
            "Either prompt or prompt_embeds must be provided and non-empty.", parameter="prompt"
        )
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("prompt must not be empty", parameter="prompt")
    if isinstance(prompt[0], int):
        if not all(isinstance(entry, int) for entry in prompt):
            raise _mixed()
        return [prompt]
    if not all(isinstance(entry, type(prompt[0])) for entry in prompt):
        raise _mixed()
    return list(prompt)


def _mixed() -> RequestError:
    return RequestError(PROMPT_KINDS, parameter="prompt")
