"""`begin`: checks a request of any API and hands it to the engine; `reply_of` answers it.

An API adds two functions: one makes the prompts of a request, the other the writer of its reply.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.metrics.http_metrics import LOAD_FORMAT_HEADER, LOAD_HEADER, load_report
from quire.params import SamplingParams
from quire.server.bodies.json_http import context_of, pieced_response
from quire.server.generation.beams import (
    BeamGeneration,
    beam_sampling_params,
    beam_search_params,
    fields_without_beams,
    refuse_with_beams,
)
from quire.server.generation.limits import fields_without_effect, refuse_unsupported
from quire.server.generation.prompts import PreparedPrompt, Prompt, as_tenant
from quire.server.generation.replies.portions import (
    ReplyHead,
    WholeWriter,
    Writer,
    streamed,
    written_whole,
)
from quire.server.generation.replies.writer import Asked
from quire.server.generation.request_fields import GenerationFields
from quire.server.generation.run import Deadline, Generation, Submission, chosen_engine, deadline_of
from quire.server.generation.sampling import (
    as_asked,
    check_lists,
    lists_work,
    named_as_asked,
    sampling_params,
)
from quire.server.http.auth import TENANT_SALT, is_operator
from quire.server.http.event_stream import OPENAI_FORM, EventStream, StreamForm, until_gone
from quire.server.served_model import ServedModel

MadeWriter = TypeVar("MadeWriter")
Prepare = Callable[[ServedModel, Asked], Awaitable[list[Prompt]]]
MakeWriter = Callable[[Asked, ReplyHead, list[Prompt]], MadeWriter]
_PRIORITY_HEADER = "x-vllm-priority"
_TRACE_HEADERS = ("traceparent", "tracestate")
"""W3C Trace Context: the caller's span that a request belongs to."""


async def begin(
    http: Request,
    request: Asked,
    head: ReplyHead,
    prepare: Prepare[Asked, Prompt],
    make_writer: MakeWriter[Asked, Prompt, MadeWriter],
    own_name: Callable[[str], str] = str,
) -> tuple[Generation, MadeWriter]:
    """Checks a request and hands it to the engine. `own_name` maps a field of a chat to its name in
    this API. Raises RequestError, CapacityError, EngineDeadError, HttpError."""
    context, model = context_of(http), head.target.model
    deadline = deadline_of(http, model.args.request_timeout)
    with model.admitting() as engine:
        has_beams = request.use_beam_search is True
        refuse_unsupported(request)
        ignored = fields_without_effect(request, model.config)
        if has_beams:
            refuse_with_beams(request)
            ignored += fields_without_beams(request)
        if ignored:
            context.ignored_fields.tell(http, ignored)
        make_params = beam_sampling_params if has_beams else sampling_params
        params = await model.pool.run(lists_work(request), make_params, model, request)
        engine.requests.check_admission(1)
        salt = getattr(http.state, TENANT_SALT, None)
        with as_tenant(salt):
            prompts = [prompt.of_tenant(salt) for prompt in await prepare(model, request)]
        params.stop_token_ids = [*(params.stop_token_ids or ()), *prompts[0].end_token_ids]
        writer = make_writer(request, head, prompts)
        with named_as_asked(request):
            left_out = await prompts[0].constrain_reply(model, params)
        context.ignored_fields.tell(http, map(own_name, left_out))
        return await _start(http, head, request, prompts, params, deadline), writer


async def _start(
    http: Request,
    head: ReplyHead,
    request: GenerationFields,
    prompts: Sequence[PreparedPrompt],
    params: SamplingParams,
    deadline: Deadline,
) -> Generation:
    model = head.target.model
    check_lists(params, len(prompts))
    lengths = [len(prompt.token_ids) for prompt in prompts]
    config = model.config.model
    model.limits.check_reply(request, params, lengths, config.vocab_size)
    beams = None
    if request.use_beam_search:
        beams = beam_search_params(request, params, config.max_model_len)
    trace_headers = {name: http.headers[name] for name in _TRACE_HEADERS if name in http.headers}
    with named_as_asked(request):
        asked = Submission(
            model,
            prompts,
            params,
            head.id,
            deadline,
            priority=_priority(http, request),
            trace_headers=trace_headers,
            adapter=head.target.adapter,
            engine=chosen_engine(http, model.config.parallel.data_parallel_size),
        )
        generation: Generation
        if beams is None:
            generation = await Generation.start(asked)
        else:
            generation = await BeamGeneration.begin(asked, beams)
    generation.named = partial(as_asked, request)
    return generation


def _priority(http: Request, request: GenerationFields) -> int:
    """The header's number, as in vLLM; otherwise the body's."""
    with suppress(KeyError, ValueError):
        return int(http.headers[_PRIORITY_HEADER])
    return request.priority or 0


async def generate(
    http: Request,
    request: Asked,
    id_prefix: str,
    prepare: Prepare[Asked, Prompt],
    make_writer: MakeWriter[Asked, Prompt, Writer],
    form: StreamForm = OPENAI_FORM,
) -> Response | ASGIApp:
    """Answers a request, in the form of its API."""
    head = ReplyHead.of(context_of(http), http, request, id_prefix)
    generation, writer = await begin(http, request, head, prepare, make_writer)
    return await reply_of(http, request.stream is True, generation, writer, form)


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
    form = http.headers.get(LOAD_FORMAT_HEADER, "") if is_operator(http.scope) else ""
    report = load_report(form, generation.model.loaded_engine().metrics.series)
    if report is not None:
        reply.headers[LOAD_HEADER] = report
    return reply
