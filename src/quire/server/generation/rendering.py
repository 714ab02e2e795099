"""The render endpoints: the prompts and parameters that a request would run with."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.errors import RequestError
from quire.frontend.arguments import RequestOptions, located
from quire.params import SamplingParams
from quire.server.bodies.json_http import context_of, json_response, pieced_response
from quire.server.conversation.prompts import prompts_of
from quire.server.generation.reply import ReplyHead
from quire.server.generation.run import params_work
from quire.server.json_pieces import JsonList
from quire.server.requests.fields import GenerationFields, TokenId
from quire.server.requests.limits import params_in_room
from quire.server.requests.prompts import PreparedPrompt, check_lists, lists_work, sampling_params
from quire.server.requests.reading import refuse_unsupported
from quire.server.requests.request import AnyRequest


class RenderedPrompt(msgspec.Struct, kw_only=True):
    """The engine's input for one prompt."""

    request_id: str
    model: str
    prompt: str | None
    """The exact text; null where token ids were given."""
    token_ids: list[TokenId]
    sampling_params: dict[str, Any]
    cache_salt: str | None = None
    priority: int = 0
    stream: bool = False


def refuse_beams(request: GenerationFields) -> None:
    """Raises RequestError for a body that asks for them."""
    refuse_unsupported(request)
    if request.use_beam_search:
        raise RequestError(
            "Beam search is not supported by the render endpoint", parameter="use_beam_search"
        )


async def rendered(http: Request, asked: AnyRequest, id_prefix: str, *, is_list: bool) -> Response:
    """The prompts of a request as a reply, or the only one of them. Raises RequestError."""
    head = ReplyHead.of(context_of(http), http, asked, id_prefix)
    model = head.target.model
    with asked.named():
        params = await model.pool.run(lists_work(asked.sampling), sampling_params, model, asked)
        prompts = await prompts_of(model, asked, has_reply=False)
        prompts = [one.salted(asked.salt) for one in prompts]
        check_lists(params, len(prompts))
        size = sum(32 + len(prompt.token_ids) for prompt in prompts)
        size += params_work(params, len(prompts))
        if is_list:
            return pieced_response(
                await model.pool.run(size, _rendered_list, head, asked, prompts, params)
            )
        return json_response(await model.pool.run(size, _rendered, head, asked, prompts[0], params))


def _rendered_list(
    head: ReplyHead, asked: AnyRequest, prompts: list[PreparedPrompt], params: SamplingParams
) -> list[bytes]:
    listed = JsonList()
    for index, prompt in enumerate(prompts):
        with located("prompt", index, len(prompts)):
            listed.add([_rendered(head, asked, prompt, params)])
    return list(listed.pieces())


def _rendered(
    head: ReplyHead, asked: AnyRequest, prompt: PreparedPrompt, params: SamplingParams
) -> RenderedPrompt:
    """Applies the checks of a request that runs."""
    model = head.target.model
    params = params_in_room(params, len(prompt.token_ids), model.config.model.max_model_len)
    processor = model.loaded_engine().input_processor
    options = RequestOptions(priority=asked.priority)
    settled = processor.process(head.id, prompt.for_engine(), params, options)
    values: dict[str, Any] = msgspec.to_builtins(settled.params)
    plain = {name: value for name, value in values.items() if not name.startswith("_")}
    return RenderedPrompt(
        request_id=head.id,
        model=head.model,
        prompt=prompt.text,
        token_ids=prompt.token_ids,
        sampling_params=plain,
        cache_salt=asked.salt,
        priority=asked.priority,
        stream=asked.reply.stream,
    )
