"""`begin`: checks a request of any API and hands it to the engine; `reply_of` answers it.

An API adds two functions: one reads its body into a `TextRequest`, the other makes the writer of
the reply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.metrics.http_metrics import LOAD_FORMAT_HEADER, LOAD_HEADER, load_report
from quire.params import SamplingParams
from quire.server.bodies.json_http import context_of, pieced_response
from quire.server.conversation.prompts import prompts_of
from quire.server.generation.beams import BeamGeneration, beam_sampling_params, beam_search_params
from quire.server.generation.reply import ReplyHead, WholeWriter, Writer, written_whole
from quire.server.generation.run import Deadline, Generation, Submission, chosen_engine, deadline_of
from quire.server.generation.spoken import with_words
from quire.server.generation.streams import streamed
from quire.server.http.auth import TENANT_SALT, is_operator
from quire.server.http.event_stream import OPENAI_FORM, EventStream, StreamForm
from quire.server.http.presence import until_gone
from quire.server.requests.prompts import (
    PreparedPrompt,
    as_tenant,
    check_lists,
    joint_salt,
    lists_work,
    sampling_params,
)
from quire.server.requests.request import AnyRequest

MadeWriter = TypeVar("MadeWriter")
MakeWriter = Callable[[AnyRequest, ReplyHead, list[Any]], MadeWriter]
"""Makes the writer of the reply to some prompts, which are `PreparedPrompt`s."""
_PRIORITY_HEADER = "x-vllm-priority"
_TRACE_HEADERS = ("traceparent", "tracestate")
"""W3C Trace Context: the caller's span that a request belongs to."""


async def begin(
    http: Request, asked: AnyRequest, head: ReplyHead, make_writer: MakeWriter[MadeWriter]
) -> tuple[Generation, MadeWriter]:
    """Checks a request and hands it to the engine. Raises RequestError, which names the field of
    the body, CapacityError, EngineDeadError, HttpError."""
    model = head.target.model
    deadline = deadline_of(http, model.args.request_timeout)
    context_of(http).ignored_fields.tell(http, asked.without_effect(model.config))
    with model.admitting() as engine, asked.named():
        make_params = beam_sampling_params if asked.has_beams else sampling_params
        params = await model.pool.run(lists_work(asked.sampling), make_params, model, asked)
        engine.requests.check_admission(1)
        tenant = getattr(http.state, TENANT_SALT, None)
        salt = joint_salt(tenant, asked.salt)
        if context_of(http).args.transcription_model is not None:
            await with_words(context_of(http), model, asked, salt, deadline)
        with as_tenant(tenant, asked.salt):
            prompts = await prompts_of(model, asked)
        prompts = [prompt.salted(salt) for prompt in prompts]
        params.stop_token_ids = [*(params.stop_token_ids or ()), *prompts[0].end_token_ids]
        writer = make_writer(asked, head, prompts)
        left_out = await prompts[0].constrain_reply(model, params)
        context_of(http).ignored_fields.tell(http, map(asked.own_name, left_out))
        return await _start(http, head, asked, prompts, params, deadline), writer


async def _start(
    http: Request,
    head: ReplyHead,
    asked: AnyRequest,
    prompts: Sequence[PreparedPrompt],
    params: SamplingParams,
    deadline: Deadline,
) -> Generation:
    model = head.target.model
    check_lists(params, len(prompts))
    lengths = [len(prompt.token_ids) for prompt in prompts]
    config = model.config.model
    model.limits.check_reply(asked.reply, params, lengths, config.vocab_size)
    trace_headers = {name: http.headers[name] for name in _TRACE_HEADERS if name in http.headers}
    submission = Submission(
        model,
        prompts,
        params,
        head.id,
        deadline,
        priority=_priority(http, asked),
        trace_headers=trace_headers,
        adapter=head.target.adapter,
        engine=chosen_engine(http, model.config.parallel.data_parallel_size),
    )
    generation: Generation
    if asked.has_beams:
        beams = beam_search_params(asked, params, config.max_model_len)
        generation = await BeamGeneration.begin(submission, beams)
    else:
        generation = await Generation.start(submission)
    generation.named = asked.as_asked
    return generation


def _priority(http: Request, asked: AnyRequest) -> int:
    """The header's number, as in vLLM; otherwise the body's."""
    with suppress(KeyError, ValueError):
        return int(http.headers[_PRIORITY_HEADER])
    return asked.priority


async def generate(
    http: Request,
    asked: AnyRequest,
    id_prefix: str,
    make_writer: MakeWriter[Writer],
    form: StreamForm = OPENAI_FORM,
) -> Response | ASGIApp:
    """Answers a request, in the form of its API."""
    head = ReplyHead.of(context_of(http), http, asked, id_prefix)
    generation, writer = await begin(http, asked, head, make_writer)
    return await reply_of(http, asked.reply.stream, generation, writer, form)


async def reply_of(
    http: Request,
    is_stream: bool,
    generation: Generation,
    writer: Writer,
    form: StreamForm = OPENAI_FORM,
    keep_alive_s: float = 0,
) -> Response | ASGIApp:
    """The reply to a request that has begun, whole or as a stream; only OpenAI's reports the load.
    `keep_alive_s` counts unless an option says otherwise."""
    if not is_stream:
        return await whole_of(http, generation, writer, reports_load=form is OPENAI_FORM)
    context = context_of(http)
    return EventStream(
        streamed(generation, writer, context.pool),
        generation.close,
        form=form,
        keep_alive_s=context.args.sse_keep_alive_interval or keep_alive_s,
    )


async def whole_of(
    http: Request, generation: Generation, writer: WholeWriter, *, reports_load: bool = True
) -> Response:
    """The whole reply, or an empty response if the client disconnected."""
    finals = await until_gone(http, generation.close, generation.final_outputs())
    if finals is None:
        return Response()
    pieces = await written_whole(finals, writer, context_of(http).pool)
    return whole_reply(http, generation, pieces) if reports_load else pieced_response(pieces)


def whole_reply(http: Request, generation: Generation, pieces: Sequence[bytes]) -> Response:
    """A reply that does not stream. Its headers report the engine's load if the request asks, of
    several API keys with the operator's."""
    reply = pieced_response(pieces)
    form = http.headers.get(LOAD_FORMAT_HEADER)
    if form is not None and is_operator(http.scope):
        report = load_report(form, generation.model.loaded_engine().metrics.series)
        if report is not None:
            reply.headers[LOAD_HEADER] = report
    return reply
