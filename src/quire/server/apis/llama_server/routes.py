"""llama-server's routes."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.adapters.request import LoRARequest
from quire.errors import RequestError
from quire.server.apis.llama_server.reading import DEFAULTS, read_llama
from quire.server.apis.llama_server.schema import (
    AppliedTemplate,
    ApplyTemplateRequest,
    InfillRequest,
    LlamaAdapter,
    LlamaCompletionRequest,
    LlamaFields,
    LlamaReply,
    Props,
    Slot,
)
from quire.server.apis.llama_server.writing import LLAMA_FORM, LlamaWriter
from quire.server.bodies.json_http import context_of
from quire.server.conversation.conversation import Conversation
from quire.server.conversation.prompts import chat_prompt
from quire.server.generation.begin import generate
from quire.server.generation.portions import ReplyHead
from quire.server.requests.request import AnyRequest
from quire.server.requests.texts import Gap, TextPrompts
from quire.server.routing import Routes
from quire.version import __version__

ROUTES = Routes("server", takes_any_name=True)
_GENERATION: dict[str, Any] = {
    "tag": "generation", "response": LlamaReply, "stream": LlamaReply, "has_named_events": True,
}  # fmt: skip


@ROUTES.on("POST", "/completion", "/completions", **_GENERATION)
async def completion(http: Request, asked: LlamaCompletionRequest) -> Response | ASGIApp:
    """Continues a prompt, in llama-server's form."""
    return await _answer(http, asked, TextPrompts(asked.prompt))


@ROUTES.on("POST", "/infill", **_GENERATION)
async def infill(http: Request, asked: InfillRequest) -> Response | ASGIApp:
    """Fills the gap of a text, if the model has tokens for that."""
    files = [(extra.filename, extra.text) for extra in asked.input_extra or ()]
    gap = Gap(asked.input_prefix, asked.input_suffix, asked.prompt, files)
    return await _answer(http, asked, gap)


async def _answer(
    http: Request, asked: LlamaFields, source: Gap | TextPrompts
) -> Response | ASGIApp:
    context_of(http).target(asked.model)

    def writer(_: AnyRequest, head: ReplyHead, prompts: object) -> LlamaWriter:
        del prompts
        return LlamaWriter(head.model, asked.return_tokens is True)

    return await generate(http, read_llama(asked, source), "llama", writer, LLAMA_FORM)


@ROUTES.on("POST", "/apply-template", tag="prompts", gives="text")
async def apply_template(http: Request, asked: ApplyTemplateRequest) -> AppliedTemplate:
    """The prompt that the chat template makes of a conversation."""
    if not asked.messages:
        raise RequestError("messages must not be empty", parameter="messages")
    chat = Conversation.of(asked.messages, asked, tools=asked.tools)
    prompt = await chat_prompt(context_of(http).target(asked.model).model, chat)
    return AppliedTemplate(prompt=prompt.text or "")


@ROUTES.on("GET", "/props", errors=(404,))
async def props(http: Request) -> Props:
    """Abilities of a model and its server. `?model=NAME` chooses the model."""
    target = context_of(http).target(http.query_params.get("model"))
    model, config = target.model, target.model.config
    tokenizer = None if model.engine is None else model.engine.tokenizer
    roles = {} if tokenizer is None else tokenizer.roles
    return Props(
        default_generation_settings={
            "n_ctx": config.model.max_model_len,
            "params": _own_names({**DEFAULTS, **config.model.default_sampling_params}),
        },
        total_slots=config.scheduler.max_num_seqs,
        model_path=target.name,
        model_alias=target.name,
        chat_template=model.chat_template or "",
        bos_token=str(roles.get("bos_token") or ""),
        eos_token=str(roles.get("eos_token") or ""),
        modalities={"vision": config.model.takes("image"), "audio": config.model.takes("audio")},
        is_sleeping=model.engine is None,
        build_info=f"quire {__version__}",
    )


def _own_names(params: dict[str, Any]) -> dict[str, Any]:
    names = {"repetition_penalty": "repeat_penalty", "max_tokens": "n_predict"}
    return {names.get(name, name): value for name, value in params.items()}


@ROUTES.on("GET", "/slots", errors=(404,), for_operator=True)
async def slots(http: Request) -> list[Slot]:
    """The places for requests that run at once. `?model=NAME` chooses the model."""
    model = context_of(http).target(http.query_params.get("model")).model
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


@ROUTES.on("GET", "/lora-adapters", tag="models", errors=(404,))
async def list_adapters(http: Request) -> list[LlamaAdapter]:
    """The adapters of a model. `?model=NAME` chooses the model."""
    model = context_of(http).target(http.query_params.get("model")).model
    return [
        LlamaAdapter(id=one.lora_int_id, name=one.lora_name, path=one.lora_name)
        for one in (model.adapters[name] for name in model.adapters)
        if isinstance(one, LoRARequest)
    ]


@ROUTES.on(
    "POST",
    "/lora-adapters",
    tag="models",
    request=list[dict[str, Any]],
    response=list[LlamaAdapter],
    errors=(400,),
)
async def set_adapters(http: Request) -> Response:
    """Refuses: an adapter is chosen by each request, not for all of them."""
    del http  # whatever its body says
    raise RequestError(
        "the scale of an adapter cannot be set for all requests: a request chooses an adapter by "
        "its name as `model`",
        parameter="scale",
    )
