"""`/v1/completions`, and the reading of its bodies into requests for text."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.errors import RequestError
from quire.server.apis.completions.schema import (
    CompletionChunk,
    CompletionRequest,
    CompletionResponse,
)
from quire.server.apis.completions.writing import completion_writer
from quire.server.bodies.json_http import context_of
from quire.server.generation.begin import generate
from quire.server.generation.rendering import RenderedPrompt, refuse_beams, rendered
from quire.server.requests.reading import (
    read_logprobs,
    read_prompt_logprobs,
    refuse_unsupported,
    text_request,
)
from quire.server.requests.request import TextRequest
from quire.server.requests.texts import Gap, TextPrompts
from quire.server.routing import Routes


def read_completion(request: CompletionRequest) -> TextRequest[Gap | TextPrompts]:
    """Raises RequestError."""
    refuse_unsupported(request)
    if request.use_beam_search:
        _check_with_beams(request)
    tensors = request.prompt_embeds
    prompts = TextPrompts(
        request.prompt,
        [tensors] if isinstance(tensors, str) else tensors or (),
        add_special_tokens=request.add_special_tokens is not False,
        most_tokens=request.truncate_prompt_tokens,
        cut_side=request.truncation_side,
    )
    source: Gap | TextPrompts = _gap(request) if request.suffix else prompts
    asked = text_request(request, source)
    asked.reply.repeats_prompt = True
    asked.reply.is_echo_alone = asked.reply.echo and request.max_tokens == 0
    if request.logprob_token_ids and request.logprobs is not None and asked.reply.is_echo_alone:
        raise RequestError(
            "`logprob_token_ids` is not supported when `echo=True` and `max_tokens=0` because no "
            "output tokens are generated.",
            parameter="logprob_token_ids",
        )
    read_logprobs(asked, request.logprobs)
    read_prompt_logprobs(asked, request.prompt_logprobs)
    if request.prompt_logprobs is None and asked.reply.echo and request.logprobs is not None:
        # Those of the echoed prompt; the generated tokens have their own.
        asked.sampling["prompt_logprobs"] = request.logprobs
    return asked


def _check_with_beams(request: CompletionRequest) -> None:
    if request.stream:
        raise RequestError(
            "Streaming is not currently supported with beam search", parameter="stream"
        )
    if request.echo and request.logprobs is not None:
        raise RequestError(
            "`echo` with `logprobs` is not supported with beam search because beam search does "
            "not compute prompt logprobs.",
            parameter="echo",
        )


def _gap(request: CompletionRequest) -> Gap:
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
    return Gap(request.prompt, request.suffix or "")


ROUTES = Routes("generation")


@ROUTES.on("POST", "/v1/completions", response=CompletionResponse, stream=CompletionChunk)
async def completions(http: Request, request: CompletionRequest) -> Response | ASGIApp:
    """Continues a prompt, or several."""
    context_of(http).target(request.model)
    return await generate(http, read_completion(request), "cmpl", completion_writer)


@ROUTES.on(
    "POST", "/v1/completions/render", tag="prompts", gives="text", response=list[RenderedPrompt]
)
async def render_completion(http: Request, request: CompletionRequest) -> Response:
    """The prompts and parameters that a completion request would run with."""
    context_of(http).target(request.model)
    refuse_beams(request)
    return await rendered(http, read_completion(request), "cmpl", is_list=True)
