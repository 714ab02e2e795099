"""Ollama's routes about texts: `/api/chat`, `/api/generate`, `/api/embed`, and `keep_alive`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.errors import RequestError, quoted
from quire.server.apis.ollama.reading import read_chat, read_generate
from quire.server.apis.ollama.schema import (
    GenerateReply,
    GenerateRequest,
    OllamaChatReply,
    OllamaChatRequest,
    ReplyMessage,
    TextFields,
    is_zero,
)
from quire.server.apis.ollama.writing import OLLAMA_FORM, OllamaWriter, now
from quire.server.bodies.json_http import context_of, json_response, read_body
from quire.server.fleet.catalog import parsed_keep_alive
from quire.server.generation import begin
from quire.server.generation.pooling import (
    PoolingFields,
    PoolingJob,
    Result,
    as_inputs,
    listed,
    usage_of,
)
from quire.server.generation.reply import ReplyHead
from quire.server.http.auth import check_operator, is_operator
from quire.server.http.problems import HttpError
from quire.server.requests.fields import Count, Int64
from quire.server.requests.limits import count_chars
from quire.server.requests.request import AnyRequest
from quire.server.routing import Routes
from quire.server.served_model import ServedModel


def keep_loaded(
    http: Request, model: ServedModel, keep_alive: str | int | float | None
) -> list[str]:
    """Applies a request's `keep_alive`, or returns its name as that of a field without effect: a
    server of one model never unloads it, and of several API keys only the operator's decide.
    Raises RequestError if the value is not a duration."""
    if keep_alive is None:
        return []
    seconds, fleet = parsed_keep_alive(keep_alive), context_of(http).fleet
    if fleet is None or not is_operator(http.scope):
        return ["keep_alive"]
    fleet.keep_alive(model, seconds)
    return []


ROUTES = Routes("pooling")


@ROUTES.on("POST", "/api/chat", tag="generation", response=OllamaChatReply, stream=OllamaChatReply)
async def chat(http: Request, asked: OllamaChatRequest) -> Response | ASGIApp:
    """Continues a conversation, in Ollama's form."""
    if not asked.messages:
        fields = await _loaded_or_unloaded(http, asked)
        return json_response(OllamaChatReply(**fields, message=ReplyMessage()))
    return await _answer(http, asked, read_chat, is_chat=True)


@ROUTES.on("POST", "/api/generate", tag="generation", response=GenerateReply, stream=GenerateReply)
async def generate(http: Request, asked: GenerateRequest) -> Response | ASGIApp:
    """Answers a prompt, in Ollama's form."""
    if not (asked.prompt or asked.system or asked.suffix):
        return json_response(GenerateReply(**await _loaded_or_unloaded(http, asked), response=""))
    return await _answer(http, asked, read_generate, is_chat=False)


async def _loaded_or_unloaded(http: Request, asked: TextFields | _TextsToVectors) -> dict[str, Any]:
    """The reply's fields to a request without a prompt, which loads or unloads its model."""
    target = context_of(http).target(asked.model)
    fleet = context_of(http).fleet
    unloads = asked.only_unloads and fleet is not None
    if unloads:
        check_operator(http.scope)
    if fleet is None or not unloads or fleet.is_loaded(target.model):
        ignored = keep_loaded(http, target.model, asked.keep_alive)
        context_of(http).ignored_fields.tell(http, ignored)
    if unloads and fleet is not None:
        with suppress(HttpError):  # it has requests, and is unloaded after them
            await fleet.unload(target.model)
    reason = "unload" if unloads else "load"
    return {"model": target.name, "created_at": now(), "done": True, "done_reason": reason}


async def _answer(
    http: Request, body: Any, read: Callable[[Any], AnyRequest], *, is_chat: bool
) -> Response | ASGIApp:
    model = context_of(http).target(body.model).model
    asked = await model.pool.run(count_chars(body), read, body)
    asked.ignored += keep_loaded(http, model, body.keep_alive)
    if body.think not in (None, False) and (await model.reply_format()).reasoning is None:
        raise RequestError(
            f"the model {quoted(body.model or model.names[0])} does not support thinking; leave "
            "think out",
            parameter="think",
        )
    has_context = not is_chat and not body.raw

    def writer(asked: AnyRequest, head: ReplyHead, prompts: list[Any]) -> OllamaWriter:
        tokenizer = model.loaded_engine().tokenizer
        return OllamaWriter(
            head, prompts[0], tokenizer,
            is_chat=is_chat, has_context=has_context, num_top=asked.reply.num_top,
        )  # fmt: skip

    return await begin.generate(http, asked, "ollama", writer, OLLAMA_FORM)


_NS = 10**9


class _TextsToVectors(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    options: dict[str, Any] | None = None
    """Accepted and not used."""
    keep_alive: str | int | float | None = None

    @property
    def only_unloads(self) -> bool:
        """Whether the request has no text and lets its model be unloaded."""
        return is_zero(self.keep_alive) and not self.has_text()

    def has_text(self) -> bool:
        """Whether there is a text. Without one, the model is loaded or unloaded."""
        raise NotImplementedError


class OllamaEmbedRequest(_TextsToVectors, kw_only=True):
    """Texts that become vectors."""

    input: str | list[str] | None = None
    truncate: bool | None = True
    """Whether a text that is too long loses its end."""
    dimensions: Int64 | None = None

    def has_text(self) -> bool:
        return bool(self.input)


class OllamaEmbeddingsRequest(_TextsToVectors, kw_only=True):
    """A text that becomes a vector."""

    prompt: str | None = None

    def has_text(self) -> bool:
        return bool(self.prompt)


class OllamaEmbeddingsReply(msgspec.Struct, kw_only=True):
    """The vector."""

    embedding: list[float]


class OllamaEmbedReply(msgspec.Struct, kw_only=True):
    """The vectors, in the order of the texts. Durations are nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: Count
    load_duration: Literal[0] = 0
    prompt_eval_count: Count


@ROUTES.on(
    "POST", "/api/embed", gives="embed", request=OllamaEmbedRequest, response=OllamaEmbedReply
)
async def embed(http: Request) -> Response:
    """A vector for each text."""
    began_at = time.monotonic()
    request = await read_body(http, OllamaEmbedRequest)
    if not request.has_text():
        name = (await _loaded_or_unloaded(http, request))["model"]
        empty = OllamaEmbedReply(model=name, embeddings=[], total_duration=0, prompt_eval_count=0)
        return json_response(empty)
    inputs = as_inputs("input", request.input)  # type: ignore[arg-type]
    truncates = request.truncate is not False
    job, results = await _vectors(
        http, request, "input", inputs, truncates=truncates, dimensions=request.dimensions
    )
    return await job.answer(
        results,
        lambda found: OllamaEmbedReply(
            model=job.name,
            embeddings=[listed(one.outputs.data) for one in found],
            total_duration=int((time.monotonic() - began_at) * _NS),
            prompt_eval_count=usage_of(found).prompt_tokens,
        ),
    )


@ROUTES.on("POST", "/api/embeddings", gives="embed")
async def embeddings(
    http: Request, request: OllamaEmbeddingsRequest
) -> OllamaEmbeddingsReply | None:
    """The vector of one text, which loses its end if it is too long."""
    if not request.prompt:
        await _loaded_or_unloaded(http, request)
        return OllamaEmbeddingsReply(embedding=[])
    _, results = await _vectors(http, request, "prompt", [request.prompt], truncates=True)
    if results is None:
        return None
    return OllamaEmbeddingsReply(embedding=results[0].outputs.data.tolist())


async def _vectors(
    http: Request,
    request: OllamaEmbedRequest | OllamaEmbeddingsRequest,
    field: str,
    inputs: list[str | list[int]],
    *,
    truncates: bool,
    dimensions: int | None = None,
) -> tuple[PoolingJob, list[Result] | None]:
    fields = PoolingFields(model=request.model, truncate_prompt_tokens=-1 if truncates else None)
    job = PoolingJob.of(http, fields, "embd", {"truncate_prompt_tokens=-1": "truncate=true"})
    job.require("embed")
    ignored = keep_loaded(http, job.model, request.keep_alive)
    context_of(http).ignored_fields.tell(http, ignored)
    params = fields.params("embed")
    params.dimensions = dimensions
    tokenization = fields.tokenization(job.model)
    return job, await job.run(field, inputs, params, tokenization)
