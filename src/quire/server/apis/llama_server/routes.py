"""llama-server's own routes, over the completions' generation."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.adapters.request import LoRARequest
from quire.errors import RequestError
from quire.server.apis.chat.prompts import chat_prompt
from quire.server.apis.completions.routes import completion_prompts
from quire.server.apis.completions.schema import CompletionRequest
from quire.server.apis.llama_server.conversion import completion_request
from quire.server.apis.llama_server.infill import infill_ids
from quire.server.apis.llama_server.schema import (
    AppliedTemplate,
    ApplyTemplateRequest,
    InfillRequest,
    LlamaAdapter,
    LlamaCompletionRequest,
    LlamaFields,
    Props,
    Slot,
)
from quire.server.apis.llama_server.writer import LLAMA_FORM, LlamaWriter
from quire.server.apis.text.schema import TokenizeRequest
from quire.server.bodies.json_http import context_of, json_response, read_body
from quire.server.generation.begin import begin, stream_of, whole_of
from quire.server.generation.prompts import PreparedPrompt
from quire.server.generation.replies.head import ReplyHead
from quire.server.served_model import ServedModel
from quire.version import __version__


async def completion(http: Request) -> Response | ASGIApp:
    """Continues a prompt, in llama-server's form."""
    asked = await read_body(http, LlamaCompletionRequest)
    return await _answer(http, asked, completion_request(asked, asked.prompt))


async def infill(http: Request) -> Response | ASGIApp:
    """Fills the gap of a text, if the model has tokens for that."""
    asked = await read_body(http, InfillRequest)
    model = context_of(http).target(asked.model).model
    texts = [asked.input_prefix, asked.input_suffix, asked.prompt]
    texts += [part for extra in asked.input_extra or () for part in (extra.filename, extra.text)]
    size = sum(map(len, texts))
    model.limits.check_text("input_prefix", size)
    ids, ends = await model.pool.run(size, infill_ids, model.tokenizer(), asked)
    request = completion_request(asked, ids)
    request.stop_token_ids = ends
    return await _answer(http, asked, request)


async def _answer(
    http: Request, asked: LlamaFields, request: CompletionRequest
) -> Response | ASGIApp:
    head = ReplyHead.of(context_of(http), http, request, "llama")

    def writer(_: CompletionRequest, head: ReplyHead, prompts: list[PreparedPrompt]) -> LlamaWriter:
        del prompts
        return LlamaWriter(head.model, asked.return_tokens is True)

    generation, made = await begin(http, request, head, completion_prompts, writer)
    if request.stream:
        return stream_of(http, generation, made, LLAMA_FORM)
    return await whole_of(http, generation, made, reports_load=False)


async def apply_template(http: Request) -> Response:
    """The prompt that the chat template makes of a conversation."""
    asked = await read_body(http, ApplyTemplateRequest)
    if not asked.messages:
        raise RequestError("messages must not be empty", parameter="messages")
    request = TokenizeRequest(
        messages=asked.messages,
        tools=asked.tools,
        add_generation_prompt=asked.add_generation_prompt,
        chat_template_kwargs=asked.chat_template_kwargs,
    )
    prompt = await chat_prompt(context_of(http).target(asked.model).model, request)
    return json_response(AppliedTemplate(prompt=prompt.text or ""))


async def props(http: Request) -> Response:
    """What a model and its server can do. `?model=NAME` chooses the model."""
    target = context_of(http).target(http.query_params.get("model"))
    model, config = target.model, target.model.config
    tokenizer = None if model.engine is None else model.engine.tokenizer
    roles = {} if tokenizer is None else tokenizer.roles
    template = {} if tokenizer is None else tokenizer.config
    text = config.model.chat_template or template.get("chat_template") or ""
    return json_response(Props(
        default_generation_settings={
            "n_ctx": config.model.max_model_len,
            "params": dict(config.model.default_sampling_params),
        },
        total_slots=config.scheduler.max_num_seqs,
        model_path=target.name,
        model_alias=target.name,
        chat_template=text if isinstance(text, str) else "",
        bos_token=str(roles.get("bos_token") or ""),
        eos_token=str(roles.get("eos_token") or ""),
        modalities={"vision": False, "audio": False},
        is_sleeping=model.engine is None,
        build_info=f"quire {__version__}",
    ))  # fmt: skip


async def slots(http: Request) -> Response:
    """The places for requests that run at once. `?model=NAME` chooses the model."""
    model = context_of(http).target(http.query_params.get("model")).model
    return json_response(_slots(model))


def _slots(model: ServedModel) -> list[Slot]:
    scheduler = model.config.scheduler
    running = 0 if model.engine is None else model.engine.metrics.latest.num_running
    return [
        Slot(
            id=index,
            n_ctx=model.config.model.max_model_len,
            is_processing=index < running,
            speculative=scheduler.speculation is not None,
        )
        for index in range(scheduler.max_num_seqs)
    ]


async def list_adapters(http: Request) -> Response:
    """The adapters of a model. `?model=NAME` chooses the model."""
    model = context_of(http).target(http.query_params.get("model")).model
    return json_response([
        LlamaAdapter(id=one.lora_int_id, name=one.lora_name, path=one.lora_name)
        for one in (model.adapters[name] for name in model.adapters)
        if isinstance(one, LoRARequest)
    ])  # fmt: skip


async def set_adapters(http: Request) -> Response:
    """Refuses: an adapter is chosen by each request, not for all of them."""
    value: Any = await http.json()
    raise RequestError(
        "the scale of an adapter cannot be set for all requests: a request chooses an adapter by "
        "its name as `model`",
        parameter="scale",
        value=value,
    )
