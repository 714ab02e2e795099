"""`/v1/completions`: the route, and the prompts of a request."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.errors import RequestError
from quire.frontend.arguments import located
from quire.frontend.inputs.prompt_embeds import PLACEHOLDER
from quire.frontend.inputs.tokenization import Truncation
from quire.server.apis.completions.schema import CompletionRequest
from quire.server.apis.completions.writer import CompletionWriter
from quire.server.bodies.json_http import read_body
from quire.server.generation.begin import generate
from quire.server.generation.prompt_embeds import decode_embeds
from quire.server.generation.prompts import PreparedPrompt, prompt_ids
from quire.server.generation.replies.head import ReplyHead
from quire.server.generation.request_fields import PROMPT_KINDS
from quire.server.served_model import ServedModel
from quire.server.work_pool import check_wanted


async def completions(http: Request) -> Response | ASGIApp:
    """Continues a prompt, or several."""
    request = await read_body(http, CompletionRequest)
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
        check_wanted()
    return prompts


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
        check_wanted()
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
