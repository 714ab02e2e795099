"""llama-server's routes: the reading of their bodies, and the writers of their replies."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.adapters.request import LoRARequest
from quire.errors import RequestError
from quire.outputs import CompletionOutput, RequestOutput
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
    Timings,
)
from quire.server.bodies.json_http import context_of
from quire.server.conversation.conversation import Conversation
from quire.server.conversation.prompts import chat_prompt
from quire.server.generation.begin import generate
from quire.server.generation.reply import ReplyHead, check_end
from quire.server.generation.streams import StepWriter
from quire.server.http.event_stream import PLAIN_FORM, event
from quire.server.requests.fields import SamplerFields
from quire.server.requests.reading import given
from quire.server.requests.request import AnyRequest, ReplyOptions, Source, TextRequest
from quire.server.requests.texts import Gap, TextPrompts
from quire.server.routing import Routes
from quire.version import __version__

_OWN_NAMES = {"repetition_penalty": "repeat_penalty", "max_tokens": "n_predict"}
LLAMA_FORM = PLAIN_FORM
"""The last event says `"stop": true`; nothing follows it."""


class LlamaWriter(StepWriter):
    """Writes the reply to one request."""

    def __init__(self, model: str, returns_tokens: bool) -> None:
        self._model = model
        self._returns_tokens = returns_tokens
        self._num_tokens = 0
        """Tokens of the reply so far."""

    def line(self, data: bytes) -> bytes:
        return event(data)

    def part(self, output: RequestOutput, one: CompletionOutput) -> LlamaReply:
        self._num_tokens += len(one.token_ids)
        tokens = list(one.token_ids) if self._returns_tokens else []
        if one.finish_reason is None:
            return LlamaReply(content=one.text, tokens=tokens, stop=False)
        check_end(output, one)
        is_word = isinstance(one.stop_reason, str)
        ended = "limit" if one.finish_reason == "length" else "word" if is_word else "eos"
        num_prompt, num_cached = len(output.prompt_token_ids or ()), output.num_cached_tokens or 0
        return LlamaReply(
            content=one.text,
            tokens=tokens,
            stop=True,
            model=self._model,
            tokens_predicted=self._num_tokens,
            tokens_evaluated=num_prompt,
            tokens_cached=num_cached,
            truncated=False,
            stop_type=ended,  # type: ignore[arg-type]
            stopping_word=str(one.stop_reason) if is_word else "",
            timings=self._timings(output, num_prompt - num_cached, num_cached),
        )

    def _timings(self, output: RequestOutput, num_computed: int, num_cached: int) -> Timings:
        timings = Timings(cache_n=num_cached, prompt_n=num_computed, predicted_n=self._num_tokens)
        if (stats := output.metrics) is not None:
            prompt_s = max(0.0, stats.first_token_ts - stats.scheduled_ts)
            predicted_s = max(0.0, stats.last_token_ts - stats.first_token_ts)
            timings.prompt_ms, timings.predicted_ms = 1000 * prompt_s, 1000 * predicted_s
            timings.prompt_per_second = num_computed / prompt_s if prompt_s else 0.0
            timings.predicted_per_second = (
                (self._num_tokens - 1) / predicted_s if predicted_s else 0.0
            )
        return timings


_SAME = (*SamplerFields.__struct_fields__, "stop", "ignore_eos")
"""Fields with the names and meanings of `SamplingParams`."""
DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_last_n": 64}
"""llama-server's own, of `common_params_sampling`."""
_NEUTRAL = {
    "n_probs": 0, "typical_p": 1.0, "mirostat": 0, "dynatemp_range": 0.0, "xtc_probability": 0.0,
    "dry_multiplier": 0.0,
}  # fmt: skip
"""Fields of what this server does not do, with the values that switch it off."""


def read_llama(asked: LlamaFields, prompt: Source) -> TextRequest[Source]:
    """Raises RequestError for a field that asks for something else than is done here."""
    for name, neutral in _NEUTRAL.items():
        value = getattr(asked, name)
        if value is not None and value != neutral:
            hint = "; /v1/completions returns log-probabilities" if name == "n_probs" else ""
            raise RequestError(
                f"{name} must be {neutral}: this is not supported{hint}",
                parameter=name,
                value=value,
            )
    sampling: dict[str, Any] = given(asked, _SAME)
    if asked.seed is not None and asked.seed < 0:
        del sampling["seed"]
    if (bias := _bias(asked.logit_bias)) is not None:
        sampling["logit_bias"] = bias
    else:
        sampling.pop("logit_bias", None)
    if asked.repeat_penalty is not None:
        sampling["repetition_penalty"] = asked.repeat_penalty
    if asked.top_k is not None and asked.top_k <= 0:
        sampling["top_k"] = -1  # all tokens
    return TextRequest.of(
        asked,
        prompt,
        sampling=sampling,
        defaults=DEFAULTS,
        default_max_tokens=_max_tokens(asked.n_predict),  # it may be more than the context
        constraint=_constraint(asked),
        reply=ReplyOptions(stream=asked.stream is True, repeats_prompt=True),
        names={"suffix": "input_suffix", **_OWN_NAMES},
    )


def _max_tokens(n_predict: int | None) -> int | None:
    if n_predict is None or n_predict < 0:
        return None
    if n_predict == 0:
        raise RequestError(
            "n_predict must be a positive number of tokens, or -1", parameter="n_predict", value=0
        )
    return n_predict


def _bias(given: list[tuple[int, float]] | dict[str, float] | None) -> dict[str, float] | None:
    if not given:
        return None
    if isinstance(given, dict):
        return given
    return {str(token_id): value for token_id, value in given}


def _constraint(asked: LlamaFields) -> dict[str, Any] | None:
    if asked.grammar and asked.json_schema is not None:
        raise RequestError("give either grammar or json_schema", parameter="grammar")
    if asked.grammar:
        return {"grammar": asked.grammar}
    return None if asked.json_schema is None else {"json": asked.json_schema}


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
    return {_OWN_NAMES.get(name, name): value for name, value in params.items()}


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
